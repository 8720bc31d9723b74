// SPDX-License-Identifier: Apache-2.0
// Buffers that the NF names by numbers of 32 bits instead of pointers (VPP's buffer indices). All of them lie in one
// piece of memory that the monitor has found to be readable: nothing outside of it is read, whatever a number or a
// buffer says. Runs on the target's threads.
//
//   buffers_start + (number << number_shift) -> | fields ... | data_pointer: bytes, from the signed data_offset on |
#include "late.h"
#include "abi/headers.h"

enum {
	SEGMENTS_MAX = 64,
	FREED_READABLE = 256, // bytes of a packet whose length is no longer available
	ETHERNET_BYTES = 14,
	TAG_BYTES = 4,
};

uint64_t nfp_numbered_at(const struct nfp_program *program, uint64_t number)
{
	const struct nfp_session_header *header = nfp_library.header;
	uint64_t offset = number << (program->number_shift & 31);
	return offset + program->data_pointer <= header->buffers_bytes ? header->buffers_start + offset : 0;
}

uint32_t nfp_numbered_next(const struct nfp_program *program, uint64_t buffer)
{
	return nfp_load_32((const uint8_t *)(uintptr_t)buffer + program->next_number);
}

// Bytes in the buffers that follow the packet's first one.
static uint32_t chained_bytes(const struct nfp_program *program, const uint8_t *buffer)
{
	uint32_t sum = 0;
	for (uint32_t i = 0; i < SEGMENTS_MAX; i++) {
		if (!nfp_numbered_has_next(program, buffer))
			break;
		uint64_t next = nfp_numbered_at(program, nfp_load_32(buffer + program->next_number));
		if (!next)
			break;
		buffer = (const uint8_t *)(uintptr_t)next;
		sum += nfp_load_length(buffer, program->segment_length, program->segment_width);
	}
	return sum;
}

// A number of the buffer, plus 1; 0: unknown. A number with all bits set means none.
static uint32_t number_in(const struct nfp_program *program, const uint8_t *buffer, uint16_t offset,
                          uint32_t bytes)
{
	if (offset + sizeof(uint32_t) > program->data_pointer)
		return 0;
	uint32_t number = nfp_load_32(buffer + offset) & (bytes == 2 ? UINT16_MAX : UINT32_MAX);
	return number + 1;
}

uint64_t nfp_numbered_numbers(const struct nfp_program *program, const uint8_t *buffer)
{
	return number_in(program, buffer, program->holders, 4) |
	       (uint64_t)number_in(program, buffer, program->arrival_flags, program->arrival_bit) << 32;
}

// data is NULL, and nothing readable, where the packet's bytes would be elsewhere.
void nfp_numbered_view(const struct nfp_program *program, uint64_t buffer, const uint8_t *head,
                       struct nfp_view *view)
{
	const struct nfp_session_header *header = nfp_library.header;
	uint64_t end = header->buffers_start + header->buffers_bytes;
	int16_t offset;
	__builtin_memcpy(&offset, head + program->data_offset, sizeof(offset));
	uint64_t data = buffer + program->data_pointer + (uint64_t)(int64_t)offset;
	uint32_t first = nfp_load_length(head, program->segment_length, program->segment_width);
	*view =
	    (struct nfp_view){.buffer = buffer,
	                      .length = first,
	                      .numbers = nfp_numbered_numbers(program, (const uint8_t *)(uintptr_t)buffer)};
	if (nfp_numbered_has_next(program, head)) {
		view->next = nfp_numbered_at(program, nfp_numbered_next(program, buffer));
		view->length += chained_bytes(program, (const uint8_t *)(uintptr_t)buffer);
	}
	if (data < buffer || data + first > end)
		return;
	view->data = (const uint8_t *)(uintptr_t)data;
	view->readable = first;
}

// Bytes of an IP packet, as its header says; 0: there is none.
static uint32_t ip_length(const uint8_t *bytes, uint32_t version)
{
	if (bytes[0] >> 4 != version)
		return 0;
	return version == 4 ? nfp_load_be16(bytes + 2) : nfp_load_be16(bytes + 4) + 40u;
}

// Bytes of the packet, as its own headers say; 0: they do not. At least FREED_READABLE bytes can be read.
static uint32_t length_in_headers(const uint8_t *bytes)
{
	uint32_t at = ETHERNET_BYTES;
	while (at < ETHERNET_BYTES + 2 * TAG_BYTES && nfp_load_be16(bytes + at - 2) == 0x8100)
		at += TAG_BYTES;
	uint16_t type = nfp_load_be16(bytes + at - 2);
	uint32_t inside = type == NFP_TYPE_IPV4   ? ip_length(bytes + at, 4)
	                  : type == NFP_TYPE_IPV6 ? ip_length(bytes + at, 6)
	                                          : 0;
	if (inside)
		return at + inside;
	return ip_length(bytes, 4) ? ip_length(bytes, 4) : ip_length(bytes, 6);
}

