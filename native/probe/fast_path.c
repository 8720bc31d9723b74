// SPDX-License-Identifier: Apache-2.0
// What nearly every call of a forwarder is: arguments and a return value say which packets it is about, a ring with
// room, no header is to be read now; of numbered buffers: the next ones of the newest batch. These functions do for such
// a call what those of capture.c do for any, with fewer instructions; what is not such a call is handed on before a record
// was reserved.
#include "frame.h"
#include "late.h"
#include "queue.h"

// Gates under which headers are read at once or the thread's own gate changes.
#define ELSEWHERE (NFP_GATE_PACKETS | NFP_GATE_AUTO)

static inline const struct nfp_program *program_of(uint32_t selector)
{
	return &nfp_library.programs[selector >> NFP_KIND_SHIFT];
}

static inline uint32_t returned(const struct nfp_program *program, const struct nfp_frame *frame)
{
	return (uint32_t)nfp_frame_returned(frame) & program->count_mask;
}

static inline uint32_t requested(const struct nfp_program *program, const struct nfp_frame *frame)
{
	return (uint32_t)frame->arguments[program->requested_argument] & program->count_mask;
}

static inline struct nfp_burst burst_of(const struct nfp_program *program, const struct nfp_frame *frame,
                                        uint32_t count)
{
	return (struct nfp_burst){.pointers = frame->arguments[program->pointers_argument],
	                          .count = nfp_smaller(count, program->packets_max)};
}

// A block without a ring of this session has no room at all.
static inline int has_room(const struct nfp_thread *thread, uint32_t records)
{
	return thread->cursor + (uint64_t)records * NFP_RECORD_BYTES <= thread->room;
}

void nfp_receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                      uint32_t selector)
{
	const struct nfp_program *program = program_of(selector);
	uint32_t count = returned(program, frame);
	if (__builtin_expect(!program->plain || !count || thread->gate & ELSEWHERE || !has_room(thread, 4),
	                     0)) {
		nfp_any_receive_exit(thread, frame, ticks, selector);
		return;
	}
	uint32_t function = selector & NFP_FUNCTION_MASK;
	uint32_t asked = nfp_smaller(requested(program, frame), 0xffff);
	uint32_t queue = nfp_queue_of(frame->arguments[program->queue_argument], selector);
	uint32_t marks = nfp_queue_batch(thread, queue, frame->ticks);
	if (count < asked)
		nfp_queue_emptied(thread, queue, frame->ticks);
	struct nfp_burst burst = burst_of(program, frame, count);
	uint64_t arrival_ticks = nfp_late_first_arrival(thread, program, burst, frame->ticks);
	struct nfp_record *slot = nfp_take(thread, arrival_ticks ? 4 : 3);
	slot = nfp_put_polled(slot, thread, function, frame, queue | marks, arrival_ticks);
	nfp_put_returned(slot, function, ticks, count, asked);
	thread->shared->batches++;
	thread->shared->received_packets += count;
	if (thread->gate & NFP_GATE_LATE)
		nfp_late_receive(thread, function, burst, frame->ticks);
}

// Of numbered buffers with late capture: mostly a frame holds the next ones of the newest batch, which is young.
static __attribute__((noinline)) void enter_numbered(struct nfp_thread *thread, struct nfp_frame *frame,
                                                     uint64_t ticks, uint32_t selector)
{
	const struct nfp_program *program = program_of(selector);
	const uint32_t *numbers = NULL;
	uint32_t count = 0;
	if (thread->limit && program->count_width && !program->verdict &&
	    program->pointers_argument < NFP_REGISTER_ARGUMENTS && nfp_is_proven(program))
		numbers =
		    nfp_late_numbers_in_page(program, frame->arguments[program->pointers_argument], &count);
	if (numbers && count && count <= nfp_smaller(program->packets_max, NFP_LATE_POINTERS) &&
	    nfp_late_enter_next(thread, program, numbers, count, nfp_low_sp(frame), frame->ticks))
		nfp_frame_keep(frame, count);
	else
		nfp_any_packets_entry(thread, frame, ticks, selector);
}

void nfp_packets_entry(struct nfp_thread *thread, struct nfp_frame *frame, uint64_t ticks, uint32_t selector)
{
	const struct nfp_program *program = program_of(selector);
	if (program->number_shift && thread->gate & NFP_GATE_LATE) {
		enter_numbered(thread, frame, ticks, selector);
		return;
	}
	if (__builtin_expect(!program->plain || thread->gate & ELSEWHERE || !thread->limit, 0))
		nfp_any_packets_entry(thread, frame, ticks, selector);
	else if (thread->gate & NFP_GATE_LATE)
		nfp_late_enter(thread, program, burst_of(program, frame, requested(program, frame)),
		               nfp_low_sp(frame), frame->ticks);
}

// The last step of a call that handed packets on.
static inline __attribute__((always_inline)) void packets_exit(struct nfp_thread *thread,
                                                               const struct nfp_program *program,
                                                               const struct nfp_frame *frame, uint64_t ticks,
                                                               uint32_t selector)
{
	if (__builtin_expect(thread->counted || !has_room(thread, 2), 0)) {
		nfp_any_packets_exit(thread, frame, ticks, selector);
		return;
	}
	uint32_t count = returned(program, frame), asked = requested(program, frame);
	struct nfp_thread_shared *shared = thread->shared;
	nfp_put_handed(nfp_take(thread, 2), selector & NFP_FUNCTION_MASK, frame, ticks, count, asked);
	thread->handed_ticks = ticks;
	shared->transmit_calls++;
	shared->transmitted_packets += count;
	if (__builtin_expect(asked > count, 0))
		shared->refused_packets += asked - count;
}

// The same for a call that late capture looks at: mostly nothing is to be done for its packets.
static __attribute__((noinline)) void
late_packets_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks, uint32_t selector)
{
	const struct nfp_program *program = program_of(selector);
	uint32_t low_sp = nfp_low_sp(frame);
	int is_passed = 0;
	if (nfp_late_is_behind(thread, low_sp)) {
		struct nfp_burst burst = burst_of(program, frame, requested(program, frame));
		is_passed = nfp_late_pass_newest(thread, burst, ticks);
		if (!is_passed)
			nfp_late_catch_up(thread, burst, low_sp);
	}
	if (is_passed || nfp_late_pass(thread, low_sp, ticks))
		packets_exit(thread, program, frame, ticks, selector);
	else
		nfp_any_packets_exit(thread, frame, ticks, selector);
}

// No call but as the last step, so that nothing is pushed.
void nfp_packets_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                      uint32_t selector)
{
	const struct nfp_program *program = program_of(selector);
	// Not for a block of an earlier session: its index is another thread's now.
	if (__builtin_expect(!program->plain || !thread->limit, 0))
		nfp_any_packets_exit(thread, frame, ticks, selector);
	else if (thread->gate & NFP_GATE_LATE && thread->handing == nfp_low_sp(frame))
		late_packets_exit(thread, frame, ticks, selector);
	else
		packets_exit(thread, program, frame, ticks, selector);
}
