// SPDX-License-Identifier: Apache-2.0
// The ring: one thread's record buffer in the shared memory file. Single producer (the thread and the
// signal handlers that interrupt it), single consumer (the monitor).
//
// Positions are bytes, 64 bits wide, and never wrap: slot = position & (ring_bytes - 1). Lap number L is position /
// ring_bytes. The target maps each ring twice: laps with an even number are written at one place, those with an odd one
// NFP_RING_LAPS_APART above it. So the producer needs one word, the address of its next slot (`cursor`), which says the
// slot as well as the lap.
//
// A tag is written with the low half of its slot's address added, and read with the low half taken off that the slot has in
// the lap that is read. What an earlier lap has left is wrong by NFP_LAP_BIT then, and zeroed memory, too: the first
// place's low half is NFP_RING_PLACE. So the slot itself says that it is committed: the consumer needs no head index, and
// the two sides share no cache line per record.
//
// The producer compares cursor with its own cached `limit`, and only there takes the slow path, which reads how far the
// consumer has come (`tail`) and lets it write up to tail + ring_bytes - NFP_RING_SLACK_BYTES, and no further than to
// NFP_RING_SLACK_BYTES before the lap's end. At a lap's end it reserves all that is left of the lap, writes FILL records
// there and goes on at the other place. Between comparing and reserving, by one addition, signal handlers may have
// written: the slack is the room for that, so a slot not yet read is never overwritten, and what is reserved together is
// of one lap.
//
// A slot was last touched a whole lap ago and by another CPU: a store to it would wait for memory, and all later stores
// of the NF behind it. So each record asks for the cache line that lies NFP_RING_AHEAD_BYTES ahead (nfp_ring_ahead,
// which never faults, behind the ring's end either).
// cdef: macros
#ifndef NFPROBE_RING_H
#define NFPROBE_RING_H

#ifndef NFP_RING_SLACK_BYTES // native/tests/test_room.c steps through less
#define NFP_RING_SLACK_BYTES 4096
#endif
#define NFP_RING_AHEAD_BYTES 256
#define NFP_RING_BYTES_MIN (64 << 10)
#define NFP_RING_BYTES_MAX (256 << 20)
#define NFP_RING_BYTES_DEFAULT (16 << 20)

#define NFP_RING_PLACE 0x40000000ull // low half of the address where laps with an even number are written
#define NFP_RING_LAPS_APART 0x80000000ull

#include "record.h"

#ifndef __ASSEMBLER__
// Low half of the address that the slot of a position has in the target. ring_bytes is a power of two.
static inline uint32_t nfp_ring_low(uint64_t position, uint64_t ring_bytes)
{
	return (uint32_t)(NFP_RING_PLACE + (position & (ring_bytes - 1))) +
	       (position & ring_bytes ? NFP_LAP_BIT : 0);
}
#endif
#endif
