// SPDX-License-Identifier: Apache-2.0
// Late capture: packets are identified when a transmit or drop call ends, and only those that deserve it: of a batch
// that has become old, or that was drawn for the sample.
//
//   receive exit    the pointers are kept in the order of their receipt; the batch is drawn, or not
//   transmit entry  the pointers are kept: the driver may overwrite or free what they lead to. Where packets do not
//                   stay readable, their headers are copied, too; elsewhere for one call in CHECK_EVERY
//   transmit exit   is any of them old enough, or drawn? Most calls end here. Else each packet's own batch is looked
//                   for among the pointers, and its headers are read
//
// Where copies and what is read afterwards differ, the thread copies from then on. Runs on the target's threads;
// called by capture.c. Never writes but in its thread's own memory, and every index is bounded.
#include "late.h"
#include "describe.h"
#include "nfprobe/headers.h"

enum {
	CHECKED_AT_FIRST = 16, // calls of each thread
	CHECK_EVERY = 256,
	OUTER_BYTES =
	    128, // copied of a packet where nobody looks inside tunnels: two VLAN tags, IPv6 and TCP with options
	MISSES_MAX =
	    2, // packets of a call that are looked for in vain before it is taken for one of unknown age
};

#define NOWHERE UINT64_MAX
#define NO_OFFSET 0xffff
#define WEYL 0x9e3779b97f4a7c15ull

static struct nfp_late *late_of(const struct nfp_thread *thread)
{
	return &nfp_library.late[thread->index];
}

static struct nfp_late_batch *batch_at(struct nfp_late *late, uint64_t number)
{
	return &late->batch[number % NFP_LATE_BATCHES];
}

static uint64_t pointer_at(const struct nfp_late *late, uint64_t position)
{
	return late->pointers[position % NFP_LATE_POINTERS];
}

// ---- which batches ----------------------------------------------------------------------------------------

// Whether a batch is drawn: by a hash of its number, so that each one is equally likely, whatever repeats in the NF.
static uint32_t is_drawn(const struct nfp_thread *thread, uint64_t number)
{
	uint64_t hash = nfp_library.header->digest_key[0] ^ (number + ((uint64_t)thread->index << 40)) * WEYL;
	hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull;
	hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
	return hash >> 32 < __atomic_load_n(&thread->shared->late.sample, __ATOMIC_RELAXED);
}

static void note(struct nfp_thread *thread, struct nfp_late *late, uint32_t function, uint32_t drawn)
{
	if (late->noted && !drawn)
		return;
	uint64_t position = nfp_reserve(thread, 1, NFP_LOST_PACKET);
	if (position == NFP_NO_ROOM)
		return;
	nfp_write(thread, position, 0, function | (uint32_t)NFP_BATCH_NOTE << NFP_KIND_SHIFT,
	          NFP_NOTE_LATE | (drawn ? NFP_NOTE_DRAWN : 0));
	late->noted = 1;
}

// What was there already while a late batch was worked on has waited for as long as that took. Batches that took
// long because their own packets were identified do not count: else each would be followed by another one.
static uint64_t find_behind(const struct nfp_thread *thread, const struct nfp_late *late,
                            const struct nfp_late_batch *before, uint64_t start_ticks)
{
	int waited = before->is_late && late->batches && thread->shared->empty_polls == late->empty_polls;
	return waited ? before->start_ticks : start_ticks;
}

static void copy_pointers(uint64_t *restrict out, const uint64_t *restrict in, uint32_t count)
{
#pragma GCC unroll 8
	for (uint32_t i = 0; i < count; i++)
		out[i] = in[i];
}

static void keep_received(struct nfp_late *late, const struct nfp_burst *burst, uint32_t count)
{
	const uint64_t *in = (const uint64_t *)(uintptr_t)burst->pointers;
	uint32_t at = (uint32_t)(late->received % NFP_LATE_POINTERS);
	uint32_t first = nfp_smaller(count, NFP_LATE_POINTERS - at);
	if (burst->single) {
		late->pointers[at] = burst->pointers;
		return;
	}
	copy_pointers(late->pointers + at, in, first);
	copy_pointers(late->pointers, in + first, count - first);
}

