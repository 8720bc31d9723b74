// SPDX-License-Identifier: Apache-2.0
// Receive, transmit and drop probes: writes the poll or the captured value, and packet records when they are
// wanted. Runs on the target's threads between two of its instructions; reads only what the NF itself is
// handed (the pointers of a burst, the headers of its packets) and at most packets_max of them. What a person
// described is checked first (validate.c).
#include "describe.h"
#include "detail.h"
#include "frame.h"
#include "late.h"
#include "queue.h"
#include "arch/arch.h"

// Argument numbers are checked by the monitor (adapters/base.py); a damaged one must not lead outside.
static uint64_t argument(const struct nfp_frame *frame, uint32_t number)
{
	return number < NFP_REGISTER_ARGUMENTS ? frame->arguments[number] : 0;
}

static uint32_t requested(const struct nfp_program *program, const struct nfp_frame *frame)
{
	if (program->requested_argument == NFP_CAPACITY)
		return program->packets_max;
	if (program->requested_argument == NFP_ABSENT)
		return program->count_from == NFP_COUNT_FIXED ? program->count_argument : 0;
	return (uint32_t)argument(frame, program->requested_argument) & program->count_mask;
}

static uint32_t counted(const struct nfp_program *program, const struct nfp_frame *frame)
{
	switch (program->count_from) {
	case NFP_COUNT_RETURN:
		return (uint32_t)nfp_frame_returned(frame) & program->count_mask;
	case NFP_COUNT_ARGUMENT:
		return (uint32_t)argument(frame, program->count_argument) & program->count_mask;
	case NFP_COUNT_MEMORY:
		return nfp_frame_kept(frame);
	default:
		return program->count_argument;
	}
}

// A packet of which nothing but its buffer is said.
static void write_buffer(struct nfp_thread *thread, uint32_t function, uint64_t buffer, uint32_t index)
{
	struct nfp_record *slot = nfp_reserve(thread, 1, NFP_LOST_PACKET);
	if (slot)
		nfp_put(slot, buffer, function | (uint32_t)NFP_PACKET << NFP_KIND_SHIFT, index << 16);
}

// A buffer that is given back: by whom it is still held decides whether it is free then. NULL is allowed.
static void write_freed(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                        uint64_t buffer, uint32_t index)
{
	uint16_t holders = 1;
	if (!buffer)
		return;
	if (program->holders != NFP_NO_OFFSET)
		__builtin_memcpy(&holders, (const uint8_t *)(uintptr_t)buffer + program->holders, 2);
	if (holders == 1)
		write_buffer(thread, function, buffer, index);
}

static void write_packets(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                          const struct nfp_burst *burst)
{
	uint64_t one = burst->pointers;
	const uint64_t *buffers = burst->single ? &one : (const uint64_t *)(uintptr_t)burst->pointers;
	uint32_t count = burst->single && burst->count ? 1 : burst->count;
	if (!(thread->gate & NFP_GATE_PACKETS) || !count)
		return;
	if (program->role == NFP_ROLE_FREE) {
		for (uint32_t i = 0; i < count; i++)
			write_freed(thread, function, program, buffers[i], i);
	} else if (program->role == NFP_ROLE_KEEP || program->role == NFP_ROLE_REPLACE) {
		for (uint32_t i = 0; i < count; i++)
			write_buffer(thread, function, buffers[i], i);
	} else {
		nfp_describe_burst(thread, function, program, buffers, count);
	}
}

// Who a packet is was said when it was received: its buffer is enough. The pointers may stand in larger items.
static void write_taken_over(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                             uint64_t pointers, uint32_t count)
{
	if (!(thread->gate & NFP_GATE_PACKETS) || !pointers)
		return;
	uint32_t described = program->pointers_single ? 1 : nfp_smaller(count, program->packets_max);
	for (uint32_t i = 0; i < described; i++) {
		uint64_t place = pointers + (uint64_t)i * (program->number_shift ? 8 : program->next_number);
		write_buffer(thread, function,
		             program->pointers_single ? pointers : *(const uint64_t *)(uintptr_t)place, i);
	}
}

