// SPDX-License-Identifier: Apache-2.0
// What the C code of probes costs: one of NFP_TIMED_EVERY calls of it is timed, which thunk.S counts. A prime number, so that
// each of the three calls of a batch comes up as often as the others. What the templates themselves cost is not in it: they
// are calibrated (calibrate.c). A thread whose counters are read is not timed: they would count that, too. The monitor has
// the sum as the session's overhead.
#include "frame.h"
#include "library.h"

// Longer ones were interrupted: that was nothing of ours.
#define INTERRUPTED_TICKS 65536

typedef void probe_code(struct nfp_thread *, struct nfp_frame *, uint64_t, uint32_t);

// thunk.S calls this.
__attribute__((used)) void nfp_timed(struct nfp_thread *thread, struct nfp_frame *frame, uint64_t ticks,
                                     uint32_t selector, probe_code *code)
{
	uint64_t cursor = thread->cursor, begin_ticks = nfp_ticks();
	code(thread, frame, ticks, selector);
	uint64_t took_ticks = nfp_ticks() - begin_ticks;
	thread->until_timed = NFP_TIMED_EVERY - 1;
	int is_idle = code == (probe_code *)(uintptr_t)nfp_receive_exit && thread->cursor == cursor;
	if (!thread->limit || is_idle || took_ticks > INTERRUPTED_TICKS) // an idle poll delays no packet
		return;
	thread->shared->timed_calls++;
	thread->shared->timed_ticks += took_ticks;
}
