// SPDX-License-Identifier: Apache-2.0
// Headers that are copied when a transmit call begins are read at its end as they were then, whatever the call did with
// them: packets of every length, a batch at a time. Each stands in a heap block of its own, so that a byte read or written
// beside it is an error of the address sanitizer. Where bytes stay, and their buffers do not, they are read where they were;
// where other bytes stand there, or none can be read, nothing is told.
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
static uint32_t compared, batch, refused;
static int is_mapped = 1;

int nfp_copy_readable(void *out, uint64_t address, uint64_t bytes)
{
	if (is_mapped)
		memcpy(out, (const void *)(uintptr_t)address, bytes);
	return is_mapped;
}

int nfp_view_copy(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view)
{
	nfp_view_read(program, buffer, view);
	return is_mapped;
}

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
	CHECK(nfp_late_view(&thread, program, packet, &view));
	uint32_t length = packets[packet].length;
	CHECK(view.length == length && view.readable == (length < most ? length : most));
	for (uint32_t place = 0; place < view.readable; place++, compared++)
		CHECK(view.data[place] == byte_at(packet, place));
}

static void begin_batch(const struct nfp_program *program, uint32_t shortest)
{
	batch++; // what is kept of the one before is wrong now
	const struct nfp_burst burst = {.pointers = (uint64_t)(uintptr_t)pointers, .count = PACKETS};
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		fill(packet, shortest + packet);
	nfp_late_enter(&thread, program, burst, FRAME, 0);
}

static void end_batch(void)
{
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		free(packets[packet].data);
	thread.handing = 0;
}

static void check_batch(const struct nfp_program *program, uint32_t shortest, uint32_t most)
{
	begin_batch(program, shortest);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		memset(packets[packet].data, 0, packets[packet].length);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		check_packet(program, packet, most);
	end_batch();
}

static uint32_t most_bytes(const struct nfp_program *program)
{
	return program->link_layer & NFP_LINK_INNER ? NFP_LATE_COPY_BYTES : 128;
}

// They are not told, and copied from then on.
static void check_refused(const struct nfp_program *program)
{
	for (uint32_t packet = 0; packet < PACKETS; packet++, refused++) {
		struct nfp_view view;
		CHECK(!nfp_late_view(&thread, program, packet, &view));
	}
	CHECK(shared.copying == most_bytes(program));
	shared.copying = 0;
}

// The packets' buffers are freed in the call; their bytes stay, and then do not.
static void check_freed_buffers(const struct nfp_program *program, uint32_t shortest)
{
	static struct packet before[PACKETS];
	begin_batch(program, shortest);
	CHECK(late.seen_packets && !late.copied);
	memcpy(before, packets, sizeof(packets));
	memset(packets, 0xee, sizeof(packets));
	for (uint32_t packet = 0; packet < PACKETS; packet++) {
		packets[packet].length = before[packet].length;
		check_packet(program, packet, 128);
	}
	memcpy(packets, before, sizeof(packets));
	is_mapped = 0;
	check_refused(program);
	is_mapped = 1;
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		memset(packets[packet].data, 0, packets[packet].length);
	check_refused(program);
	end_batch();
}

// A person says that buffers stay. They do; then none can be read.
static void check_described_pool(struct nfp_program *program)
{
	program->pooled = 1;
	begin_batch(program, 64);
	CHECK(!late.seen_packets);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		check_packet(program, packet, 128);
	is_mapped = 0;
	check_refused(program);
	is_mapped = 1;
	end_batch();
	program->pooled = 0;
}

// A check finds that one packet's byte at `place` changes in the call: so many bytes are copied from then on.
static void check_learning(const struct nfp_program *program, uint32_t place, uint32_t copied)
{
	shared.copying = 0;
	late.until_check = 0;
	begin_batch(program, 160);
	CHECK(late.checks && late.copied >= 128);
	packets[7].data[place] ^= 1;
	nfp_late_check(&thread, program, &late);
	CHECK(shared.copying == copied && late.until_check == (copied                      ? 0
	                                                       : shared.checked_calls < 16 ? 0
	                                                                                   : 1023));
	end_batch();
	late.until_check = 1000;
	if (!copied)
		return;
	begin_batch(program, 160);
	CHECK(!late.checks && late.copied == copied);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		memset(packets[packet].data, 0, place + 1);
	uint32_t most = most_bytes(program);
	for (uint32_t packet = 0; packet < PACKETS; packet++)
		check_packet(program, packet, most);
	if (copied < most)
		for (uint32_t packet = 0; packet < PACKETS; packet++)
			memset(packets[packet].data, 0, packets[packet].length);
	if (copied < most)
		check_refused(program);
	end_batch();
}

// From an address of the frame to the third cache line, which is of interest where ids are of inner packets.
static void check_all_learning(struct nfp_program *program)
{
	for (program->pooled = 0; program->pooled < 2; program->pooled++) {
		check_learning(program, 0, 16);
		check_learning(program, 11, 16);
		check_learning(program, 26, 32);
		check_learning(program, 63, 64);
		check_learning(program, 64, 128);
		check_learning(program, 127, 128);
		check_learning(program, 130, 0);
		program->link_layer = NFP_LINK_INNER;
		check_learning(program, 130, NFP_LATE_COPY_BYTES);
		program->link_layer = 0;
	}
	program->pooled = 0;
	shared.copying = 0;
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
	program.checked = 1;
	check_all_learning(&program);
	late.until_check = 1000;
	for (uint32_t shortest = 32; shortest < LENGTHS; shortest += PACKETS)
		check_freed_buffers(&program, shortest);
	check_described_pool(&program);
	program.checked = 0;
	program.link_layer = NFP_LINK_INNER;
	for (uint32_t shortest = 0; shortest < LENGTHS; shortest += PACKETS)
		check_batch(&program, shortest, NFP_LATE_COPY_BYTES);
	CHECK(compared > LENGTHS * 100 && refused > LENGTHS);
	printf("hold: %u bytes of headers as they were, %u packets whose bytes are not told\n", compared,
	       refused);
}