void nfp_numbered_freed_view(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view)
{
	const struct nfp_session_header *header = nfp_library.header;
	nfp_numbered_view(program, buffer, (const uint8_t *)(uintptr_t)buffer, view);
	view->numbers = 0;
	if (view->length || !view->data ||
	    (uint64_t)(uintptr_t)view->data + FREED_READABLE > header->buffers_start + header->buffers_bytes)
		return;
	view->length = length_in_headers(view->data);
	view->readable = nfp_smaller(view->length, FREED_READABLE);
}

const uint32_t *nfp_numbers_of(const struct nfp_program *program, uint64_t structure, uint32_t count)
{
	uint16_t offset = program->pointers_offset;
	if (program->array_offset != NFP_NO_OFFSET) {
		if (!nfp_is_readable(structure + program->array_offset, sizeof(offset)))
			return NULL;
		__builtin_memcpy(&offset, (const void *)(uintptr_t)(structure + program->array_offset),
		                 sizeof(offset));
	}
	uint64_t array = structure + offset;
	return nfp_is_readable(array, count * sizeof(uint32_t)) ? (const uint32_t *)(uintptr_t)array : NULL;
}

uint32_t nfp_name_buffers(const struct nfp_program *restrict program, const uint32_t *restrict numbers,
                          uint32_t count, uint64_t *restrict buffers)
{
	for (uint32_t i = 0; i < count; i++) {
		buffers[i] = nfp_numbered_at(program, numbers[i]);
		if (!buffers[i])
			return i;
	}
	return count;
}

// Packets of receive calls that only say how many they have received (VPP's input nodes, whose frame is NULL). They are
// in the frames that the call has filled for other nodes. Those frames are pending when it returns:
//
//   argument + pending -> | frame, 8 bytes | node, 4 bytes | 4 more | next frame ...; their number is 8 bytes before the first
//   frame -> the number of its packets, and their numbers
//
// Earlier calls of the same turn have filled frames, too, and each call appends to a frame that has room. So the number of
// packets in each frame after the last receive call is kept. Where the packets since then are fewer than the call says, the
// numbers are of an earlier turn. A call that returns packets that were received before, and kept by a node for a turn or
// more, may return a larger number than it adds to frames: its packets are those that are new since the call before it.
// Packets that another thread has handed over stand before those that are received.
//
// Calls that take packets over come first in a turn, one for each queue, in the order of the queues' addresses, and each
// fills new frames. They do not say how many packets there were.
//
// Reads only what is known to be readable.

enum {
	ENTRY_BYTES = 16,
	PENDING_MAX = 4096, // frames of a turn; with more its packets are only counted
};

// The frames that are pending.
struct pending {
	const struct nfp_program *program;
	struct nfp_late *late;
	const uint8_t *entries;
	uint32_t count;
};

// Where they stand; 0: it is not known. The calls of a thread have the same argument.
static uint64_t entries_of(struct nfp_late *late, uint64_t argument)
{
	uint64_t place = argument + nfp_library.header->pending;
	if (!place || (place != late->known_place && !nfp_is_readable(place, sizeof(uint64_t))))
		return 0;
	late->known_place = place;
	return nfp_load_64((const uint8_t *)(uintptr_t)place);
}

