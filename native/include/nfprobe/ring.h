// SPDX-License-Identifier: Apache-2.0
// The ring: one thread's record buffer in the shared memory file. Single producer (the thread and the
// signal handlers that interrupt it), single consumer (the monitor).
//
// Positions are bytes, 64 bits wide, and never wrap: slot = position & (ring_bytes - 1). A record of lap
// number L = position / ring_bytes carries lap bit = !(L & 1), so that zeroed memory reads as "not written".
// The consumer therefore needs no head index: the lap bit of the slot commits it, and the two sides share
// no cache line per record. The producer learns of free room from `tail` only when it reaches its own
// cached `limit`, which the slow path sets to tail + ring_bytes - NFP_RING_SLACK_BYTES.
//
// The producer compares position with limit and then reserves with one xadd. A signal handler that runs
// between the two may reserve past limit by what it writes after its own comparison: the slack is the room
// for that, so a slot not yet read is never overwritten.
//
// A slot was last touched a whole lap ago and by another CPU: a store to it would wait for memory, and all later stores
// of the NF behind it. So each record asks for the cache line that lies NFP_RING_AHEAD_BYTES ahead (prefetchw, which
// never faults, behind the ring's end either).
#ifndef NFPROBE_RING_H
#define NFPROBE_RING_H

#define NFP_RING_SLACK_BYTES 4096
#define NFP_RING_AHEAD_BYTES 256
#define NFP_RING_BYTES_MIN (64 << 10)
#define NFP_RING_BYTES_MAX (256 << 20)
#define NFP_RING_BYTES_DEFAULT (16 << 20)

#include "record.h"

#ifndef __ASSEMBLER__
// The lap bit that a record at `position` carries. ring_bytes is a power of two.
static inline uint32_t nfp_ring_lap(uint64_t position, uint64_t ring_bytes)
{
	return position & ring_bytes ? 0 : NFP_LAP_BIT;
}
#endif
#endif