void nfp_late_receive(struct nfp_thread *thread, uint32_t function, const struct nfp_burst *burst,
                      uint64_t start_ticks)
{
	struct nfp_late *late = late_of(thread);
	uint32_t count = nfp_smaller(burst->count, NFP_LATE_POINTERS);
	uint32_t drawn = is_drawn(thread, late->batches);
	const struct nfp_late_batch *before = batch_at(late, late->batches - 1);
	uint64_t behind_ticks = find_behind(thread, late, before, start_ticks);
	struct nfp_late_batch *batch = batch_at(late, late->batches);
	*batch = (struct nfp_late_batch){start_ticks,     behind_ticks,   late->received,
	                                 (uint16_t)count, (uint8_t)drawn, 0};
	keep_received(late, burst, count);
	late->received += count;
	late->batches++;
	late->empty_polls = thread->shared->empty_polls;
	late->frame = 0;
	note(thread, late, function, drawn);
}

// ---- what is kept of a call ---------------------------------------------------------------------------------

static inline void copy_16(uint8_t *restrict out, const uint8_t *restrict in)
{
	__builtin_memcpy(out, in, 8);
	__builtin_memcpy(out + 8, in + 8, 8);
}

static inline void copy_64(uint8_t *restrict out, const uint8_t *restrict in)
{
#pragma GCC unroll 4
	for (uint32_t i = 0; i < 64; i += 16)
		copy_16(out + i, in + i);
}

// Few stores and few branches. The last piece overlaps the one before it.
static void copy_bytes(uint8_t *restrict out, const uint8_t *restrict in, uint32_t count)
{
	if (count < 64) {
		for (uint32_t i = 0; i < count; i++)
			out[i] = in[i];
		return;
	}
	uint32_t at = 0;
	for (; at + 64 <= count; at += 64)
		copy_64(out + at, in + at);
	for (; at + 16 < count; at += 16)
		copy_16(out + at, in + at);
	copy_16(out + count - 16, in + count - 16);
}

// Copies of a packet's headers have so many bytes at most.
static uint32_t most_bytes(const struct nfp_program *program)
{
	return program->link_layer & NFP_LINK_INNER ? NFP_LATE_COPY_BYTES : OUTER_BYTES;
}

static void copy_headers(struct nfp_late *late, const struct nfp_program *program)
{
	uint32_t most = most_bytes(program);
	late->copied = nfp_smaller(late->count, NFP_LATE_COPIES);
	for (uint32_t i = 0; i < late->copied; i++) {
		struct nfp_late_copy *copy = &late->copies[i];
		struct nfp_view view;
		nfp_view_read(program, late->held[i], &view);
		copy->data = (uint64_t)(uintptr_t)view.data;
		copy->length = view.length;
		copy->readable = view.readable;
		if (program->arrival != NO_OFFSET)
			copy->arrival = view.arrival;
		copy_bytes(copy->bytes, view.data, nfp_smaller(view.readable, most));
	}
}

static int is_copying(const struct nfp_thread *thread, const struct nfp_program *program)
{
	return !program->pooled || thread->shared->copying;
}

static int is_due(struct nfp_thread *thread, struct nfp_late *late)
{
	if (late->until_check) {
		late->until_check--;
		return 0;
	}
	late->until_check = thread->shared->checked_calls++ < CHECKED_AT_FIRST ? 0 : CHECK_EVERY - 1;
	return 1;
}

// Whether the array begins and ends as the last batch: then its pointers are kept already, as far as one can see.
static int is_last_batch(struct nfp_late *late, const struct nfp_burst *burst)
{
	const uint64_t *pointers = (const uint64_t *)(uintptr_t)burst->pointers;
	const struct nfp_late_batch *batch = batch_at(late, late->batches - 1);
	return late->batches && late->count == batch->count && late->count && !burst->single &&
	       pointers[0] == pointer_at(late, batch->first) &&
	       pointers[late->count - 1] == pointer_at(late, batch->first + batch->count - 1);
}