static uint32_t received(struct nfp_program *program, const struct nfp_frame *frame)
{
	int is_zero = ((uint32_t)nfp_frame_returned(frame) & program->count_mask) == 0;
	if (program->when != NFP_WHEN_ALWAYS && is_zero != (program->when == NFP_WHEN_ZERO))
		return 0;
	if (program->count_from == NFP_COUNT_MEMORY)
		return nfp_count_in_memory(program, argument(frame, program->pointers_argument));
	return counted(program, frame);
}

// Whether the call may be described; counting alone follows the pointer of a batch only.
static int is_trusted(const struct nfp_thread *thread, struct nfp_program *program, uint64_t pointers,
                      uint32_t count)
{
	int describes = (thread->gate & (NFP_GATE_PACKETS | NFP_GATE_LATE)) != 0;
	if (!program->checked || !(describes || program->count_width))
		return 1;
	return nfp_is_plausible(program, pointers, count);
}

// Finds the buffers of numbers where somebody needs more than these: late.c does not.
static int name_buffers(struct nfp_thread *thread, struct nfp_program *program, struct nfp_burst *burst)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (!(thread->gate & NFP_GATE_PACKETS) && nfp_is_proven(program))
		return 1;
	uint32_t named = nfp_name_buffers(program, burst->numbers, burst->count, late->named);
	if (named < burst->count)
		return nfp_switch_off(program, NFP_VERDICT_NUMBER_WRONG, burst->numbers[named]);
	burst->pointers = (uint64_t)(uintptr_t)late->named;
	return !program->checked || nfp_is_plausible(program, burst->pointers, burst->count);
}

// The same for a call that takes packets over from a queue. How many they are is always asked for: it does not say so itself.
static int find_taken(struct nfp_thread *thread, struct nfp_program *program, const struct nfp_frame *frame,
                      struct nfp_burst *burst)
{
	if (__atomic_load_n(&program->verdict, __ATOMIC_RELAXED) != NFP_VERDICT_NONE)
		return 0;
	uint64_t queue = argument(frame, program->queue_argument);
	*burst = (struct nfp_burst){.number_shift = program->number_shift};
	burst->numbers = nfp_pending_taken(thread, program, argument(frame, program->pointers_argument),
	                                   queue, &burst->count);
	if (!burst->count)
		return 0;
	return thread->gate & NFP_GATE_PACKETS ? name_buffers(thread, program, burst) : 1;
}

// The same as find_burst where packets are named by numbers: they are in the argument's structure, or, when they are
// received, in structures that the call has filled.
static int find_numbers(struct nfp_thread *thread, struct nfp_program *program, uint64_t structure,
                        uint32_t count, struct nfp_burst *burst)
{
	uint32_t found = nfp_smaller(count, program->packets_max);
	*burst = (struct nfp_burst){.number_shift = program->number_shift};
	if (!structure || !(thread->gate & (NFP_GATE_PACKETS | NFP_GATE_LATE)))
		return 1;
	if (__atomic_load_n(&program->verdict, __ATOMIC_RELAXED) != NFP_VERDICT_NONE)
		return 0;
	if (program->role == NFP_ROLE_RECEIVE) {
		burst->numbers = nfp_pending_numbers(thread, program, structure, &found);
	} else if (program->role == NFP_ROLE_DEQUEUE) {
		burst->numbers = nfp_pending_returned(thread, program, structure, &found);
	} else {
		found = nfp_smaller(found, NFP_LATE_POINTERS);
		burst->numbers = nfp_numbers_of(program, structure, found);
		nfp_late_of(thread)->worked = 1;
		if (!burst->numbers)
			return nfp_switch_off(program, NFP_VERDICT_POINTERS_UNREADABLE, structure);
	}
	burst->count = burst->numbers ? found : 0;
	return name_buffers(thread, program, burst);
}

