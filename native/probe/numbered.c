// SPDX-License-Identifier: Apache-2.0
// Buffers that the NF names by numbers of 32 bits instead of pointers (VPP's buffer indices). All of them lie in one
// piece of memory that the monitor has found to be readable: nothing outside of it is read, whatever a number or a
// buffer says. Runs on the target's threads; called by capture.c, snapshot.c, pending.c and validate.c.
//
//   buffers_start + (number << number_shift) -> | fields ... | data_pointer: bytes, from the signed data_offset on |
#include "late.h"
#include "abi/headers.h"

enum {
	SEGMENTS_MAX = 64,
	FREED_READABLE = 256, // bytes of a packet whose length is not there any more
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

// One of them, plus 1; 0: it is not known. Numbers whose bits are all set stand for none.
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
