// SPDX-License-Identifier: Apache-2.0
// Packets of receive calls that only say how many they have received (VPP's input nodes, whose frame is NULL). They are
// in the frames that the call has filled for other nodes. Those frames are pending when it returns:
//
//   argument + pending -> | frame, 8 bytes | 8 bytes more | next frame ...; their number is 8 bytes before the first
//   frame -> the number of its packets, and their numbers
//
// Other calls of the same turn have filled frames before, and a frame with room left is filled on by the next one. So it
// is remembered how full each was after the last receive call; where that does not give as many packets as the call says,
// a turn has begun that nobody saw. What another thread has handed over stands before what is received.
//
// Calls that take packets over come first in a turn, one for each queue, in the order of the queues' addresses, and each
// fills new frames. They do not say how many packets there were.
//
// Runs on the target's threads; called by capture.c. Reads only what is known to be readable.
#include "late.h"
#include "nfprobe/headers.h"

enum {
	ENTRY_BYTES = 16,
	PENDING_MAX = 4096, // frames of a turn; with more its packets are only counted
	FRAME_PACKETS_MAX = 256,
};

// The frames that are pending.
struct pending {
	const struct nfp_program *program;
	struct nfp_late *late;
	const uint8_t *entries;
	uint32_t count;
};

static int find_pending(struct pending *pending, uint64_t argument)
{
	uint64_t place = argument + nfp_library.header->pending;
	if (!nfp_is_readable(place, sizeof(uint64_t)))
		return 0;
	uint64_t entries = nfp_load_64((const uint8_t *)(uintptr_t)place);
	if (!entries || !nfp_is_readable(entries - 8, sizeof(uint32_t)))
		return 0;
	pending->entries = (const uint8_t *)(uintptr_t)entries;
	pending->count = nfp_load_32(pending->entries - 8);
	return pending->count <= PENDING_MAX &&
	       nfp_is_readable(entries, (uint64_t)pending->count * ENTRY_BYTES);
}

static uint64_t frame_at(const struct pending *pending, uint32_t i)
{
	return nfp_load_64(pending->entries + (uint64_t)i * ENTRY_BYTES);
}

// How many packets a frame holds; UINT32_MAX: it is none.
static uint32_t packets_of(const struct pending *pending, uint64_t frame)
{
	uint16_t count;
	uint64_t place = frame + pending->program->count_offset;
	if (!frame || !nfp_is_readable(place, sizeof(count)))
		return UINT32_MAX;
	__builtin_memcpy(&count, (const void *)(uintptr_t)place, sizeof(count));
	return count <= FRAME_PACKETS_MAX ? count : UINT32_MAX;
}

// Of a frame's packets, how many stood there after the last receive call.
static uint32_t known_of(const struct nfp_late *late, uint32_t i, uint64_t frame, uint32_t packets)
{
	const struct nfp_late_frame *known = &late->frames[i]; // frames_known is at most NFP_LATE_FRAMES
	if (i >= late->frames_known || known->frame != frame || known->packets > packets)
		return 0;
	return known->packets;
}

// Packets that stand in frames since the last receive call; UINT32_MAX: something is no frame.
static uint32_t count_new(const struct pending *pending)
{
	uint32_t sum = 0;
	for (uint32_t i = 0; i < pending->count; i++) {
		uint64_t frame = frame_at(pending, i);
		uint32_t packets = packets_of(pending, frame);
		if (packets == UINT32_MAX)
			return UINT32_MAX;
		sum += packets - known_of(pending->late, i, frame, packets);
	}
	return sum;
}

// Takes the numbers of a frame's packets from `first` on.
static uint32_t take_packets(const struct pending *pending, uint64_t frame, uint32_t first, uint32_t packets,
                             uint32_t taken)
{
	const uint32_t *numbers = nfp_numbers_of(pending->program, frame, packets);
	if (!numbers)
		return UINT32_MAX;
	uint32_t count = nfp_smaller(packets - first, NFP_LATE_NUMBERS - taken);
	nfp_late_copy_numbers(pending->late->numbers + taken, numbers + first, count);
	return taken + count;
}

