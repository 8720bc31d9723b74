// SPDX-License-Identifier: Apache-2.0
// The drain: takes committed records out of one thread's ring, in order. It never trusts what it reads:
// positions are its own, every index is masked. Called by session.py; pipeline.h takes what it gives.
//
// A hole is a slot that is not committed while a later one is: its thread was interrupted inside the probe
// by a signal handler that wrote records, or such a handler left by longjmp and the slot stays unwritten.
// The drain stops there. When the same hole has stood long enough the caller says skip_hole, and the hole
// is left out and counted as torn. Should its thread write the slot after that, the slot carries the lap
// bit of a lap that is over, so it reads as unwritten in the next lap and is found as a hole again.
#ifndef NFPROBE_DRAIN_H
#define NFPROBE_DRAIN_H
#include <nfprobe/record.h>
#include <nfprobe/session.h>

// cdef begin
struct nfp_drain_hole {
	uint64_t torn;    // slots skipped by this call (0 unless skip_hole)
	uint32_t blocked; // 1: the slot at the position reached is a hole
	uint32_t reserved;
};

// Copies up to `room` records that stand at *position and after it, tags as in record.h and FILL records left out,
// advances *position, once around at most, and returns their number. ring_bytes is a power of two and at least 64 KiB.
// Does not publish.
uint64_t nfp_drain(const uint8_t *ring, uint64_t ring_bytes, uint64_t *position, int skip_hole,
                   struct nfp_record *records, uint64_t room, struct nfp_drain_hole *hole);

// Gives the producer the room before `position` back.
void nfp_drain_publish(struct nfp_thread_shared *thread, uint64_t position);
// cdef end
#endif
