// SPDX-License-Identifier: Apache-2.0
// When the packets of a batch can have arrived, where nobody stamped them. A poll that returned fewer packets than
// it was asked for left its queue empty, so what the next polls of this queue return has arrived since the entry of
// that poll. Called at the exit of receive functions, on the target's threads: in a header, because fast_path.c has no calls.
//
// A queue that was not seen empty for many full polls is called saturated: the old bound stays true, but says nothing
// any more, because no receive queue holds the packets of so many polls. Nor does the poll before say anything: what a
// generator hands out did not exist then. So the age of its packets counts from the poll that returned them, here as in
// the monitor.
#ifndef NFPROBE_QUEUE_H
#define NFPROBE_QUEUE_H
#include "library.h"

#define NFP_SATURATED_POLLS 256 // full ones in a row: 8,192 packets in bursts of 32
#define NFP_QUEUE_MARK ((1u << NFP_QUEUE_MARK_BITS) - 1)
#define NFP_EMPTIED_BITS 48 // of a time stamp: 30 hours

// The queue that a receive call polls: its argument that says so (0: none does) and the function, hashed.
// Partner: the empty poll in template_packets.S.
static inline uint32_t nfp_queue_of(uint64_t argument, uint32_t selector)
{
	return (((uint32_t)argument ^ selector) * NFP_QUEUE_HASH) >> NFP_QUEUE_SHIFT;
}

// Forgets all queues: another session or another thread begins with this block.
static inline void nfp_queue_forget(struct nfp_thread *thread)
{
	thread->batch_start = thread->batch_earliest = thread->handed_ticks = 0;
	thread->detail_left = thread->detail_turn = 0;
	for (uint32_t slot = 0; slot < NFP_QUEUE_SLOTS; slot++)
		thread->polled[slot] = (struct nfp_polled){0};
}

static inline struct nfp_polled *nfp_queue_slot(struct nfp_thread *thread, uint32_t queue)
{
	return &thread->polled[queue >> NFP_QUEUE_MARK_BITS & (NFP_QUEUE_SLOTS - 1)];
}

// The poll that began at `start` left the queue empty.
static inline void nfp_queue_emptied(struct nfp_thread *thread, uint32_t queue, uint64_t start)
{
	nfp_queue_slot(thread, queue)->emptied = start << NFP_QUEUE_MARK_BITS | (queue & NFP_QUEUE_MARK);
}

// Whether the word in the queue's slot is of this queue, and of any time.
static inline int nfp_queue_is_known(uint64_t word, uint32_t queue)
{
	return word >> NFP_QUEUE_MARK_BITS != 0 && !((word ^ queue) & NFP_QUEUE_MARK);
}

// The time of the word, which is before `start`.
static inline uint64_t nfp_queue_time(uint64_t word, uint64_t start)
{
	return start - ((start - (word >> NFP_QUEUE_MARK_BITS)) & ((1ull << NFP_EMPTIED_BITS) - 1));
}

// How many polls before this one came back full since the queue was seen empty.
static inline uint32_t nfp_queue_full_polls(struct nfp_polled *polled, uint32_t queue)
{
	uint32_t polls = polled->polls;
	if (polled->full_since != polled->emptied || polled->queue != queue) {
		// It has been empty since, or the slot was another queue's.
		polled->full_since = polled->emptied;
		polled->queue = queue;
		polls = 0;
	}
	if (polls < NFP_SATURATED_POLLS)
		polled->polls = polls + 1;
	return polls;
}

// A batch begins, with the poll that began at `start`. Sets the thread's batch_start and batch_earliest. Returns the marks of
// its POLL_QUEUE record. Before nfp_queue_emptied of the same poll.
static inline uint32_t nfp_queue_batch(struct nfp_thread *thread, uint32_t queue, uint64_t start)
{
	struct nfp_polled *polled = nfp_queue_slot(thread, queue);
	uint32_t full = nfp_queue_full_polls(polled, queue);
	uint64_t word = polled->emptied;
	thread->batch_start = start;
	if (full < NFP_SATURATED_POLLS && nfp_queue_is_known(word, queue)) {
		thread->batch_earliest = nfp_queue_time(word, start);
		return 0;
	}
	thread->batch_earliest = start;
	return NFP_QUEUE_SATURATED;
}
#endif