// Takes the numbers of all that is new but the first `before`. Returns how many; UINT32_MAX: they cannot be read.
static uint32_t take_new(const struct pending *pending, uint32_t before)
{
	struct nfp_late *late = pending->late;
	uint32_t taken = 0;
	for (uint32_t i = 0; i < pending->count && taken != UINT32_MAX; i++) {
		uint64_t frame = frame_at(pending, i);
		uint32_t packets = packets_of(pending, frame);
		uint32_t first = known_of(late, i, frame, packets);
		uint32_t left_out = nfp_smaller(before, packets - first);
		before -= left_out;
		taken = take_packets(pending, frame, first + left_out, packets, taken);
		if (i < NFP_LATE_FRAMES)
			late->frames[i] = (struct nfp_late_frame){.frame = frame, .packets = packets};
	}
	late->frames_known = nfp_smaller(pending->count, NFP_LATE_FRAMES);
	return taken;
}

void nfp_pending_note(struct nfp_thread *thread, const struct nfp_program *program, uint64_t argument)
{
	struct nfp_late *late = nfp_late_of(thread);
	struct pending pending = {.program = program, .late = late};
	late->frames_known = late->worked = 0;
	if (!find_pending(&pending, argument))
		return;
	uint32_t count = nfp_smaller(pending.count, NFP_LATE_FRAMES);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t frame = frame_at(&pending, i);
		uint32_t packets = packets_of(&pending, frame);
		if (packets == UINT32_MAX)
			return;
		late->frames[i] = (struct nfp_late_frame){.frame = frame, .packets = packets};
	}
	late->frames_known = count;
}

const uint32_t *nfp_pending_known(const struct nfp_thread *thread, const struct nfp_program *program,
                                  uint64_t argument, uint32_t i, uint32_t *count)
{
	struct nfp_late *late = nfp_late_of(thread);
	struct pending pending = {.program = program, .late = late};
	if (!find_pending(&pending, argument) || i >= pending.count)
		return NULL;
	uint64_t frame = frame_at(&pending, i);
	uint32_t packets = packets_of(&pending, frame);
	if (packets == UINT32_MAX)
		return NULL;
	*count = known_of(late, i, frame, packets);
	return nfp_numbers_of(program, frame, *count);
}

const uint32_t *nfp_pending_numbers(struct nfp_thread *thread, const struct nfp_program *program,
                                    uint64_t argument, uint32_t *count)
{
	struct nfp_late *late = nfp_late_of(thread);
	struct pending pending = {.program = program, .late = late};
	uint32_t received = *count;
	*count = 0;
	late->taken_queue = UINT64_MAX;
	if (late->worked)
		late->frames_known = late->worked = 0;
	if (!find_pending(&pending, argument))
		return NULL;
	uint32_t found = count_new(&pending);
	if (found < received && late->frames_known) {
		late->frames_known = 0;
		found = count_new(&pending);
	}
	if (found == UINT32_MAX || found < received)
		return NULL;
	uint32_t taken = take_new(&pending, found - received);
	if (taken == UINT32_MAX)
		return NULL;
	*count = taken;
	return late->numbers;
}

const uint32_t *nfp_pending_taken(struct nfp_thread *thread, const struct nfp_program *program,
                                  uint64_t argument, uint64_t queue, uint32_t *count)
{
	struct nfp_late *late = nfp_late_of(thread);
	struct pending pending = {.program = program, .late = late};
	*count = 0;
	if (late->worked || queue <= late->taken_queue) // the first one of a turn
		late->frames_known = late->worked = 0;
	late->taken_queue = queue;
	if (!find_pending(&pending, argument) || count_new(&pending) == UINT32_MAX)
		return NULL;
	uint32_t taken = take_new(&pending, 0);
	if (taken == UINT32_MAX)
		return NULL;
	*count = taken;
	return late->numbers;
}
