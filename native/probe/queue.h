// SPDX-License-Identifier: Apache-2.0
// When the packets of a batch can have arrived, where nobody stamped them. A poll that returned fewer packets than
// it was asked for left its queue empty, so what the next polls of this queue return has arrived since the entry of
// that poll. Called at the exit of receive functions, on the target's threads: in a header, because plain.c has no calls.
//
// A queue that was not seen empty for many full polls is called saturated: the old bound stays true, but says nothing
// any more, because no receive queue holds the packets of so many polls. What waits in a saturated queue has waited at
// least since the poll of the batch before.
#ifndef NFPROBE_QUEUE_H
#define NFPROBE_QUEUE_H
#include "library.h"

#define NFP_SATURATED_POLLS 256 // full ones in a row: 8,192 packets in bursts of 32
#define NFP_QUEUE_MARK ((1u << NFP_QUEUE_MARK_BITS) - 1)
#define NFP_EMPTIED_BITS 48 // of a time stamp: 30 hours

// The queue that a receive call polls: its argument that says so (0: none does) and the function, hashed.
// Partner: the empty poll in x86_64/template_packets.S.
static inline uint32_t nfp_queue_of(uint64_t argument, uint32_t selector)
{
	return (((uint32_t)argument ^ selector) * NFP_QUEUE_HASH) >> NFP_QUEUE_SHIFT;
}

// Forgets all queues: another session or another thread begins with this block.
static inline void nfp_queue_forget(struct nfp_thread *thread)
{
	thread->batch_start = thread->batch_earliest = thread->handed_ticks = 0;
	thread->detail_left = thread->detail_turn = 0;
	for (uint32_t slot = 0; slot < NFP_QUEUE_SLOTS; slot++) {
		thread->emptied[slot] = 0;
		thread->backlog[slot] = (struct nfp_backlog){0, 0, 0};
	}
}

static inline uint32_t nfp_queue_slot(uint32_t queue)
{
	return queue >> NFP_QUEUE_MARK_BITS & (NFP_QUEUE_SLOTS - 1);
}

// The poll that began at `start` left the queue empty.
static inline void nfp_queue_emptied(struct nfp_thread *thread, uint32_t queue, uint64_t start)
{
	thread->emptied[nfp_queue_slot(queue)] = start << NFP_QUEUE_MARK_BITS | (queue & NFP_QUEUE_MARK);
}

// When the queue was seen empty before `start`; 0: never, or another queue of this slot was since then.
static inline uint64_t nfp_queue_last_emptied(const struct nfp_thread *thread, uint32_t queue, uint64_t start)
{
	uint64_t word = thread->emptied[nfp_queue_slot(queue)];
	if (word >> NFP_QUEUE_MARK_BITS == 0 || (word & NFP_QUEUE_MARK) != (queue & NFP_QUEUE_MARK))
		return 0;
	uint64_t age = (start - (word >> NFP_QUEUE_MARK_BITS)) & ((1ull << NFP_EMPTIED_BITS) - 1);
	return start - age;
}

// How many polls before this one came back full since the queue was seen empty.
static inline uint32_t nfp_queue_full_polls(struct nfp_thread *thread, uint32_t queue)
{
	struct nfp_backlog *backlog = &thread->backlog[nfp_queue_slot(queue)];
	uint32_t emptied = (uint32_t)(thread->emptied[nfp_queue_slot(queue)] >> NFP_QUEUE_MARK_BITS);
	uint16_t mark = (uint16_t)(queue & NFP_QUEUE_MARK);
	if (backlog->emptied != emptied || backlog->queue != mark)
		*backlog = (struct nfp_backlog){emptied, mark, 0};
	uint32_t before = backlog->full_polls;
	backlog->full_polls += before < UINT16_MAX;
	return before;
}

// A batch begins, with the poll that began at `start`; is_short: it left its queue empty. Sets the thread's
// batch_start and batch_earliest. Returns the marks of its POLL_QUEUE record.
static inline uint32_t nfp_queue_batch(struct nfp_thread *thread, uint32_t queue, uint64_t start,
                                       int is_short)
{
	uint64_t emptied = nfp_queue_last_emptied(thread, queue, start), before = thread->batch_start;
	uint32_t full = nfp_queue_full_polls(thread, queue);
	int is_saturated = !emptied || full >= NFP_SATURATED_POLLS;
	if (is_saturated)
		emptied = full && before && before < start ? before : start;
	thread->batch_start = start;
	thread->batch_earliest = emptied;
	if (is_short)
		nfp_queue_emptied(thread, queue, start);
	return is_saturated ? NFP_QUEUE_SATURATED : 0;
}
#endif