void nfp_late_enter(struct nfp_thread *thread, const struct nfp_program *program,
                    const struct nfp_burst *burst, uint64_t frame)
{
	struct nfp_late *late = late_of(thread);
	if (late->frame > frame)
		return; // inside a call that hands on the same packets
	late->frame = frame;
	late->count = nfp_smaller(burst->count, NFP_LATE_POINTERS);
	late->copied = 0;
	late->array = 0;
	int copies = is_copying(thread, program) || is_due(thread, late);
	if (!copies && !late->changes && is_last_batch(late, burst)) {
		late->array = burst->pointers;
		return;
	}
	if (burst->single)
		late->held[0] = burst->pointers;
	else
		copy_pointers(late->held, (const uint64_t *)(uintptr_t)burst->pointers, late->count);
	if (copies)
		copy_headers(late, program);
}

// Puts the last batch's pointers into `held`. 0: the array does not hold them, or not any more.
static int take_batch(struct nfp_late *late)
{
	const uint64_t *pointers = (const uint64_t *)(uintptr_t)late->array;
	const struct nfp_late_batch *batch = batch_at(late, late->batches - 1);
	for (uint32_t i = 0; i < late->count; i++) {
		late->held[i] = pointer_at(late, batch->first + i);
		if (late->held[i] != pointers[i])
			return 0;
	}
	return 1;
}

static int is_unchanged(const struct nfp_late_copy *copy, const struct nfp_view *view,
                        const struct nfp_program *program)
{
	if (copy->data != (uint64_t)(uintptr_t)view->data || copy->length != view->length ||
	    copy->readable != view->readable ||
	    (program->arrival != NO_OFFSET && copy->arrival != view->arrival))
		return 0;
	for (uint32_t i = 0; i < nfp_smaller(copy->readable, most_bytes(program)); i++)
		if (copy->bytes[i] != view->data[i])
			return 0;
	return 1;
}

// Reads again what was copied at the entry. The first difference makes the thread copy from then on.
static void check(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_late *late)
{
	for (uint32_t i = 0; i < late->copied; i++) {
		struct nfp_view view;
		nfp_view_read(program, late->held[i], &view);
		thread->shared->checked_packets++;
		if (is_unchanged(&late->copies[i], &view, program))
			continue;
		thread->shared->differing_packets++;
		thread->shared->copying = 1;
	}
}

// ---- what deserves it -----------------------------------------------------------------------------------------

static uint64_t oldest_position(struct nfp_late *late)
{
	uint64_t kept = late->received > NFP_LATE_POINTERS ? late->received - NFP_LATE_POINTERS : 0;
	uint64_t batched =
	    late->batches > NFP_LATE_BATCHES ? batch_at(late, late->batches - NFP_LATE_BATCHES)->first : 0;
	return kept > batched ? kept : batched;
}

// The latest position below `before` where the pointer was received, or NOWHERE.
static uint64_t find_below(const struct nfp_late *late, uint64_t pointer, uint64_t before, uint64_t oldest)
{
	while (before > oldest)
		if (pointer_at(late, --before) == pointer)
			return before;
	return NOWHERE;
}

// The batch that holds the position; it does not begin before `oldest_position`.
static struct nfp_late_batch *find_batch(struct nfp_late *late, uint64_t position)
{
	uint64_t number = late->batches - 1;
	while (batch_at(late, number)->first > position)
		number--;
	return batch_at(late, number);
}

static int deserves(struct nfp_late_batch *batch, uint64_t ticks, uint64_t late_ticks)
{
	batch->is_late |= ticks - batch->start_ticks >= late_ticks;
	return batch->drawn || ticks - batch->behind_ticks >= late_ticks;
}

