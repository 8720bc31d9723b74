// SPDX-License-Identifier: Apache-2.0
// Receive, transmit and drop probes: writes the poll or the captured value, and packet records when they are
// wanted. Runs on the target's threads between two of its instructions; reads only what the NF itself is
// handed (the pointers of a burst, the headers of its packets) and at most packets_max of them. What a person
// described is checked first (plausible.c).
#include "library.h"
#include "nfprobe/digest.h"
#include "x86_64/syscall.h"

// The frame of the receive and packets templates (x86_64/template_packets.S).
struct nfp_frame {
	uint64_t tsc;
	uint64_t arguments[6];
	uint64_t rax, r11;
	uint64_t return_address;
};
_Static_assert(sizeof(struct nfp_frame) == 80,
               "template_packets.S: FRAME is 72, the return address above it");

// Argument numbers are checked by the monitor (adapters/base.py); a damaged one must not lead outside.
static uint64_t argument(const struct nfp_frame *frame, uint32_t number)
{
	return number < 6 ? frame->arguments[number] : 0;
}

static uint32_t low_rsp(const struct nfp_frame *frame)
{
	return (uint32_t)(uintptr_t)&frame->return_address;
}

static uint32_t requested(const struct nfp_program *program, const struct nfp_frame *frame)
{
	if (program->requested_argument == NFP_CAPACITY)
		return program->packets_max;
	if (program->requested_argument == NFP_ABSENT)
		return program->count_from == NFP_COUNT_FIXED ? program->count_argument : 0;
	return (uint32_t)argument(frame, program->requested_argument) & program->count_mask;
}

// A batch structure is emptied by the function that it is handed to: its number is kept from the entry on, in the
// frame's place for the time, which these probes do not use.
#define KEPT 0x6b657074ull

static void keep(struct nfp_frame *frame, uint32_t count)
{
	frame->tsc = KEPT << 32 | count;
}

static uint32_t kept(const struct nfp_frame *frame)
{
	return frame->tsc >> 32 == KEPT ? (uint32_t)frame->tsc : 0; // not kept: the gate was shut meanwhile
}

static uint64_t pointers_of(const struct nfp_program *program, const struct nfp_frame *frame)
{
	return argument(frame, program->pointers_argument) + program->pointers_offset;
}

static uint32_t counted(const struct nfp_program *program, const struct nfp_frame *frame)
{
	switch (program->count_from) {
	case NFP_COUNT_RETURN:
		return (uint32_t)frame->rax & program->count_mask;
	case NFP_COUNT_ARGUMENT:
		return (uint32_t)argument(frame, program->count_argument) & program->count_mask;
	case NFP_COUNT_MEMORY:
		return kept(frame);
	default:
		return program->count_argument;
	}
}