// The packets of a call. Returns 0 where they are not what somebody described.
static int find_burst(struct nfp_thread *thread, struct nfp_program *program, const struct nfp_frame *frame,
                      uint32_t count, struct nfp_burst *burst)
{
	uint64_t pointers = argument(frame, program->pointers_argument);
	if (program->number_shift && program->role == NFP_ROLE_DEQUEUE &&
	    program->queue_argument != NFP_ABSENT)
		return find_taken(thread, program, frame, burst);
	if (program->number_shift)
		return find_numbers(thread, program, pointers, count, burst);
	pointers += program->pointers_offset;
	*burst = (struct nfp_burst){.pointers = pointers, .single = program->pointers_single};
	if (program->pointers_argument != NFP_ABSENT)
		burst->count = program->pointers_single ? 1 : nfp_smaller(count, program->packets_max);
	return is_trusted(thread, program, pointers, count);
}

// Most receive calls of numbered buffers with late capture: late->numbers holds the packets of the call. Returns 0 where
// find_burst has to look.
static inline int take_only(struct nfp_thread *thread, const struct nfp_program *program,
                            const struct nfp_frame *frame, uint32_t count)
{
	uint64_t structure = argument(frame, program->pointers_argument);
	return (thread->gate & (NFP_GATE_PACKETS | NFP_GATE_LATE)) == NFP_GATE_LATE &&
	       program->role == NFP_ROLE_RECEIVE && structure && nfp_is_proven(program) &&
	       !program->verdict && nfp_pending_take_only(nfp_late_of(thread), program, structure, count);
}

// The slots of readings, before a record of the call.
static struct nfp_record *put_readings(struct nfp_record *slot, const struct nfp_kept_readings *readings,
                                       uint32_t sp)
{
	for (uint32_t pair = 0; pair < readings->pairs; pair++)
		slot = nfp_put(slot, readings->lows[pair],
		               readings->check[pair] | (NFP_COUNTERS + pair) << NFP_KIND_SHIFT, sp);
	return slot;
}

struct polled {
	const struct nfp_kept_readings *entry, *exit; // null pointers: the thread is not counted
	uint64_t ticks; // of the exit
	uint32_t function, queue, count, asked;
	uint64_t arrival_ticks; // of its first packet; 0: not known
};

static inline __attribute__((always_inline)) void
write_poll(struct nfp_thread *thread, const struct nfp_frame *frame, const struct polled *polled)
{
	uint32_t slots = 3 + (polled->arrival_ticks != 0);
	slots += polled->entry ? polled->entry->pairs + polled->exit->pairs : 0;
	struct nfp_record *slot = nfp_reserve(thread, slots, NFP_LOST_POLL);
	if (!slot)
		return;
	if (polled->entry)
		slot = put_readings(slot, polled->entry, nfp_low_sp(frame));
	slot = nfp_put_polled(slot, thread, polled->function, frame, polled->queue, polled->arrival_ticks);
	if (polled->entry)
		slot = put_readings(slot, polled->exit, nfp_low_sp(frame));
	nfp_put_returned(slot, polled->function, polled->ticks, polled->count, polled->asked);
}

static inline __attribute__((always_inline)) void
count_empty_poll(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks)
{
	thread->shared->empty_polls++;
	thread->shared->empty_ticks += ticks - frame->ticks;
}

// The packets of a receive call that returned some; 0: none can be told.
static inline __attribute__((always_inline)) int find_received(struct nfp_thread *thread,
                                                               struct nfp_program *program,
                                                               const struct nfp_frame *frame, uint32_t count,
                                                               int is_numbered, struct nfp_burst *burst)
{
	if (is_numbered) {
		nfp_share_begin(thread, program);
		if (take_only(thread, program, frame, count)) {
			*burst = (struct nfp_burst){.count = count,
			                            .number_shift = program->number_shift,
			                            .numbers = nfp_late_of(thread)->numbers};
			return 1;
		}
	}
	return find_burst(thread, program, frame, count, burst);
}

