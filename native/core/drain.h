// SPDX-License-Identifier: Apache-2.0
// The drain: takes committed records out of one thread's ring, in order. It never trusts what it reads:
// positions are its own, every index is masked. Called by session.py; pipeline.h takes what it gives.
//
// A hole is a slot that is not committed while a later one is: its thread was interrupted inside the probe
// by a signal handler that wrote records, or such a handler left by longjmp and the slot stays unwritten.
// The drain stops there. When the same hole has stood long enough the caller says SKIP, and the hole
// is left out and counted as torn. Should its thread write the slot after that, the slot carries the lap
// bit of a lap that is over, so it reads as unwritten in the next lap and is found as a hole again.
// To look as far ahead as a hole may reach takes longer than to read a few records, and touches pages that are not
// written yet: NEAR finds most holes, those of one record, and the caller sees to it that each ring is looked at without
// it now and then.
#ifndef NFPROBE_DRAIN_H
#define NFPROBE_DRAIN_H
#include "abi/record.h"
#include "abi/session.h"

// cdef begin
struct nfp_drain_hole {
	uint64_t torn; // slots skipped by this call (0 without NFP_DRAIN_SKIP)
	uint32_t blocked; // 1: the slot at the position reached is a hole
	uint32_t reserved;
};

enum nfp_drain_how {
	NFP_DRAIN_SKIP = 1, // leave out the hole at the position reached
	NFP_DRAIN_NEAR = 2, // look only a few slots ahead for one
};

// Copies up to `room` records that stand at *position and after it, tags as in record.h and FILL records left out,
// advances *position, once around at most, and returns their number. ring_bytes is a power of two and at least 64 KiB.
// how: of enum nfp_drain_how, added up. Does not publish.
uint64_t nfp_drain(const uint8_t *ring, uint64_t ring_bytes, uint64_t *position, int how,
                   struct nfp_record *records, uint64_t room, struct nfp_drain_hole *hole);

// Gives the producer the room before `position` back.
void nfp_drain_publish(struct nfp_thread_shared *thread, uint64_t position);
// cdef end
#endif
