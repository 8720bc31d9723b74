// SPDX-License-Identifier: Apache-2.0
// What the templates of receive, transmit and drop functions keep of a call, for capture.c and fast_path.c.
#ifndef NFPROBE_FRAME_H
#define NFPROBE_FRAME_H
#include "counter.h"
#include "library.h"

// The frame of a receive call whose thread's counters are read.
struct nfp_counted_frame {
	struct nfp_kept_readings readings; // of its entry
	struct nfp_frame frame;
};
_Static_assert(sizeof(struct nfp_kept_readings) == 48,
               "BELOW_COUNTED of arch/*/template_packets.S is 32 more");

// A batch structure is emptied by the function that it is handed to: its number is kept from the entry on, in the
// frame's place for the time, which these probes do not use.
#define NFP_KEPT 0x6b657074ull

static inline void nfp_frame_keep(struct nfp_frame *frame, uint32_t count)
{
	frame->ticks = NFP_KEPT << 32 | count;
}

static inline uint32_t nfp_frame_kept(const struct nfp_frame *frame)
{
	return frame->ticks >> 32 == NFP_KEPT ? (uint32_t)frame->ticks
	                                      : 0; // not kept: the gate was shut meanwhile
}

// The number that was returned and the one that was asked for, as POLL_EXIT has them.
static inline uint32_t nfp_counts_of(uint32_t count, uint32_t asked)
{
	return (count < 0xffff ? count : 0xffff) | asked << 16;
}

// Writes the first records of a poll that returned packets, into reserved slots, and its last one: three in all, and one
// more where it is known when the first packet arrived (`arrival_ticks`, 0: it is not). The batch's age counts from then.
// Both return the next slot.
static inline struct nfp_record *nfp_put_polled(struct nfp_record *slot, struct nfp_thread *thread,
                                                uint32_t function, const struct nfp_frame *frame,
                                                uint32_t queue, uint64_t arrival_ticks)
{
	slot = nfp_put(slot, frame->ticks, function | (uint32_t)NFP_POLL_ENTRY << NFP_KIND_SHIFT,
	               nfp_low_sp(frame));
	slot = nfp_put(slot, thread->batch_earliest, function | (uint32_t)NFP_POLL_QUEUE << NFP_KIND_SHIFT,
	               queue);
	if (!arrival_ticks)
		return slot;
	thread->batch_earliest = arrival_ticks;
	return nfp_put(slot, arrival_ticks, function | (uint32_t)NFP_BATCH_ARRIVAL << NFP_KIND_SHIFT, 0);
}

static inline struct nfp_record *nfp_put_returned(struct nfp_record *slot, uint32_t function, uint64_t ticks,
                                                  uint32_t count, uint32_t asked)
{
	return nfp_put(slot, ticks, function | (uint32_t)NFP_POLL_EXIT << NFP_KIND_SHIFT,
	               nfp_counts_of(count, asked));
}

// Writes the two records of a call that handed packets on.
static inline void nfp_put_handed(struct nfp_record *slot, uint32_t function, const struct nfp_frame *frame,
                                  uint64_t ticks, uint32_t count, uint32_t asked)
{
	slot = nfp_put(slot, count | (uint64_t)asked << 32, function | (uint32_t)NFP_VALUE << NFP_KIND_SHIFT,
	               nfp_low_sp(frame));
	nfp_put(slot, ticks, function | (uint32_t)NFP_EXIT << NFP_KIND_SHIFT, nfp_low_sp(frame));
}

// thunk.S calls these. `selector` is function id | program index << 24.
void nfp_receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                      uint32_t selector);
void nfp_counted_entry(struct nfp_thread *thread, struct nfp_counted_frame *frame);
void nfp_counted_exit(struct nfp_thread *thread, const struct nfp_counted_frame *frame, uint64_t ticks,
                      uint32_t selector);
void nfp_packets_entry(struct nfp_thread *thread, struct nfp_frame *frame, uint64_t ticks, uint32_t selector);
void nfp_packets_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                      uint32_t selector);
// ending.c: the same once turns are to end.
void nfp_ending_receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                             uint32_t selector);
void nfp_ending_counted_exit(struct nfp_thread *thread, const struct nfp_counted_frame *frame, uint64_t ticks,
                             uint32_t selector);

// capture.c: the same for every program and gate.
void nfp_any_receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                          uint32_t selector);
void nfp_any_packets_entry(struct nfp_thread *thread, struct nfp_frame *frame, uint64_t ticks,
                           uint32_t selector);
void nfp_any_packets_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                          uint32_t selector);
#endif