// Writes the packets of a batch that has begun, or keeps them for late capture.
static inline __attribute__((always_inline)) void keep_received(struct nfp_thread *thread, uint32_t function,
                                                                struct nfp_program *program,
                                                                const struct nfp_frame *frame,
                                                                struct nfp_burst burst, uint32_t count,
                                                                int is_numbered, int takes_over)
{
	if (takes_over)
		write_taken_over(thread, function, program, burst.pointers, count);
	else if (!(thread->gate & NFP_GATE_LATE))
		write_packets(thread, function, program, &burst);
	else if (is_numbered)
		nfp_late_receive_numbers(thread, function, burst.count, frame->ticks);
	else
		nfp_late_receive(thread, function, burst, frame->ticks);
	if (is_numbered && !takes_over && nfp_share_is_asked(thread))
		nfp_share_receive(thread, program, argument(frame, program->pointers_argument), burst, count,
		                  frame->ticks);
}

static inline __attribute__((always_inline)) void
receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks, uint32_t selector,
             const struct nfp_kept_readings *entry, const struct nfp_kept_readings *exit)
{
	struct nfp_program *program = &nfp_library.programs[selector >> NFP_KIND_SHIFT];
	uint32_t function = selector & NFP_FUNCTION_MASK;
	uint32_t count = received(program, frame);
	thread = nfp_thread_ready(thread, NFP_LOST_POLL);
	if (!thread)
		return;
	uint32_t queue = nfp_queue_of(argument(frame, program->queue_argument), selector);
	if (count == 0) { // a thread's first poll, or the return value does not say so
		nfp_queue_emptied(thread, queue, frame->ticks);
		count_empty_poll(thread, frame, ticks);
		return;
	}
	struct nfp_burst burst;
	int is_numbered = program->number_shift != 0;
	if (!find_received(thread, program, frame, count, is_numbered, &burst))
		return;
	int takes_over = program->role == NFP_ROLE_DEQUEUE;
	count = takes_over && burst.numbers ? burst.count : count;
	if (!count) {
		count_empty_poll(thread, frame, ticks);
		return;
	}
	thread->shared->batches++;
	*(takes_over ? &thread->shared->taken_over_packets : &thread->shared->received_packets) += count;
	uint32_t asked = nfp_smaller(requested(program, frame), 0xffff);
	uint32_t marks = nfp_detail_begin(thread, asked && count >= asked);
	marks |= nfp_queue_batch(thread, queue, frame->ticks);
	if (takes_over && burst.numbers && program->queue_argument != NFP_ABSENT &&
	    thread->gate & NFP_GATE_LATE)
		marks = nfp_handoff_take(thread, burst, frame->ticks, marks);
	if (count < asked)
		nfp_queue_emptied(thread, queue, frame->ticks);
	uint64_t arrival_ticks =
	    is_numbered || takes_over ? 0 : nfp_late_first_arrival(thread, program, burst, frame->ticks);
	const struct polled polled = {entry,         exit,  ticks, function,
	                              queue | marks, count, asked, arrival_ticks};
	write_poll(thread, frame, &polled);
	keep_received(thread, function, program, frame, burst, count, is_numbered, takes_over);
}

void nfp_any_receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                          uint32_t selector)
{
	receive_exit(thread, frame, ticks, selector, NULL, NULL);
}

// The counters are read first: all that follows is in no count of the call.
void nfp_counted_exit(struct nfp_thread *thread, const struct nfp_counted_frame *frame, uint64_t ticks,
                      uint32_t selector)
{
	static const struct nfp_kept_readings none;
	struct nfp_kept_readings exit;
	nfp_counters_keep(thread, &exit);
	int is_of_now = frame->readings.epoch == exit.epoch; // else it began in a session before
	receive_exit(thread, &frame->frame, ticks, selector, is_of_now ? &frame->readings : &none, &exit);
}