// The part of what was received, from `first` up to `last`, that the packets of the call came in. Packets mostly leave
// in the order of their receipt, so they are looked for from the last one on, each below the one before it. Where the NF
// changes their order a packet may be taken for an older one with the same buffer: then more is looked at than need be.
// Returns 0 when none is found.
static int find_span(const struct nfp_late *late, uint64_t oldest, uint64_t *first, uint64_t *last)
{
	uint64_t before = late->received;
	uint32_t misses = 0, found = 0;
	for (uint32_t i = late->count; i-- > 0 && misses < MISSES_MAX;) {
		uint64_t position = find_below(late, late->held[i], before, oldest);
		if (position == NOWHERE) {
			misses++;
			continue;
		}
		if (!found++)
			*last = position;
		*first = before = position;
	}
	return found != 0;
}

// Whether any packet of the call may deserve it.
static int may_deserve(struct nfp_late *late, uint64_t ticks, uint64_t late_ticks)
{
	if (!late_ticks)
		return 1;
	if (!late->batches)
		return 0;
	struct nfp_late_batch *batch = batch_at(late, late->batches - 1);
	uint64_t first = 0, last = 0;
	if (late->array)
		return deserves(batch, ticks, late_ticks);
	if (!find_span(late, oldest_position(late), &first, &last))
		return 0;
	for (uint64_t number = late->batches; number-- > 0;) {
		batch = batch_at(late, number);
		if (batch->first <= last && deserves(batch, ticks, late_ticks))
			return 1;
		if (batch->first <= first)
			return 0;
	}
	return 0;
}

// Which batch of this thread the packet came with: the last one that held its buffer.
static struct nfp_late_batch *find_origin(struct nfp_late *late, uint64_t buffer, struct nfp_origin *origin)
{
	uint64_t position =
	    late->batches ? find_below(late, buffer, late->received, oldest_position(late)) : NOWHERE;
	if (position == NOWHERE) {
		*origin = (struct nfp_origin){0, NFP_NO_POSITION};
		return 0;
	}
	struct nfp_late_batch *batch = find_batch(late, position);
	*origin = (struct nfp_origin){batch->start_ticks, (uint32_t)(position - batch->first)};
	return batch;
}

static void identify(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                     uint32_t index, const struct nfp_origin *origin)
{
	struct nfp_late *late = late_of(thread);
	struct nfp_view view;
	if (index < late->copied) {
		const struct nfp_late_copy *copy = &late->copies[index];
		view = (struct nfp_view){.buffer = late->held[index],
		                         .data = copy->bytes,
		                         .readable = nfp_smaller(copy->readable, most_bytes(program)),
		                         .length = copy->length,
		                         .arrival = copy->arrival};
	} else {
		nfp_view_read(program, late->held[index], &view);
	}
	thread->shared->identified_packets++;
	thread->shared->unplaced_packets += !origin->start_ticks;
	nfp_describe(thread, function, program, &view, index, origin);
}

void nfp_late_exit(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                   uint64_t frame, uint64_t ticks, uint32_t count)
{
	struct nfp_late *late = late_of(thread);
	if (late->frame != frame)
		return;
	late->frame = 0;
	uint64_t late_ticks = __atomic_load_n(&thread->shared->late.late_ticks, __ATOMIC_RELAXED);
	if (late->copied && !is_copying(thread, program))
		check(thread, program, late);
	if (!may_deserve(late, ticks, late_ticks))
		return;
	uint32_t readable = is_copying(thread, program) ? late->copied : late->count;
	if (late->array && !take_batch(late)) {
		late->changes = 1;
		readable = 0;
	}
	thread->shared->unheld_packets += count > readable ? count - readable : 0;
	for (uint32_t i = 0; i < nfp_smaller(count, readable); i++) {
		struct nfp_origin origin;
		struct nfp_late_batch *batch = find_origin(late, late->held[i], &origin);
		if (!late_ticks || (batch && deserves(batch, ticks, late_ticks)))
			identify(thread, function, program, i, &origin);
	}
}
