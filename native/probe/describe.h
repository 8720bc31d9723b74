// SPDX-License-Identifier: Apache-2.0
// A packet as a probe sees it, and the records that describe it.
#ifndef NFPROBE_DESCRIBE_H
#define NFPROBE_DESCRIBE_H
#include "library.h"

// Where the bytes of a packet are, as its buffer says.
struct nfp_view {
	uint64_t buffer;
	const uint8_t *data;
	uint32_t readable; // of the first segment
	uint32_t length; // of the whole packet
	uint64_t arrival; // stamp
	int stamped; // whether there is one
	uint64_t numbers; // word of NFP_PACKET_NUMBERS; 0: none is known
	uint64_t next; // its second buffer; 0: it has none, or this is not looked at
};

// A call that took a packet over which was handed over again.
enum { NFP_VIAS_MAX = 3 };
struct nfp_via {
	uint64_t ticks; // its entry
	uint32_t thread;
};

// Which packet of which receive call it was.
struct nfp_origin {
	uint64_t start_ticks; // entry of that call; 0: not known
	uint32_t index; // position in the burst, or NFP_NO_POSITION
	uint32_t thread; // that made it, by its index
	uint32_t taken_index; // position in the burst of ...
	uint64_t
	    taken_ticks; // ... the call of this thread that took the packet over: its entry; 0: none is known
	uint32_t via_count;
	struct nfp_via via[NFP_VIAS_MAX];
};

// Whether the packet went from thread to thread.
static inline int nfp_origin_is_taken(const struct nfp_origin *origin, const struct nfp_thread *thread)
{
	return origin && origin->start_ticks && (origin->taken_ticks || origin->thread != thread->index);
}

static inline uint32_t nfp_smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t nfp_larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline uint32_t nfp_load_length(const uint8_t *buffer, uint16_t offset, uint8_t width)
{
	uint16_t length;
	uint32_t wide;
	if (width == 4) {
		__builtin_memcpy(&wide, buffer + offset, 4);
		return wide;
	}
	__builtin_memcpy(&length, buffer + offset, 2);
	return length;
}

// numbered.c, for buffers that are named by numbers. `head` is the buffer's beginning, or a copy of its first 8 bytes.
void nfp_numbered_view(const struct nfp_program *program, uint64_t buffer, const uint8_t *head,
                       struct nfp_view *view);

// The numbers that a buffer which has not been freed yet holds of interfaces and reasons.
uint64_t nfp_numbered_numbers(const struct nfp_program *program, const uint8_t *buffer);

// Whether the packet goes on in another buffer.
static inline int nfp_numbered_has_next(const struct nfp_program *program, const uint8_t *head)
{
	uint32_t flags;
	__builtin_memcpy(&flags, head + program->next_flags, sizeof(flags));
	return flags >> (program->next_bit & 31) & 1;
}

// Whether the buffer bears an arrival stamp, which goes to `stamp`; 0 there where the program knows no place for one.
static inline int nfp_read_stamp(const struct nfp_program *program, const uint8_t *buffer, uint64_t *stamp)
{
	uint64_t flags = UINT64_MAX;
	*stamp = 0;
	if (program->arrival == NFP_NO_OFFSET)
		return 0;
	if (program->arrival_flags != NFP_NO_OFFSET)
		__builtin_memcpy(&flags, buffer + program->arrival_flags, 8);
	__builtin_memcpy(stamp, buffer + program->arrival, 8);
	return (int)(flags >> (program->arrival_bit & 63) & 1);
}

static inline void nfp_view_read(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view)
{
	if (program->number_shift) {
		struct nfp_view numbered; // else `view` is kept in memory elsewhere, too
		nfp_numbered_view(program, buffer, (const uint8_t *)(uintptr_t)buffer, &numbered);
		*view = numbered;
		return;
	}
	const uint8_t *bytes = (const uint8_t *)(uintptr_t)buffer;
	uint16_t offset = 0;
	view->buffer = buffer;
	__builtin_memcpy(&view->data, bytes + program->data_pointer, sizeof(view->data));
	if (program->data_offset != NFP_NO_OFFSET)
		__builtin_memcpy(&offset, bytes + program->data_offset, 2);
	view->data += offset;
	view->length = nfp_load_length(bytes, program->length, program->length_width);
	view->readable = nfp_smaller(nfp_load_length(bytes, program->segment_length, program->segment_width),
	                             view->length);
	view->numbers = view->next = 0;
	view->stamped = nfp_read_stamp(program, bytes, &view->arrival);
}

// validate.c: the same, as the kernel reads it, and `readable` may be more than `length`. Returns 0 where the buffer is gone.
// Not of numbered buffers.
int nfp_view_copy(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view);

// Older stamps are rejected if their clock is unknown.
#define NFP_STAMP_AGE_MAX_TICKS (1ull << 36) // some 20 seconds

// When the packet arrived, where it bears a stamp in ticks that is not later than the call which received it; 0: no such
// stamp. That of a batch's first packet is the earliest of its batch: queues keep the order of arrival.
static inline uint64_t nfp_arrival_ticks(const struct nfp_program *program, uint64_t buffer,
                                         uint64_t received_ticks)
{
	uint64_t stamp;
	if (program->number_shift || !buffer || program->arrival_unit == NFP_ARRIVAL_UNIX_NS)
		return 0;
	return nfp_read_stamp(program, (const uint8_t *)(uintptr_t)buffer, &stamp) &&
	               received_ticks - stamp < NFP_STAMP_AGE_MAX_TICKS
	           ? stamp
		   : 0;
}

// Writes the packet's records, all of them or none. `index` is its position in the burst of this call; `origin` may be
// NULL.
void nfp_describe(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                  const struct nfp_view *view, uint32_t index, const struct nfp_origin *origin);
// The same for all packets of a call.
void nfp_describe_burst(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                        const uint64_t *buffers, uint32_t count);
#endif
