// SPDX-License-Identifier: Apache-2.0
// Buffers that are named by numbers, whatever stands in them: chains that lead nowhere, to themselves, or never end.
#include "check.h"
#include "late.h"
#include <string.h>

enum {
	SHIFT = 6,
	DATA = 256,
	BYTES = 1024,
	BUFFERS = 80,
	STEP = BYTES >> SHIFT,
	NEXT_PRESENT = 2,
	SEGMENTS = 65
};

struct nfp_library nfp_library = {.session_fd = -1};
static struct nfp_session_header header;
static _Alignas(64) uint8_t memory[BUFFERS * BYTES];
static const struct nfp_program program = {.number_shift = SHIFT,
                                           .data_pointer = DATA,
                                           .segment_length = 2,
                                           .segment_width = 2,
                                           .next_number = 16,
                                           .next_flags = 4,
                                           .next_bit = 1,
                                           .holders = 24,
                                           .arrival_flags = 28,
                                           .arrival_bit = 4};

uint64_t nfp_known_pages[NFP_KNOWN_PAGES];
int nfp_are_readable(uint64_t address, uint64_t bytes)
{
	(void)address, (void)bytes;
	return 1;
}

static uint8_t *buffer_at(uint32_t i)
{
	return memory + (size_t)i * BYTES;
}

// A buffer of 100 bytes; next: the number of the one behind it, or UINT32_MAX.
static void fill(uint32_t i, uint32_t next)
{
	uint16_t length = 100;
	uint32_t flags = next == UINT32_MAX ? 0 : NEXT_PRESENT;
	memcpy(buffer_at(i) + 2, &length, sizeof(length));
	memcpy(buffer_at(i) + 4, &flags, sizeof(flags));
	memcpy(buffer_at(i) + 16, &next, sizeof(next));
}

static struct nfp_view view_of(uint32_t i)
{
	struct nfp_view view;
	nfp_numbered_view(&program, (uint64_t)(uintptr_t)buffer_at(i), buffer_at(i), &view);
	return view;
}

int main(void)
{
	nfp_library.header = &header;
	header.buffers_start = (uint64_t)(uintptr_t)memory;
	header.buffers_bytes = sizeof(memory);
	fill(0, UINT32_MAX);
	struct nfp_view view = view_of(0);
	CHECK(view.length == 100 && view.readable == 100 && !view.next);
	fill(1, 0);
	view = view_of(1);
	CHECK(view.length == 200 && view.readable == 100);
	CHECK(view.next == (uint64_t)(uintptr_t)buffer_at(0));
	fill(2, 2 * STEP); // itself
	view = view_of(2);
	CHECK(view.length == SEGMENTS * 100 && view.next == view.buffer);
	fill(3, 4 * STEP); // a circle of two
	fill(4, 3 * STEP);
	CHECK(view_of(3).length == SEGMENTS * 100);
	for (uint32_t i = 5; i < BUFFERS; i++) // too long, and out of the memory at its end
		fill(i, (i + 1) * STEP);
	CHECK(view_of(5).length == SEGMENTS * 100);
	view = view_of(BUFFERS - 1);
	CHECK(view.length == 100 && !view.next);
	fill(6, UINT32_MAX - 1);
	view = view_of(6);
	CHECK(view.length == 100 && !view.next);
	int16_t offset = INT16_MIN;
	memcpy(buffer_at(0), &offset, sizeof(offset));
	CHECK(!view_of(0).data); // before the memory's beginning
	printf("numbered: %d buffers, of which none leads outside\n", BUFFERS);
}