// What a call is handed, at its entry.
static void read_packets(struct nfp_thread *thread, uint32_t function, struct nfp_program *program,
                         struct nfp_frame *frame, uint32_t count, uint64_t ticks)
{
	struct nfp_burst burst;
	if (!find_burst(thread, program, frame, count, &burst))
		nfp_frame_keep(frame, 0);
	else if (thread->gate & NFP_GATE_LATE && program->role == NFP_ROLE_REPLACE && burst.number_shift)
		nfp_owner_forget(thread, burst);
	else if (thread->gate & NFP_GATE_LATE && nfp_late_sends_away(program))
		nfp_late_enter(thread, program, burst, nfp_low_sp(frame), ticks);
	else
		write_packets(thread, function, program, &burst);
}

// Most calls of numbered buffers with late capture: nothing is read but three numbers.
static int enter_next(struct nfp_thread *thread, const struct nfp_program *program,
                      const struct nfp_frame *frame, uint32_t count, uint64_t ticks)
{
	if (count > NFP_LATE_POINTERS || !nfp_is_proven(program) || program->verdict)
		return 0;
	const uint32_t *numbers = nfp_numbers_of(program, argument(frame, program->pointers_argument), count);
	return numbers && nfp_late_enter_next(thread, program, numbers, count, nfp_low_sp(frame), ticks);
}

// Before they are put into queues of other threads.
static void pin_packets(struct nfp_thread *thread, const struct nfp_program *program,
                        const struct nfp_frame *frame, uint32_t count)
{
	uint64_t numbers = argument(frame, program->pointers_argument);
	uint32_t described = nfp_smaller(count, program->packets_max);
	if (!thread || !numbers || program->verdict ||
	    !nfp_is_readable(numbers, described * sizeof(uint32_t)))
		return;
	nfp_owner_tag_newest(thread); // who takes them over looks them up, perhaps before the call ends
	nfp_handoff_pin(thread, (struct nfp_burst){.count = described,
	                                           .number_shift = program->number_shift,
	                                           .numbers = (const uint32_t *)(uintptr_t)numbers});
}

void nfp_any_packets_entry(struct nfp_thread *thread, struct nfp_frame *frame, uint64_t ticks,
                           uint32_t selector)
{
	struct nfp_program *program = &nfp_library.programs[selector >> NFP_KIND_SHIFT];
	uint32_t function = selector & NFP_FUNCTION_MASK, count = requested(program, frame);
	ticks = frame->ticks; // it has no end yet
	if (program->role == NFP_ROLE_HAND_OVER) {
		// What is said of it is said at its exit. Where it takes an argument from the stack this is the place.
		frame->arguments[0] = nfp_frame_stack_argument(frame);
		if (thread->gate & NFP_GATE_LATE)
			pin_packets(nfp_thread_ready(thread, NFP_LOST_PACKET), program, frame, count);
		return;
	}
	if (program->count_width) {
		count = nfp_count_in_memory(program, argument(frame, program->pointers_argument));
		nfp_frame_keep(frame, count);
	}
	if (thread->gate & NFP_GATE_LATE && program->number_shift && thread->limit && count &&
	    enter_next(thread, program, frame, count, ticks))
		return;
	thread = nfp_thread_ready(thread, NFP_LOST_PACKET);
	if (!thread)
		return;
	if (program->role == NFP_ROLE_COMMAND || program->role == NFP_ROLE_HOLD)
		nfp_text_write(thread, function, argument(frame, program->pointers_argument),
		               program->pointers_single);
	else if (program->role == NFP_ROLE_MESSAGE)
		nfp_message_write(thread, function,
		                  (const char *)argument(frame, program->pointers_argument));
	else
		read_packets(thread, function, program, frame, count, ticks);
}

// Of numbered buffers: which of the nodes that share the function has run. What was asked for is in its frame anyway.
static uint32_t node_of(const struct nfp_frame *frame)
{
	uint32_t offset = nfp_library.header->node, node = 0;
	uint64_t runtime = argument(frame, 1);
	if (offset && runtime && nfp_is_readable(runtime + offset, sizeof(node)))
		__builtin_memcpy(&node, (const void *)(uintptr_t)(runtime + offset), sizeof(node));
	return node;
}

