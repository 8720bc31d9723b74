// SPDX-License-Identifier: Apache-2.0
// The quick way by which the packets of most receive calls are found leaves what the way of all calls leaves, or does
// nothing: with any number of frames and packets, of the same turn or another one, anywhere in a page, and where memory
// cannot be read.
#include "check.h"
#include "late.h"
#include <string.h>

enum {
	PAGE = 1 << NFP_PAGE_SHIFT,
	PAGES = 8,
	ENTRY_BYTES = 16,
	PENDING = 24, // offset in the argument
	COUNT_AT = 10, // offsets in a frame
	ARRAY_AT = 4,
	FRAMES = 3,
	ROUNDS = 20000,
};

struct nfp_library nfp_library = {.session_fd = -1};
uint64_t nfp_known_pages[NFP_KNOWN_PAGES];
static _Alignas(PAGE) uint8_t memory[PAGES * PAGE];
static struct nfp_late late, quick;
static struct nfp_thread_shared shared;
static struct nfp_thread thread = {.shared = &shared};
static struct nfp_session_header header = {.pending = PENDING};
static uint64_t unreadable; // a page
static uint32_t state = 1, taken, left;

static uint32_t draw(uint32_t most)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % (most + 1);
}

int nfp_are_readable(uint64_t address, uint64_t bytes)
{
	uint64_t start = (uint64_t)(uintptr_t)memory, page = (address + bytes - 1) >> NFP_PAGE_SHIFT;
	if (address < start || address + bytes > start + sizeof(memory))
		return 0;
	if (address >> NFP_PAGE_SHIFT == unreadable || page == unreadable)
		return 0;
	nfp_known_pages[page % NFP_KNOWN_PAGES] = page;
	return 1;
}

// Of frame `i`, in a page of its own and at its end now and then.
static uint8_t *place_frame(uint32_t i, uint32_t packets)
{
	uint16_t count = (uint16_t)packets, array = (uint16_t)(16 + 4 * draw(3));
	uint32_t bytes = array + packets * 4, most = PAGE - 16;
	uint32_t at = draw(2) ? draw(most) : PAGE - (bytes < most ? bytes : most);
	uint8_t *frame = memory + (1 + 2 * i) * PAGE + at / 4 * 4;
	memcpy(frame + COUNT_AT, &count, 2);
	memcpy(frame + ARRAY_AT, &array, 2);
	for (uint32_t packet = 0; packet < packets; packet++) {
		uint32_t number = draw(1 << 20);
		memcpy(frame + array + 4 * packet, &number, 4);
	}
	return frame;
}

// Returns how many packets are in frames.
static uint32_t place_all(uint32_t frames)
{
	uint64_t entries = (uint64_t)(uintptr_t)(memory + 64 + 8 * draw(3));
	uint32_t sum = 0;
	memcpy(memory + PENDING, &entries, 8);
	memcpy((uint8_t *)(uintptr_t)entries - 8, &frames, 4);
	for (uint32_t i = 0; i < frames; i++) {
		uint32_t packets = draw(3) ? draw(4) : draw(NFP_LATE_FRAME_PACKETS + 1);
		uint64_t frame = (uint64_t)(uintptr_t)place_frame(i, packets), node = draw(9);
		memcpy((uint8_t *)(uintptr_t)entries + i * ENTRY_BYTES, &frame, 8);
		memcpy((uint8_t *)(uintptr_t)entries + i * ENTRY_BYTES + 8, &node, 8);
		sum += packets;
	}
	return sum;
}

static void check_same(const uint32_t *numbers, uint32_t count, uint32_t found)
{
	CHECK(numbers == late.numbers && count == found);
	CHECK(!memcmp(late.numbers, quick.numbers, count * sizeof(*numbers)));
	CHECK(!memcmp(late.frames, quick.frames, sizeof(late.frames)));
	CHECK(late.frames_known == quick.frames_known && late.worked == quick.worked &&
	      late.taken_queue == quick.taken_queue);
	taken++;
}

static void check_turn(const struct nfp_program *program)
{
	uint64_t argument = (uint64_t)(uintptr_t)memory;
	uint32_t sum = place_all(draw(3) ? 1 : draw(FRAMES)), count = draw(5) ? sum : sum + 1;
	unreadable = draw(9) ? 0 : (argument >> NFP_PAGE_SHIFT) + draw(PAGES - 1);
	if (unreadable || !draw(15)) {
		memset(nfp_known_pages, 0, sizeof(nfp_known_pages));
		late.known_place = late.known_entries = 0;
	}
	late.worked = draw(1);
	quick = late;
	if (!count)
		return;
	if (nfp_pending_take_only(&quick, program, argument, count)) {
		uint32_t found = count;
		check_same(nfp_pending_numbers(&thread, program, argument, &found), found, count);
		return;
	}
	quick.known_place = late.known_place;
	quick.known_entries = late.known_entries;
	CHECK(!memcmp(&quick, &late, sizeof(late)));
	nfp_pending_numbers(&thread, program, argument, &count);
	left++;
}

int main(void)
{
	nfp_library.header = &header;
	nfp_library.late = &late;
	struct nfp_program program = {.count_offset = COUNT_AT,
	                              .array_offset = ARRAY_AT,
	                              .packets_max = NFP_LATE_NUMBERS,
	                              .number_shift = 6};
	for (uint32_t round = 0; round < ROUNDS; round++)
		check_turn(&program);
	CHECK(taken > ROUNDS / 8 && left > ROUNDS / 8);
	program.array_offset = 0xffff; // releases whose numbers stand in one place of each frame
	program.pointers_offset = 16;
	CHECK(!nfp_pending_take_only(&late, &program, (uint64_t)(uintptr_t)memory, place_all(1)));
	printf("pending: %u receive calls the quick way, %u the other one\n", taken, left);
}