static int find_pending(struct pending *pending, uint64_t argument)
{
	uint64_t entries = entries_of(pending->late, argument);
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

static uint32_t node_at(const struct pending *pending, uint32_t i)
{
	return nfp_load_32(pending->entries + (uint64_t)i * ENTRY_BYTES + sizeof(uint64_t));
}

// How many packets a frame holds; UINT32_MAX: it is none.
static uint32_t packets_of(const struct pending *pending, uint64_t frame)
{
	uint16_t count;
	uint64_t place = frame + pending->program->count_offset;
	if (!frame || !nfp_is_readable(place, sizeof(count)))
		return UINT32_MAX;
	__builtin_memcpy(&count, (const void *)(uintptr_t)place, sizeof(count));
	return count <= NFP_LATE_FRAME_PACKETS ? count : UINT32_MAX;
}

// Of a frame's packets, how many stood there after the last receive call.
static uint32_t known_of(const struct pending *pending, uint32_t i)
{
	return i < pending->late->frames_known ? pending->late->frames[i].packets : 0;
}

static void remember(const struct pending *pending, uint32_t i, uint64_t frame, uint32_t packets)
{
	if (i < NFP_LATE_FRAMES)
		pending->late->frames[i] =
		    (struct nfp_late_frame){.frame = frame, .packets = packets, .node = node_at(pending, i)};
}

// Whether frame `i` is the one that was there after the last receive call.
static int is_known(const struct pending *pending, uint32_t i, uint64_t frame)
{
	const struct nfp_late *late = pending->late;
	return i < late->frames_known && late->frames[i].frame == frame &&
	       late->frames[i].node == node_at(pending, i); // frames_known is at most NFP_LATE_FRAMES
}

// Whether what was known after the last receive call may still be so: frames are added, and filled on.
static int is_same_turn(const struct pending *pending)
{
	const struct nfp_late *late = pending->late;
	if (late->frames_known > pending->count)
		return 0;
	for (uint32_t i = 0; i < late->frames_known; i++) {
		uint64_t frame = frame_at(pending, i);
		uint32_t packets = packets_of(pending, frame);
		if (!is_known(pending, i, frame) || packets == UINT32_MAX ||
		    late->frames[i].packets > packets)
			return 0;
	}
	return 1;
}

// Packets that were added to frames since the last receive call; UINT32_MAX: one of them is no frame.
static uint32_t count_new(const struct pending *pending)
{
	uint32_t sum = 0;
	for (uint32_t i = 0; i < pending->count; i++) {
		uint64_t frame = frame_at(pending, i);
		uint32_t packets = packets_of(pending, frame);
		if (packets == UINT32_MAX)
			return UINT32_MAX;
		sum += packets - nfp_smaller(known_of(pending, i), packets);
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
		uint32_t first = nfp_smaller(known_of(pending, i), packets);
		uint32_t left_out = nfp_smaller(before, packets - first);
		before -= left_out;
		taken = take_packets(pending, frame, first + left_out, packets, taken);
		remember(pending, i, frame, packets);
	}
	late->frames_known = nfp_smaller(pending->count, NFP_LATE_FRAMES);
	return taken;
}

int nfp_pending_take_only(struct nfp_late *late, const struct nfp_program *program, uint64_t argument,
                          uint32_t count)
{
	uint32_t packets;
	if (!late->worked && late->frames_known)
		return 0;
	uint64_t entries = entries_of(late, argument);
	if (!entries || (entries != late->known_entries && !nfp_is_readable(entries - 8, 8 + ENTRY_BYTES)))
		return 0;
	late->known_entries = entries;
	if (nfp_load_32((const uint8_t *)(uintptr_t)entries - 8) != 1)
		return 0;
	uint64_t frame = nfp_load_64((const uint8_t *)(uintptr_t)entries);
	const uint32_t *numbers = nfp_late_numbers_in_page(program, frame, &packets);
	if (!numbers || packets != count ||
	    packets > nfp_smaller(program->packets_max, NFP_LATE_FRAME_PACKETS))
		return 0;
	nfp_late_copy_numbers(late->numbers, numbers, packets);
	late->frames[0] = (struct nfp_late_frame){
	    .frame = frame,
	    .packets = packets,
	    .node = nfp_load_32((const uint8_t *)(uintptr_t)entries + sizeof(uint64_t))};
	late->frames_known = 1;
	late->worked = 0;
	late->taken_queue = UINT64_MAX;
	return 1;
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
		remember(&pending, i, frame, packets);
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
	*count = is_known(&pending, i, frame) ? nfp_smaller(known_of(&pending, i), packets) : 0;
	return nfp_numbers_of(program, frame, *count);
}

// All that is new, where it can be at least `least` packets; `most` is what the call has returned.
static const uint32_t *numbers_of(struct nfp_late *late, const struct nfp_program *program, uint64_t argument,
                                  uint32_t least, uint32_t most, uint32_t *count)
{
	struct pending pending = {.program = program, .late = late};
	*count = 0;
	late->taken_queue = UINT64_MAX;
	if (!find_pending(&pending, argument))
		return NULL;
	if (late->worked || !is_same_turn(&pending))
		late->frames_known = late->worked = 0;
	if (!late->frames_known) { // the usual case: the frames hold what the call has returned, and nothing else
		*count = take_new(&pending, 0);
		if (*count == most)
			return late->numbers;
		late->frames_known = *count = 0;
	}
	uint32_t found = count_new(&pending);
	if (found < least && late->frames_known) {
		late->frames_known = 0;
		found = count_new(&pending);
	}
	if (found == UINT32_MAX || found < least)
		return NULL;
	uint32_t taken = take_new(&pending, found > most ? found - most : 0);
	if (taken == UINT32_MAX)
		return NULL;
	*count = taken;
	return late->numbers;
}

const uint32_t *nfp_pending_numbers(struct nfp_thread *thread, const struct nfp_program *program,
                                    uint64_t argument, uint32_t *count)
{
	return numbers_of(nfp_late_of(thread), program, argument, *count, *count, count);
}

const uint32_t *nfp_pending_returned(struct nfp_thread *thread, const struct nfp_program *program,
                                     uint64_t argument, uint32_t *count)
{
	return numbers_of(nfp_late_of(thread), program, argument, 0, *count, count);
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
	if (!find_pending(&pending, argument))
		return NULL;
	if (!is_same_turn(&pending))
		late->frames_known = 0;
	if (count_new(&pending) == UINT32_MAX)
		return NULL;
	uint32_t taken = take_new(&pending, 0);
	if (taken == UINT32_MAX)
		return NULL;
	*count = taken;
	return late->numbers;
}