// Of a call that is about no packets.
static void put_exit(struct nfp_thread *thread, uint32_t function, const struct nfp_frame *frame,
                     uint64_t ticks)
{
	if (thread->counted)
		nfp_counters_write(thread, nfp_low_sp(frame));
	struct nfp_record *slot = nfp_reserve(thread, 1, NFP_LOST_CALL);
	if (slot)
		nfp_put(slot, ticks, function | (uint32_t)NFP_EXIT << NFP_KIND_SHIFT, nfp_low_sp(frame));
}

static void put_handed(struct nfp_thread *thread, uint32_t function, const struct nfp_frame *frame,
                       uint64_t ticks, uint32_t count, uint32_t asked)
{
	struct nfp_record *slot = nfp_reserve(thread, 2, NFP_LOST_CALL);
	if (slot)
		nfp_put_handed(slot, function, frame, ticks, count, asked);
}

static void count_handed(struct nfp_thread_shared *shared, uint32_t role, uint32_t count, uint32_t asked)
{
	if (role == NFP_ROLE_DROP) {
		shared->dropped_packets += count;
	} else if (role == NFP_ROLE_PUNT) {
		shared->punted_packets += count;
	} else if (role == NFP_ROLE_TRANSMIT) {
		shared->transmit_calls++;
		shared->transmitted_packets += count;
		shared->refused_packets += asked > count ? asked - count : 0;
	}
}

// Packets were put into queues of other threads. The call frees what does not fit, and does not say which these are: that is
// told by who takes them over.
static void hand_over(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                      const struct nfp_frame *frame, uint32_t count, uint32_t asked)
{
	uint64_t numbers = argument(frame, program->pointers_argument);
	uint32_t described = nfp_smaller(asked, program->packets_max);
	thread->shared->handed_over_packets += count;
	if (count >= asked)
		return;
	thread->shared->dropped_packets += asked - count;
	if (!(thread->gate & NFP_GATE_PACKETS) || !nfp_is_readable(numbers, described * sizeof(uint32_t)))
		return;
	for (uint32_t i = 0; i < described; i++) {
		uint64_t buffer = nfp_numbered_at(program, ((const uint32_t *)(uintptr_t)numbers)[i]);
		if (buffer)
			write_buffer(thread, function, buffer, i);
	}
}

void nfp_any_packets_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t ticks,
                          uint32_t selector)
{
	const struct nfp_program *program = &nfp_library.programs[selector >> NFP_KIND_SHIFT];
	uint32_t function = selector & NFP_FUNCTION_MASK;
	uint32_t count = counted(program, frame);
	uint32_t asked = program->count_width ? nfp_frame_kept(frame) : requested(program, frame);
	if (program->verdict)
		count = asked = 0;
	thread = nfp_thread_ready(thread, NFP_LOST_CALL);
	if (!thread)
		return;
	if (nfp_role_is_of_barrier(program->role)) {
		put_exit(thread, function, frame, ticks);
		return;
	}
	thread->handed_ticks = ticks;
	if (program->number_shift)
		nfp_late_of(thread)->worked = 1; // what stands in frames later is of another turn
	if (program->role == NFP_ROLE_HAND_OVER) { // whose its packets are is told where they are taken over
		hand_over(thread, function, program, frame, count, asked);
		if (thread->counted)
			nfp_counters_write(thread, nfp_low_sp(frame));
		put_handed(thread, function, frame, ticks, count, asked);
		return;
	}
	count_handed(thread->shared, program->role, count, asked);
	if (thread->counted)
		nfp_counters_write(thread, nfp_low_sp(frame));
	if (program->number_shift && thread->shares)
		nfp_share_call(thread, function, program, argument(frame, program->pointers_argument),
		               nfp_low_sp(frame));
	if (thread->gate & NFP_GATE_LATE && !nfp_late_pass_next(thread, nfp_low_sp(frame), ticks) &&
	    nfp_late_sends_away(program))
		nfp_late_exit(thread, function, program, nfp_low_sp(frame), ticks, count);
	put_handed(thread, function, frame, ticks, count, program->number_shift ? node_of(frame) : asked);
}
