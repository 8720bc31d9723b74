// SPDX-License-Identifier: Apache-2.0
// What late capture keeps of a transmit or drop call at its entry, and how it is read at the exit: the pointers of its
// packets; where packets do not stay readable, copies of their headers, too. Elsewhere copies are made for one call in
// CHECK_EVERY: where they and what is read at the exit differ, the thread copies from then on; where the array has not
// changed either, calls are looked at when they end only, up to the next check.
#include "late.h"
#include "abi/headers.h"

enum {
	CHECKED_AT_FIRST = 16, // calls of each thread
	CHECK_EVERY = 1024,
	BATCHES_TRIED = 4, // that a call may hand on as a whole
	OUTER_BYTES =
	    128, // copied of a packet where nobody looks inside tunnels: two VLAN tags, IPv6 and TCP with options
};

static inline void copy_16(uint8_t *restrict out, const uint8_t *restrict in)
{
	__builtin_memcpy(out, in, 8);
	__builtin_memcpy(out + 8, in + 8, 8);
}

static inline void copy_64(uint8_t *restrict out, const uint8_t *restrict in)
{
#pragma GCC unroll 4
	for (size_t i = 0; i < 64; i += 16)
		copy_16(out + i, in + i);
}

// Few stores and few branches: many packets have 64 bytes. The last piece overlaps the one before it.
static inline void copy_bytes(uint8_t *restrict out, const uint8_t *restrict in, size_t count)
{
	uint8_t *out_end = out + count;
	const uint8_t *in_end = in + count;
	if (count >= 64) {
		copy_64(out, in);
		for (; in_end - in > 128; out += 64, in += 64)
			copy_64(out + 64, in + 64);
		if (count > 64)
			copy_64(out_end - 64, in_end - 64);
	} else if (count >= 16) {
		for (; in_end - in > 16; out += 16, in += 16)
			copy_16(out, in);
		copy_16(out_end - 16, in_end - 16);
	} else {
		while (in < in_end)
			*out++ = *in++;
	}
}

// Copies of a packet's headers have so many bytes at most.
static uint32_t most_bytes(const struct nfp_program *program)
{
	return program->link_layer & NFP_LINK_INNER ? NFP_LATE_COPY_BYTES : OUTER_BYTES;
}

// The buffer of a packet of the call; 0: its number names none.
static uint64_t buffer_of(const struct nfp_late *late, const struct nfp_program *program, uint32_t index)
{
	return late->number_shift ? nfp_numbered_at(program, late->handed[index]) : late->held[index];
}

// A packet as its buffer says, or as that said at the entry where its head is kept.
static void read_held(const struct nfp_late *late, const struct nfp_program *program, uint32_t index,
                      struct nfp_view *view)
{
	uint64_t buffer = buffer_of(late, program, index);
	if (!late->number_shift)
		nfp_view_read(program, buffer, view);
	else if (!buffer)
		*view = (struct nfp_view){.buffer = 0};
	else if (late->headed) {
		nfp_numbered_view(program, buffer, (const uint8_t *)&late->heads[index], view);
		view->numbers = late->marks[index];
	} else
		nfp_numbered_freed_view(program, buffer, view);
}

static void copy_headers(struct nfp_late *restrict late, const struct nfp_program *restrict program)
{
	uint32_t most = most_bytes(program);
	late->copied = (uint16_t)nfp_smaller(late->count, NFP_LATE_COPIES);
	for (uint32_t i = 0; i < late->copied; i++) {
		struct nfp_late_copy *copy = &late->copies[i];
		struct nfp_view view;
		read_held(late, program, i, &view);
		copy->data = (uint64_t)(uintptr_t)view.data;
		copy->length = view.length;
		copy->readable = view.readable;
		copy->arrival = view.arrival;
		copy->stamped = (uint32_t)view.stamped;
		copy_bytes(copy->bytes, view.data, nfp_smaller(view.readable, most));
	}
}

int nfp_late_is_copying(const struct nfp_thread *thread, const struct nfp_program *program)
{
	return !program->pooled || thread->shared->copying;
}

