// SPDX-License-Identifier: Apache-2.0
// The end of a session while packets are on their way: probes are taken out one after the other, and until then each thread
// ends what it works on. Its next receive call that returns packets after something else was recorded begins a turn: that one
// is not recorded any more, nor is what follows. Several receive calls may belong to one turn (VPP's input nodes), with
// nothing recorded in between. Called by helper.c, and by the probes of receive functions by way of thunk.S.
#include "ending.h"
#include "frame.h"
#include "library.h"

static void set_exits(struct nfp_thread *thread, const void *receive, const void *counted)
{
	__atomic_store_n(&thread->ending, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&thread->receive_exit, (void *)receive, __ATOMIC_RELEASE);
	__atomic_store_n(&thread->counted_exit, (void *)counted, __ATOMIC_RELEASE);
}

static void set_all_exits(const void *receive, const void *counted)
{
	set_exits(&nfp_null_thread, receive, counted); // of threads that begin
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (nfp_library.threads[i].shared)
			set_exits(&nfp_library.threads[i], receive, counted);
}

void nfp_turns_end(void)
{
	set_all_exits(nfp_ending_receive_exit_thunk, nfp_ending_counted_exit_thunk);
}

void nfp_turns_go_on(void)
{
	set_all_exits(nfp_receive_exit_thunk, nfp_counted_exit_thunk);
}

// Whether this receive call begins a turn. The thread is silent then.
static int is_over(struct nfp_thread *thread)
{
	if (!thread->limit || !thread->ending || thread->ending == thread->cursor)
		return 0;
	__atomic_store_n(&thread->gate, 0, __ATOMIC_RELAXED);
	return 1;
}

void nfp_ending_receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                             uint32_t selector)
{
	if (is_over(thread))
		return;
	nfp_receive_exit(thread, frame, ticks, selector);
	thread->ending = thread->cursor;
}

void nfp_ending_counted_exit(struct nfp_thread *thread, const struct nfp_counted_frame *frame, uint64_t ticks,
                             uint32_t selector)
{
	if (is_over(thread))
		return;
	nfp_counted_exit(thread, frame, ticks, selector);
	thread->ending = thread->cursor;
}
