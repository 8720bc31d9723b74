// SPDX-License-Identifier: Apache-2.0
// See queue.h. A queue that was not seen empty for many full polls is called saturated: the old bound stays true,
// but says nothing any more, because no receive queue holds the packets of so many polls. What waits in a saturated
// queue has waited at least since the poll of the batch before.
#include "queue.h"

#define SATURATED_POLLS 256 // full ones in a row: 8,192 packets in bursts of 32
#define MARK_MASK ((1u << NFP_QUEUE_MARK_BITS) - 1)
#define EMPTIED_BITS 48 // of a time stamp: 30 hours

static uint32_t slot_of(uint32_t queue)
{
	return queue >> NFP_QUEUE_MARK_BITS & (NFP_QUEUE_SLOTS - 1);
}

void nfp_queue_forget(struct nfp_thread *thread)
{
	thread->batch_start = thread->batch_earliest = thread->handed_ticks = 0;
	thread->detail_left = thread->detail_turn = 0;
	for (uint32_t slot = 0; slot < NFP_QUEUE_SLOTS; slot++) {
		thread->emptied[slot] = 0;
		thread->backlog[slot] = (struct nfp_backlog){0, 0, 0};
	}
}

void nfp_queue_emptied(struct nfp_thread *thread, uint32_t queue, uint64_t start)
{
	thread->emptied[slot_of(queue)] = start << NFP_QUEUE_MARK_BITS | (queue & MARK_MASK);
}

// When the queue was seen empty before `start`; 0: never, or another queue of this slot was since then.
static uint64_t last_emptied(const struct nfp_thread *thread, uint32_t queue, uint64_t start)
{
	uint64_t word = thread->emptied[slot_of(queue)];
	if (word >> NFP_QUEUE_MARK_BITS == 0 || (word & MARK_MASK) != (queue & MARK_MASK))
		return 0;
	uint64_t age = (start - (word >> NFP_QUEUE_MARK_BITS)) & ((1ull << EMPTIED_BITS) - 1);
	return start - age;
}

// How many polls before this one came back full since the queue was seen empty.
static uint32_t full_polls(struct nfp_thread *thread, uint32_t queue)
{
	struct nfp_backlog *backlog = &thread->backlog[slot_of(queue)];
	uint32_t emptied = (uint32_t)(thread->emptied[slot_of(queue)] >> NFP_QUEUE_MARK_BITS);
	uint16_t mark = (uint16_t)(queue & MARK_MASK);
	if (backlog->emptied != emptied || backlog->queue != mark)
		*backlog = (struct nfp_backlog){emptied, mark, 0};
	uint32_t before = backlog->full_polls;
	backlog->full_polls += before < UINT16_MAX;
	return before;
}

uint32_t nfp_queue_batch(struct nfp_thread *thread, uint32_t queue, uint64_t start, int is_short)
{
	uint64_t emptied = last_emptied(thread, queue, start), before = thread->batch_start;
	uint32_t full = full_polls(thread, queue);
	int is_saturated = !emptied || full >= SATURATED_POLLS;
	if (is_saturated)
		emptied = full && before && before < start ? before : start;
	thread->batch_start = start;
	thread->batch_earliest = emptied;
	if (is_short)
		nfp_queue_emptied(thread, queue, start);
	return is_saturated ? NFP_QUEUE_SATURATED : 0;
}