static uint32_t load_length(const uint8_t *buffer, uint16_t offset, uint8_t width)
{
	uint32_t length = 0;
	__builtin_memcpy(&length, buffer + offset, 2);
	if (width == 4)
		__builtin_memcpy(&length, buffer + offset, 4);
	return length;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint64_t load_be64(const uint8_t *bytes)
{
	uint64_t word;
	__builtin_memcpy(&word, bytes, 8);
	return __builtin_bswap64(word);
}

// One packet as a run of adjacent records: all of them, or none.
struct packet_writer {
	struct nfp_thread *thread;
	uint64_t position;
	uint32_t function;
};

static void put(struct packet_writer *writer, uint32_t kind, uint64_t word, uint32_t rsp)
{
	nfp_write(writer->thread, writer->position, word, writer->function | kind << NFP_KIND_SHIFT, rsp);
	writer->position += NFP_RECORD_BYTES;
}

static void put_addresses(struct packet_writer *writer, const struct nfp_packet_facts *facts)
{
	uint32_t ports = facts->source_port | (uint32_t)facts->destination_port << 16;
	if (facts->ip_version == 4) {
		uint64_t source = load_be64(facts->source) >> 32,
		         destination = load_be64(facts->destination) >> 32;
		put(writer, NFP_PACKET_V4, source | destination << 32, ports);
	} else if (facts->ip_version == 6) {
		put(writer, NFP_PACKET_SRC6_HIGH, load_be64(facts->source), ports);
		put(writer, NFP_PACKET_SRC6_LOW, load_be64(facts->source + 8), 0);
		put(writer, NFP_PACKET_DST6_HIGH, load_be64(facts->destination), 0);
		put(writer, NFP_PACKET_DST6_LOW, load_be64(facts->destination + 8), 0);
	}
}

struct stamp {
	uint64_t word;
	uint32_t unit;
	int there;
};

#define STAMP_AGE_MAX_TICKS (1ull << 36) // some 20 seconds
#define UNIX_NS_MIN 1000000000000000000ull // in 2001
#define UNIX_NS_MAX 4000000000000000000ull // in 2096

// A driver's stamp may be in any clock of its device: what is neither is none.
static void judge(struct stamp *stamp)
{
	if (stamp->unit != NFP_ARRIVAL_EITHER)
		return;
	stamp->there = 1;
	if (__builtin_ia32_rdtsc() - stamp->word < STAMP_AGE_MAX_TICKS)
		stamp->unit = NFP_ARRIVAL_TICKS;
	else if (stamp->word >= UNIX_NS_MIN && stamp->word <= UNIX_NS_MAX)
		stamp->unit = NFP_ARRIVAL_UNIX_NS;
	else
		stamp->there = 0;
}

static struct stamp load_stamp(const struct nfp_program *program, const uint8_t *buffer)
{
	struct stamp stamp = {.unit = program->arrival_unit};
	uint64_t flags = UINT64_MAX;
	if (program->arrival == 0xffff || program->role != NFP_ROLE_RECEIVE)
		return stamp;
	if (program->arrival_flags != 0xffff)
		__builtin_memcpy(&flags, buffer + program->arrival_flags, 8);
	if (!(flags >> (program->arrival_bit & 63) & 1))
		return stamp;
	__builtin_memcpy(&stamp.word, buffer + program->arrival, 8);
	stamp.there = 1;
	judge(&stamp);
	return stamp;
}

static void write_packet(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                         const uint8_t *buffer, uint32_t index)
{
	const uint8_t *data;
	uint16_t offset = 0;
	__builtin_memcpy(&data, buffer + program->data_pointer, sizeof(data));
	if (program->data_offset != 0xffff)
		__builtin_memcpy(&offset, buffer + program->data_offset, 2);
	uint32_t length = load_length(buffer, program->length, program->length_width);
	uint32_t readable = load_length(buffer, program->segment_length, program->segment_width);
	struct nfp_packet_facts facts;
	nfp_packet_describe(data + offset, smaller(readable, length), length, program->link_layer,
	                    nfp_library.header->digest_key, &facts);
	struct stamp stamp = load_stamp(program, buffer);
	uint32_t slots = 2 + (facts.ip_version == 4) + 4 * (facts.ip_version == 6) + (uint32_t)stamp.there;
	uint64_t position = nfp_reserve(thread, slots, NFP_LOST_PACKET);
	if (position == NFP_NO_ROOM)
		return;
	struct packet_writer writer = {thread, position, function};
	put(&writer, NFP_PACKET, (uint64_t)(uintptr_t)buffer, smaller(length, 0xffff) | index << 16);
	put(&writer, NFP_PACKET_ID, facts.digest,
	    facts.ip_id | (uint32_t)facts.protocol << 16 | (uint32_t)facts.ip_version << 24 |
	        (uint32_t)facts.flags << NFP_PACKET_MARKS_SHIFT);
	put_addresses(&writer, &facts);
	if (stamp.there)
		put(&writer, NFP_PACKET_ARRIVAL, stamp.word, stamp.unit);
}

// A buffer that is given back: by whom it is still held decides whether it is free then. NULL is allowed.
static void write_freed(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                        const uint8_t *buffer, uint32_t index)
{
	uint16_t holders = 1;
	if (!buffer)
		return;
	if (program->holders != 0xffff)
		__builtin_memcpy(&holders, buffer + program->holders, 2);
	if (holders != 1)
		return;
	uint64_t position = nfp_reserve(thread, 1, NFP_LOST_PACKET);
	if (position != NFP_NO_ROOM)
		nfp_write(thread, position, (uint64_t)(uintptr_t)buffer,
		          function | (uint32_t)NFP_PACKET << NFP_KIND_SHIFT, index << 16);
}

static void write_one(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                      const uint8_t *buffer, uint32_t index)
{
	if (program->role == NFP_ROLE_FREE)
		write_freed(thread, function, program, buffer, index);
	else
		write_packet(thread, function, program, buffer, index);
}

static void write_packets(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                          const struct nfp_frame *frame, uint32_t count)
{
	if (!(thread->gate & NFP_GATE_PACKETS) || program->pointers_argument == NFP_ABSENT)
		return;
	uint64_t pointers = pointers_of(program, frame);
	if (program->pointers_single) {
		write_one(thread, function, program, (const uint8_t *)pointers, 0);
		return;
	}
	const uint8_t *const *buffers = (const uint8_t *const *)pointers;
	for (uint32_t i = 0; i < smaller(count, program->packets_max); i++)
		write_one(thread, function, program, buffers[i], i);
}

static uint32_t received(struct nfp_program *program, const struct nfp_frame *frame)
{
	int is_zero = ((uint32_t)frame->rax & program->count_mask) == 0;
	if (program->when != NFP_WHEN_ALWAYS && is_zero != (program->when == NFP_WHEN_ZERO))
		return 0;
	if (program->count_from == NFP_COUNT_MEMORY)
		return nfp_count_in_memory(program, argument(frame, program->pointers_argument));
	return counted(program, frame);
}

// Whether the call may be described; counting alone follows the pointer of a batch only.
static int is_trusted(const struct nfp_thread *thread, struct nfp_program *program,
                      const struct nfp_frame *frame, uint32_t count)
{
	if (!program->checked || !(program->count_width || thread->gate & NFP_GATE_PACKETS))
		return 1;
	return nfp_is_plausible(program, pointers_of(program, frame), count);
}

// x86_64/thunk.S calls these three. `selector` is function id | program index << 24.
void nfp_receive_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t tsc,
                      uint32_t selector)
{
	struct nfp_program *program = &nfp_library.programs[selector >> NFP_KIND_SHIFT];
	uint32_t function = selector & NFP_FUNCTION_MASK;
	uint32_t count = received(program, frame);
	thread = nfp_thread_ready(thread, NFP_LOST_POLL);
	if (!thread)
		return;
	if (count == 0) { // a thread's first poll, or the return value does not say so
		thread->shared->empty_polls++;
		thread->shared->empty_ticks += tsc - frame->tsc;
		return;
	}
	if (!is_trusted(thread, program, frame, count))
		return;
	thread->shared->batches++;
	thread->shared->received_packets += count;
	uint64_t position = nfp_reserve(thread, 2, NFP_LOST_POLL);
	if (position != NFP_NO_ROOM) {
		uint32_t asked = smaller(requested(program, frame), 0xffff);
		nfp_write(thread, position, frame->tsc, function | (uint32_t)NFP_POLL_ENTRY << NFP_KIND_SHIFT,
		          low_rsp(frame));
		nfp_write(thread, position + NFP_RECORD_BYTES, tsc,
		          function | (uint32_t)NFP_POLL_EXIT << NFP_KIND_SHIFT,
		          smaller(count, 0xffff) | asked << 16);
	}
	write_packets(thread, function, program, frame, count);
}