// Keeps the heads of numbered buffers: freeing a buffer overwrites its head.
static void keep_heads(struct nfp_late *restrict late, const struct nfp_program *restrict program)
{
	uint32_t chained = 0;
	for (uint32_t i = 0; i < late->count; i++) {
		const uint8_t *buffer = (const uint8_t *)(uintptr_t)buffer_of(late, program, i);
		late->heads[i] = buffer ? nfp_load_64(buffer) : 0;
		late->marks[i] = buffer ? nfp_numbered_numbers(program, buffer) : 0;
		if (!nfp_numbered_has_next(program, (const uint8_t *)&late->heads[i]))
			continue;
		chained = 1;
		if (buffer)
			nfp_owner_inherit(late, i, nfp_numbered_next(program, (uint64_t)(uintptr_t)buffer));
	}
	late->headed = 1;
	late->chained = (uint8_t)chained;
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

static int is_same(const struct nfp_late *late, const struct nfp_late_batch *batch, const uint64_t *pointers,
                   uint64_t sum)
{
	if (late->order == NFP_ORDER_CHANGED)
		return sum == batch->sum;
	return nfp_late_is_kept(late, batch, pointers);
}

// The batch that the array is, as far as one can see, as `whole` has it: its pointers are kept already. An NF that polls
// several queues may hand on a batch when it has received the next one.
static uint64_t find_whole(struct nfp_late *late, struct nfp_burst burst)
{
	const uint64_t *pointers = (const uint64_t *)(uintptr_t)burst.pointers;
	uint64_t oldest = late->batches > BATCHES_TRIED ? late->batches - BATCHES_TRIED : 0;
	if (!late->count || burst.single || late->order == NFP_ORDER_NONE)
		return 0;
	uint64_t sum = late->order == NFP_ORDER_CHANGED ? nfp_late_sum(pointers, late->count) : 0;
	for (uint64_t number = late->batches; number-- > oldest;) {
		const struct nfp_late_batch *batch = nfp_late_batch_at(late, number);
		if (late->received - batch->first > NFP_LATE_POINTERS)
			return 0;
		if (late->count == batch->count && is_same(late, batch, pointers, sum))
			return number + 1;
	}
	return 0;
}

static void begin_call(struct nfp_thread *thread, struct nfp_burst burst, uint32_t frame)
{
	struct nfp_late *late = nfp_late_of(thread);
	thread->handing = late->frame = frame;
	late->count = nfp_smaller(burst.count, NFP_LATE_POINTERS);
	late->copied = 0;
	late->number_shift = (uint8_t)burst.number_shift;
	late->headed = late->chained = 0;
	late->array = 0;
}

static void hold_numbers(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_burst burst,
                         int copies)
{
	struct nfp_late *late = nfp_late_of(thread);
	int checks = !copies && is_due(thread, late);
	int keeps = copies || checks || late->keeps_heads;
	late->whole = 0;
	nfp_owner_tag_newest(thread);
	nfp_late_copy_numbers(late->handed, burst.numbers, late->count);
	if (keeps || nfp_late_may_become(thread, late, nfp_owner_of_all(late)))
		keep_heads(late, program);
	if (copies || checks || late->chained)
		copy_headers(late, program);
}

void nfp_late_enter(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_burst burst,
                    uint32_t frame, uint64_t ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (nfp_late_is_inside(thread, frame))
		return;
	begin_call(thread, burst, frame);
	int copies = nfp_late_is_copying(thread, program);
	if (burst.number_shift) {
		late->entered_ticks = ticks ? ticks : nfp_ticks();
		hold_numbers(thread, program, burst, copies);
		return;
	}
	// nfp_late_take, which would notice a wrong guess, is not called then.
	if (copies && late->order == NFP_ORDER_KEPT)
		late->order = NFP_ORDER_CHANGED;
	late->whole = find_whole(late, burst);
	copies = copies || is_due(thread, late);
	if (!copies && late->whole) {
		late->array = burst.pointers;
		return;
	}
	if (burst.single)
		late->held[0] = burst.pointers;
	else
		nfp_late_copy_pointers(late->held, (const uint64_t *)(uintptr_t)burst.pointers, late->count);
	late->place = burst.single ? 0 : burst.pointers;
	if (copies)
		copy_headers(late, program);
}

// Keeps the pointers of an array that nobody looked at before the call: only of packets that this thread has received. If
// there are others the array was changed in the call, and its packets are counted with the newest batch.
static void hold_received(struct nfp_late *late, const uint64_t *pointers)
{
	uint64_t oldest = nfp_late_oldest_kept(late);
	for (uint32_t i = 0; i < late->count; i++) {
		uint64_t pointer = late->held[i] = pointers[i];
		if (!pointer ||
		    nfp_late_find_below(late, pointer, late->received, oldest) == NFP_LATE_NOWHERE) {
			late->count = 0;
			late->whole = late->batches;
			return;
		}
	}
}

void nfp_late_catch_up(struct nfp_thread *thread, struct nfp_burst burst, uint32_t frame)
{
	struct nfp_late *late = nfp_late_of(thread);
	begin_call(thread, burst, frame);
	late->whole = find_whole(late, burst);
	if ((late->whole || !burst.count) && late->until_check)
		late->until_check--;
	else
		thread->packets_entry = (void *)nfp_packets_entry_thunk;
	if (late->whole)
		late->array = burst.pointers;
	else
		hold_received(late, (const uint64_t *)(uintptr_t)burst.pointers);
}

static int is_same_bytes(const uint8_t *left, const uint8_t *right, uint32_t count)
{
	uint32_t at = 0;
	for (; at + 8 <= count; at += 8) {
		uint64_t a, b;
		__builtin_memcpy(&a, left + at, 8);
		__builtin_memcpy(&b, right + at, 8);
		if (a != b)
			return 0;
	}
	for (; at < count; at++)
		if (left[at] != right[at])
			return 0;
	return 1;
}

// As above for numbers.
static int take_numbers(struct nfp_late *late)
{
	const uint32_t *next = late->numbers + late->left;
	uint32_t bytes = late->count * (uint32_t)sizeof(*next);
	nfp_late_copy_numbers(late->handed, next, late->count);
	if (is_same_bytes((const uint8_t *)(uintptr_t)late->array, (const uint8_t *)next, bytes))
		return 1;
	late->order = NFP_ORDER_NONE;
	return 0;
}

int nfp_late_take(struct nfp_late *late)
{
	if (late->number_shift)
		return take_numbers(late);
	const uint64_t *pointers = (const uint64_t *)(uintptr_t)late->array;
	const struct nfp_late_batch *batch = nfp_late_batch_at(late, late->whole - 1);
	for (uint32_t i = 0; i < late->count; i++) {
		late->held[i] = pointers[i];
		uint64_t position =
		    late->order == NFP_ORDER_CHANGED
		        ? nfp_late_find_below(late, pointers[i], batch->first + batch->count, batch->first)
		        : batch->first + i;
		if (position == NFP_LATE_NOWHERE || nfp_late_pointer_at(late, position) != late->held[i]) {
			late->order++;
			return 0;
		}
	}
	return 1;
}

static int is_unchanged(const struct nfp_late_copy *copy, const struct nfp_view *view,
                        const struct nfp_program *program)
{
	if (copy->data != (uint64_t)(uintptr_t)view->data || copy->length != view->length ||
	    copy->readable != view->readable || copy->stamped != (uint32_t)view->stamped ||
	    (view->stamped && copy->arrival != view->arrival))
		return 0;
	return is_same_bytes(copy->bytes, view->data, nfp_smaller(copy->readable, most_bytes(program)));
}

// Whether the array of the call that ends holds what it held at the entry: one whole batch.
static int is_lasting(const struct nfp_late *late)
{
	const uint64_t *pointers = (const uint64_t *)(uintptr_t)late->place;
	if (!late->whole || !pointers)
		return 0;
	return is_same_bytes((const uint8_t *)pointers, (const uint8_t *)late->held,
	                     late->count * (uint32_t)sizeof(*pointers));
}

// Whether a packet can be told by what is there now, without its buffer's head as it was.
static void check_freed(struct nfp_late *late, const struct nfp_program *program, uint32_t index)
{
	struct nfp_view view;
	uint64_t buffer = buffer_of(late, program, index);
	if (!buffer)
		return;
	nfp_numbered_freed_view(program, buffer, &view);
	const struct nfp_late_copy *copy = &late->copies[index];
	uint32_t bytes = nfp_smaller(nfp_smaller(copy->readable, view.readable), most_bytes(program));
	if (copy->data != (uint64_t)(uintptr_t)view.data || copy->length != view.length ||
	    !is_same_bytes(copy->bytes, view.data, bytes))
		late->keeps_heads = 1;
}

void nfp_late_check(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_late *late)
{
	for (uint32_t i = 0; i < late->copied; i++) {
		struct nfp_view view;
		read_held(late, program, i, &view);
		thread->shared->checked_packets++;
		if (late->number_shift && !late->keeps_heads)
			check_freed(late, program, i);
		if (is_unchanged(&late->copies[i], &view, program))
			continue;
		thread->shared->differing_packets++;
		thread->shared->copying = 1;
		late->until_check = 0;
	}
	if (program->plain && late->until_check && !thread->shared->copying && is_lasting(late))
		thread->packets_entry = (void *)nfp_trusted_entry_thunk;
}

void nfp_late_view(const struct nfp_late *late, const struct nfp_program *program, uint32_t index,
                   struct nfp_view *view)
{
	if (index >= late->copied) {
		read_held(late, program, index, view);
		return;
	}
	const struct nfp_late_copy *copy = &late->copies[index];
	*view = (struct nfp_view){.buffer = buffer_of(late, program, index),
	                          .data = copy->bytes,
	                          .readable = nfp_smaller(copy->readable, most_bytes(program)),
	                          .length = copy->length,
	                          .arrival = copy->arrival,
	                          .stamped = (int)copy->stamped,
	                          .numbers = late->headed ? late->marks[index] : 0};
}
