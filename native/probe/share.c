// SPDX-License-Identifier: Apache-2.0
// Shares: whose packets a call works on, where several receive calls have returned packets before any of them was worked
// on (VPP calls all input nodes of a turn, and then the graph for what all of them have received). A frame holds packets
// of one of these batches, or of several.
//
//   second receive call of a turn   each buffer of the turn is tagged with its batch (owner.c); calls are looked at from
//                                   now on
//   call of a node                  of its frame at most SAMPLES packets are looked up, evenly, and the last one; where
//                                   they are of one batch, that is the frame's. Else all are
//   SHARE records                   tell the monitor (native/core/share.c); none where all are of the last batch
//
// Frames are filled in the order of batches, but for packets that took different ways: so few are missed between two
// that are looked up. Turns of one batch cost a node's call one comparison. Runs on the target's threads; called by
// capture.c and thunk.S. Reads only what is known to be readable.
#include "late.h"
#include "abi/headers.h"

enum {
	SAMPLES = 16, // a smaller frame is looked up whole
	SHARES_MAX = 32, // batches of a turn that are told apart, from the last one on
	FRAME_PACKETS_MAX = 256,
};

// Packets of a frame by batch: how many batches have begun since.
struct shares {
	uint16_t packets[SHARES_MAX];
	uint8_t order[SHARES_MAX]; // of their first packets
	uint32_t count;
};

// The first batch of a turn has turned out not to be the only one.
static void tag_first(struct nfp_thread *thread, const struct nfp_program *program, uint64_t structure)
{
	struct nfp_late *late = nfp_late_of(thread);
	for (uint32_t i = 0; i < late->frames_known; i++) {
		struct nfp_burst burst = {.number_shift = program->number_shift};
		burst.numbers = nfp_pending_known(thread, program, structure, i, &burst.count);
		if (burst.numbers)
			nfp_owner_give(thread, late->turn_first, burst);
	}
}

static void begin_batch(struct nfp_late *late, uint64_t start_ticks, uint32_t count)
{
	struct nfp_late_batch *batch = nfp_late_batch_at(late, late->batches++);
	batch->start_ticks = start_ticks;
	batch->count = count;
	batch->gone = batch->drawn = 0;
}

// Where nobody asks for packets their numbers are read only from the second batch of a turn on.
static void receive_unasked(struct nfp_thread *thread, const struct nfp_program *program, uint64_t structure,
                            struct nfp_burst *burst, uint32_t count)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (late->turn_first == late->batches) {
		nfp_pending_note(thread, program, structure);
		return;
	}
	if (late->turn_first + 1 == late->batches)
		tag_first(thread, program, structure);
	burst->count = nfp_smaller(count, program->packets_max);
	burst->numbers = nfp_pending_numbers(thread, program, structure, &burst->count);
}

void nfp_share_receive(struct nfp_thread *thread, const struct nfp_program *program, uint64_t structure,
                       struct nfp_burst burst, uint32_t count, uint64_t start_ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (!(thread->gate & NFP_GATE_LATE)) {
		if (!(thread->gate & NFP_GATE_PACKETS))
			receive_unasked(thread, program, structure, &burst, count);
		if (burst.numbers)
			nfp_owner_give(thread, late->batches, burst);
		begin_batch(late, start_ticks, count);
	}
	if (late->batches - late->turn_first > 1) {
		nfp_owner_tag_newest(thread);
		thread->shares = (void *)nfp_shares_thunk;
	}
}

static uint32_t age_of(const struct nfp_thread *thread, const struct nfp_program *program, uint32_t number)
{
	const struct nfp_late *late = nfp_late_of(thread);
	uint64_t others = late->batches - late->turn_first; // what is older stands with the last one
	uint32_t age = nfp_owner_age(thread, number, program->number_shift);
	return age < nfp_smaller((uint32_t)others, SHARES_MAX) ? age : 0;
}

static void add(struct shares *shares, uint32_t age, uint32_t packets)
{
	if (!shares->packets[age])
		shares->order[shares->count++] = (uint8_t)age;
	shares->packets[age] = (uint16_t)(shares->packets[age] + packets);
}

static void find_shares(const struct nfp_thread *thread, const struct nfp_program *program,
                        const uint32_t *numbers, uint32_t count, struct shares *shares)
{
	uint32_t age = age_of(thread, program, numbers[count - 1]), at = 0;
	const uint32_t step = (count + SAMPLES - 1) / SAMPLES;
	while (at < count && age_of(thread, program, numbers[at]) == age)
		at += step;
	if (at >= count) {
		add(shares, age, count);
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		add(shares, age_of(thread, program, numbers[i]), 1);
}

static void write(struct nfp_thread *thread, uint32_t function, uint32_t low_sp, const struct shares *shares)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (shares->count == 1 && !shares->order[0])
		return;
	struct nfp_record *slot = nfp_reserve(thread, shares->count, NFP_LOST_PACKET);
	for (uint32_t i = 0; slot && i < shares->count; i++) {
		uint32_t age = shares->order[i];
		uint64_t start_ticks = nfp_late_batch_at(late, late->batches - 1 - age)->start_ticks;
		slot = nfp_put(slot, start_ticks << 16 | shares->packets[age],
		               function | (uint32_t)NFP_SHARE << NFP_KIND_SHIFT, low_sp);
	}
}

void nfp_share_call(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                    uint64_t structure, uint32_t low_sp)
{
	uint16_t count;
	struct shares shares = {.count = 0};
	if (!structure || !nfp_is_readable(structure + program->count_offset, sizeof(count)))
		return;
	__builtin_memcpy(&count, (const void *)(uintptr_t)(structure + program->count_offset), sizeof(count));
	const uint32_t *numbers =
	    count && count <= FRAME_PACKETS_MAX ? nfp_numbers_of(program, structure, count) : NULL;
	if (!numbers)
		return;
	find_shares(thread, program, numbers, count, &shares);
	write(thread, function, low_sp, &shares);
}

// thunk.S calls this. A function whose value a person captures has a program's number that is another one.
__attribute__((used)) void nfp_node_shares(struct nfp_thread *thread, uint32_t selector, uint64_t frame,
                                           uint32_t low_sp)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (selector >> NFP_KIND_SHIFT != NFP_NODE_PROGRAM || !thread->limit || !late->input)
		return;
	late->worked = 1;
	nfp_share_call(thread, selector & NFP_FUNCTION_MASK, late->input, frame, low_sp);
}
