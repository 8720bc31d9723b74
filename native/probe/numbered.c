// SPDX-License-Identifier: Apache-2.0
// Buffers that the NF names by numbers of 32 bits instead of pointers (VPP's buffer indices). All of them lie in one
// piece of memory that the monitor has found to be readable: nothing outside of it is read, whatever a number or a
// buffer says. Runs on the target's threads; called by capture.c, hold.c and plausible.c.
//
//   buffers_start + (number << number_shift) -> | fields ... | data_pointer: bytes, from the signed data_offset on |
#include "late.h"
#include "nfprobe/headers.h"

enum { SEGMENTS_MAX = 64 };

// 0: there is no such buffer.
static uint64_t buffer_at(const struct nfp_program *program, uint64_t number)
{
	const struct nfp_session_header *header = nfp_library.header;
	uint64_t offset = number << (program->number_shift & 31);
	return offset + program->data_pointer <= header->buffers_bytes ? header->buffers_start + offset : 0;
}

// Bytes in the buffers that follow the packet's first one.
static uint32_t chained_bytes(const struct nfp_program *program, const uint8_t *buffer)
{
	uint32_t sum = 0;
	for (uint32_t i = 0; i < SEGMENTS_MAX; i++) {
		if (!(nfp_load_32(buffer + program->next_flags) >> (program->next_bit & 31) & 1))
			break;
		uint64_t next = buffer_at(program, nfp_load_32(buffer + program->next_number));
		if (!next)
			break;
		buffer = (const uint8_t *)(uintptr_t)next;
		sum += nfp_load_length(buffer, program->segment_length, program->segment_width);
	}
	return sum;
}

// data is NULL, and nothing readable, where the packet's bytes would be elsewhere.
void nfp_numbered_view(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view)
{
	const struct nfp_session_header *header = nfp_library.header;
	const uint8_t *bytes = (const uint8_t *)(uintptr_t)buffer;
	uint64_t end = header->buffers_start + header->buffers_bytes;
	int16_t offset;
	__builtin_memcpy(&offset, bytes + program->data_offset, sizeof(offset));
	uint64_t data = buffer + program->data_pointer + (uint64_t)(int64_t)offset;
	uint32_t first = nfp_load_length(bytes, program->segment_length, program->segment_width);
	*view = (struct nfp_view){.buffer = buffer, .length = first + chained_bytes(program, bytes)};
	if (data < buffer || data + first > end)
		return;
	view->data = (const uint8_t *)(uintptr_t)data;
	view->readable = first;
}

static uint64_t array_of(struct nfp_program *program, uint64_t structure, uint32_t count)
{
	uint16_t offset = program->pointers_offset;
	if (program->array_offset != 0xffff) {
		if (!nfp_is_readable(structure + program->array_offset, sizeof(offset)))
			return 0;
		__builtin_memcpy(&offset, (const void *)(uintptr_t)(structure + program->array_offset),
		                 sizeof(offset));
	}
	uint64_t array = structure + offset;
	return nfp_is_readable(array, count * sizeof(uint32_t)) ? array : 0;
}

uint64_t nfp_numbered_buffers(struct nfp_thread *thread, struct nfp_program *program, uint64_t structure,
                              uint32_t count)
{
	struct nfp_late *late = nfp_late_of(thread);
	count = nfp_smaller(count, NFP_LATE_POINTERS);
	const uint8_t *numbers = (const uint8_t *)(uintptr_t)array_of(program, structure, count);
	if (!numbers) {
		nfp_switch_off(program, NFP_VERDICT_POINTERS_UNREADABLE, structure);
		return 0;
	}
	late->worked = 1;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t number = nfp_load_32(numbers + sizeof(number) * i);
		late->named[i] = buffer_at(program, number);
		if (!late->named[i]) {
			nfp_switch_off(program, NFP_VERDICT_NUMBER_WRONG, number);
			return 0;
		}
	}
	return (uint64_t)(uintptr_t)late->named;
}
