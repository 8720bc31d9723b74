// SPDX-License-Identifier: Apache-2.0
// Headers that are copied when a transmit call begins are read at its end as they were then, whatever the call did with
// them: packets of every length, a batch at a time. Each stands in a heap block of its own, so that a byte read or written
// beside it is an error of the address sanitizer.
#include "check.h"
#include "late.h"
#include "abi/headers.h"
#include <string.h>

enum { PACKETS = 32, LENGTHS = 2 * NFP_LATE_COPY_BYTES, FRAME = 0x1000 };

struct packet {
	uint8_t *data;
	uint32_t length;
	uint16_t segment;
};

struct nfp_library nfp_library = {.session_fd = -1};
const char nfp_packets_entry_thunk[1], nfp_trusted_entry_thunk[1];
static struct nfp_late late;
static struct nfp_thread_shared shared;
static struct nfp_thread thread = {.shared = &shared};
static struct packet packets[PACKETS];
static uint64_t pointers[PACKETS];
static uint32_t compared, batch;

uint64_t nfp_late_find_below(const struct nfp_late *kept, uint64_t pointer, uint64_t before, uint64_t oldest)
{
	(void)kept, (void)pointer, (void)before, (void)oldest;
	return NFP_LATE_NOWHERE;
}

// Packets here are named by pointers: none of these is called.
void nfp_numbered_view(const struct nfp_program *program, uint64_t buffer, const uint8_t *head,
                       struct nfp_view *view)
{
	(void)program, (void)buffer, (void)head, (void)view;
	CHECK(0);
}

void nfp_numbered_freed_view(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view)
{
	(void)program, (void)buffer, (void)view;
	CHECK(0);
}

uint64_t nfp_numbered_numbers(const struct nfp_program *program, const uint8_t *buffer)
{
	(void)program, (void)buffer;
	CHECK(0);
	return 0;
}

uint64_t nfp_numbered_at(const struct nfp_program *program, uint64_t number)
{
	(void)program, (void)number;
	CHECK(0);
	return 0;
}

uint32_t nfp_numbered_next(const struct nfp_program *program, uint64_t buffer)
{
	(void)program, (void)buffer;
	CHECK(0);
	return 0;
}

void nfp_owner_inherit(const struct nfp_late *kept, uint32_t packet, uint32_t next)
{
	(void)kept, (void)packet, (void)next;
	CHECK(0);
}

void nfp_owner_tag_newest(struct nfp_thread *its_thread)
{
	(void)its_thread;
	CHECK(0);
}

struct nfp_late_batch *nfp_owner_of_all(const struct nfp_late *kept)
{
	(void)kept;
	CHECK(0);
	return NULL;
}

static uint8_t byte_at(uint32_t packet, uint32_t place)
{
	return (uint8_t)(packet * 37 + place * 11 + batch * 3 + 1);
}

static void fill(uint32_t packet, uint32_t length)
{
	packets[packet].length = length;
	packets[packet].segment = (uint16_t)length;
	packets[packet].data = malloc(length ? length : 1);
	CHECK(packets[packet].data);
	for (uint32_t place = 0; place < length; place++)
		packets[packet].data[place] = byte_at(packet, place);
	pointers[packet] = (uint64_t)(uintptr_t)&packets[packet];
}

static void check_packet(const struct nfp_program *program, uint32_t packet, uint32_t most)
{
	struct nfp_view view;
	nfp_late_view(&late, program, packet, &view);
	uint32_t length = packets[packet].length;
	CHECK(view.length == length && view.readable == (length < most ? length : most));
	for (uint32_t place = 0; place < view.readable; place++, compared++)
		CHECK(view.data[place] == byte_at(packet, place));
}

static void check_batch(const struct nfp_program *program, uint32_t shortest, uint32_t most)
{
	batch++; // what the copies hold of the one before is wrong now
	const struct nfp_burst burst = {.pointers = (uint64_t)(uintptr_t)pointers, .count = PACKETS};
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		fill(packet, shortest + packet);
	nfp_late_enter(&thread, program, burst, FRAME, 0);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		memset(packets[packet].data, 0, packets[packet].length);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		check_packet(program, packet, most);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		free(packets[packet].data);
	thread.handing = 0;
}

int main(void)
{
	nfp_library.late = &late;
	struct nfp_program program = {
	    .data_pointer = offsetof(struct packet, data),
	    .data_offset = 0xffff,
	    .length = offsetof(struct packet, length),
	    .length_width = 4,
	    .segment_length = offsetof(struct packet, segment),
	    .segment_width = 2,
	    .arrival = 0xffff,
	};
	for (uint32_t shortest = 0; shortest < LENGTHS; shortest += PACKETS)
		check_batch(&program, shortest, 128);
	program.link_layer = NFP_LINK_INNER;
	for (uint32_t shortest = 0; shortest < LENGTHS; shortest += PACKETS)
		check_batch(&program, shortest, NFP_LATE_COPY_BYTES);
	CHECK(compared > LENGTHS * 100);
	printf("hold: %u bytes of headers as they were\n", compared);
}
