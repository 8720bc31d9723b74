// SPDX-License-Identifier: Apache-2.0
// See detail.h. Inner functions are timed while a queue is in backlog, in the batches after a slow one, and in one of
// some batches, so that what is usual is known. An empty poll does not come here: what runs for it has the gate of
// the last batch.
#include "detail.h"

#define BATCHES_AFTER_SLOW 16

// Of the batch before: from the earliest arrival of its packets to the end of its last transmit or drop call.
static uint64_t age_before(const struct nfp_thread *thread)
{
	return thread->handed_ticks > thread->batch_start ? thread->handed_ticks - thread->batch_earliest : 0;
}

static int is_wanted(struct nfp_thread *thread, int is_full)
{
	const struct nfp_session_header *header = nfp_library.header;
	int wanted = is_full;
	if (header->detail_slow_ticks && age_before(thread) > header->detail_slow_ticks)
		thread->detail_left = BATCHES_AFTER_SLOW;
	if (thread->detail_left) {
		thread->detail_left--;
		wanted = 1;
	}
	if (header->detail_one_in && ++thread->detail_turn >= header->detail_one_in) {
		thread->detail_turn = 0;
		wanted = 1;
	}
	return wanted;
}

uint32_t nfp_detail_begin(struct nfp_thread *thread, int is_full)
{
	if (!(thread->gate & NFP_GATE_AUTO))
		return 0;
	int wanted = is_wanted(thread, is_full);
	uint32_t of_all, gate;
	do { // partner: set_gates in helper.c, as in open_gate of thread.c
		of_all = nfp_gate_of(thread);
		gate = wanted || !(of_all & NFP_GATE_AUTO) ? of_all : of_all & ~(uint32_t)NFP_GATE_INNER;
		if (thread->gate != gate)
			__atomic_store_n(&thread->gate, gate, __ATOMIC_SEQ_CST);
	} while (of_all != nfp_gate_of(thread));
	return wanted ? 0 : NFP_QUEUE_UNDETAILED;
}