void nfp_packets_entry(struct nfp_thread *thread, struct nfp_frame *frame, uint64_t tsc, uint32_t selector)
{
	(void)tsc;
	struct nfp_program *program = &nfp_library.programs[selector >> NFP_KIND_SHIFT];
	uint32_t function = selector & NFP_FUNCTION_MASK, count = requested(program, frame);
	if (program->count_width) {
		count = nfp_count_in_memory(program, argument(frame, program->pointers_argument));
		keep(frame, count);
	}
	thread = nfp_thread_ready(thread, NFP_LOST_PACKET);
	if (!thread)
		return;
	if (program->role == NFP_ROLE_MESSAGE)
		nfp_message_write(thread, function,
		                  (const char *)argument(frame, program->pointers_argument));
	else if (is_trusted(thread, program, frame, count))
		write_packets(thread, function, program, frame, count);
	else
		keep(frame, 0);
}

void nfp_packets_exit(struct nfp_thread *thread, const struct nfp_frame *frame, uint64_t tsc,
                      uint32_t selector)
{
	const struct nfp_program *program = &nfp_library.programs[selector >> NFP_KIND_SHIFT];
	uint32_t function = selector & NFP_FUNCTION_MASK;
	uint32_t count = counted(program, frame);
	uint32_t asked = program->count_width ? kept(frame) : requested(program, frame);
	if (program->verdict)
		count = asked = 0;
	thread = nfp_thread_ready(thread, NFP_LOST_CALL);
	if (!thread)
		return;
	if (program->role == NFP_ROLE_DROP) {
		thread->shared->dropped_packets += count;
	} else if (program->role == NFP_ROLE_TRANSMIT) {
		thread->shared->transmit_calls++;
		thread->shared->transmitted_packets += count;
		thread->shared->refused_packets += asked > count ? asked - count : 0;
	}
	uint64_t position = nfp_reserve(thread, 2, NFP_LOST_CALL);
	if (position == NFP_NO_ROOM)
		return;
	nfp_write(thread, position, count | (uint64_t)asked << 32,
	          function | (uint32_t)NFP_VALUE << NFP_KIND_SHIFT, low_rsp(frame));
	nfp_write(thread, position + NFP_RECORD_BYTES, tsc, function | (uint32_t)NFP_EXIT << NFP_KIND_SHIFT,
	          low_rsp(frame));
}
