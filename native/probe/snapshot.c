// SPDX-License-Identifier: Apache-2.0
// What late capture keeps of a transmit or drop call at its entry, and how it is read at the exit:
//
//   buffers from pools, which stay mapped     the pointers of its packets; the kernel reads them at the exit where it is
//                                             a person who says that they stay
//   others, which may be freed                where their bytes are, too, with a mark of these: at the exit the kernel
//                                             reads them, so that memory which is gone is no fault, and the mark tells
//                                             whether it holds what it held
//   bytes that the call overwrites            copies of them
//
// All bytes are copied for one call in CHECK_EVERY, and where packets will be identified. Where they and what is read
// at the exit differ, the thread copies the packets' first bytes from then on, up to the last one that differed: mostly the
// addresses of a router's frames. Where not even the array has changed, calls are looked at when they end only, up to the
// next check.
#include "late.h"
#include "abi/headers.h"

enum {
	CHECKED_AT_FIRST = 16, // calls of each thread
	CHECK_EVERY = 1024,
	BATCHES_TRIED = 4, // that a call may hand on as a whole
	PIECE_BYTES = 16, // copied at once
	HEAD_BYTES = 64, // of a packet that is copied in part, at most
	MARK_BYTES = 8, // of each of its three pieces
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

// So many bytes of a packet's headers are of interest at most.
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

// Tells the bytes behind those that are copied from others, by three pieces of 8: what is written into a buffer that is used
// again begins before the packet's second piece, however short it is. Of IPv4 over Ethernet they are the type, the checksum
// with addresses, and the checksum of UDP or the sequence numbers of TCP.
static inline uint32_t mark_of(const uint8_t *bytes, uint32_t count, uint32_t copied)
{
	uint32_t first = nfp_larger(copied, 8), second = nfp_larger(copied, 24),
	         third = nfp_larger(copied, 38);
	if (__builtin_expect(count < third + MARK_BYTES, 0)) {
		if (count < MARK_BYTES)
			return 0;
		third = count - MARK_BYTES;
		second = nfp_smaller(second, third);
		first = nfp_smaller(first, third);
	}
	uint64_t part = nfp_load_64(bytes + first) * NFP_WEYL;
	part = (part ^ nfp_load_64(bytes + second)) * NFP_WEYL;
	part ^= nfp_load_64(bytes + third);
	return (uint32_t)(part ^ part >> 32);
}

static inline uint64_t place_of(const uint8_t *data, uint32_t count)
{
	uint64_t address =
	    (uint64_t)(uintptr_t)data & NFP_SEEN_ADDRESS; // a wrong one must not look like a count
	return address | (uint64_t)count << NFP_SEEN_BITS;
}

static uint64_t address_of(const struct nfp_late_seen *seen)
{
	return seen->place & NFP_SEEN_ADDRESS;
}

static uint32_t count_of(const struct nfp_late_seen *seen)
{
	return (uint32_t)(seen->place >> NFP_SEEN_BITS);
}

// Notes where a packet's bytes are, and copies the first ones.
static inline void keep_packet(struct nfp_late *restrict late, uint32_t index, const uint8_t *restrict data,
                               uint32_t count, uint32_t length, uint32_t copied)
{
	late->seen[index] = (struct nfp_late_seen){
	    .place = place_of(data, count),
	    .length = length,
	    .mark = mark_of(data, count, copied),
	};
	if (copied == PIECE_BYTES && count >= PIECE_BYTES)
		copy_16(late->copies[index], data);
	else if (copied)
		copy_bytes(late->copies[index], data, nfp_smaller(count, copied));
}

// Of pointers. As nfp_view_read, but nothing goes through memory, and what does not differ from packet to
// packet is read once.
static void keep_pointers(struct nfp_late *restrict late, const struct nfp_program *restrict program,
                          uint32_t most, uint32_t copied)
{
	const uint32_t data_at = program->data_pointer, offset_at = program->data_offset;
	const uint32_t length_at = program->length, segment_at = program->segment_length;
	const uint32_t is_wide = program->length_width == 4, is_segment_wide = program->segment_width == 4;
	for (uint32_t i = 0; i < late->count; i++) {
		const uint8_t *buffer = (const uint8_t *)(uintptr_t)late->held[i], *data;
		uint16_t offset = 0;
		__builtin_memcpy(&data, buffer + data_at, sizeof(data));
		if (offset_at != NFP_NO_OFFSET)
			__builtin_memcpy(&offset, buffer + offset_at, sizeof(offset));
		uint32_t length = nfp_load_length(buffer, (uint16_t)length_at, is_wide ? 4 : 2);
		uint32_t segment = nfp_load_length(buffer, (uint16_t)segment_at, is_segment_wide ? 4 : 2);
		uint32_t count = nfp_smaller(nfp_smaller(segment, length), most);
		keep_packet(late, i, data + offset, count, length, copied);
	}
}

static int has_stamps(const struct nfp_late *late, const struct nfp_program *program)
{
	return program->arrival != NFP_NO_OFFSET && !late->number_shift;
}

// Where bytes are and, of each packet, the first `copied` ones.
static void keep_seen(struct nfp_late *restrict late, const struct nfp_program *restrict program,
                      uint32_t copied)
{
	uint32_t most = most_bytes(program);
	late->seen_packets = 1;
	late->copied = (uint8_t)copied;
	if (!late->number_shift)
		keep_pointers(late, program, most, copied);
	for (uint32_t i = 0; late->number_shift && i < late->count; i++) {
		struct nfp_view view;
		read_held(late, program, i, &view);
		keep_packet(late, i, view.data, nfp_smaller(view.readable, most), view.length, copied);
	}
	for (uint32_t i = 0; has_stamps(late, program) && i < late->count; i++) {
		uint64_t stamp = 0;
		int stamped = nfp_read_stamp(program, (const uint8_t *)(uintptr_t)late->held[i], &stamp);
		late->arrivals[i] = stamped ? stamp : 0;
	}
}

// Whether packets may be gone when a call ends, but for their bytes. The kernel must read these then, which it may do for
// programs that are checked.
static int is_seen(const struct nfp_program *program)
{
	return !program->pooled && program->checked;
}

// How many bytes of each packet do not stay.
static uint32_t passing_bytes(const struct nfp_thread *thread, const struct nfp_program *program)
{
	int rereads = program->checked && !program->number_shift;
	if (!(program->pooled || rereads) || (thread->shared->copying && program->number_shift))
		return most_bytes(program);
	return nfp_smaller((uint32_t)thread->shared->copying, most_bytes(program));
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

static uint8_t is_due(struct nfp_thread *thread, struct nfp_late *late)
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
	late->seen_packets = late->copied = late->checks = 0;
	late->number_shift = (uint8_t)burst.number_shift;
	late->headed = late->chained = 0;
	late->array = 0;
}

static void hold_numbers(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_burst burst)
{
	struct nfp_late *late = nfp_late_of(thread);
	uint32_t passing = passing_bytes(thread, program);
	late->checks = !passing && is_due(thread, late);
	late->whole = 0;
	nfp_owner_tag_newest(thread);
	nfp_late_copy_numbers(late->handed, burst.numbers, late->count);
	if (passing || late->checks || late->keeps_heads ||
	    nfp_late_may_become(thread, late, nfp_owner_of_all(late)))
		keep_heads(late, program);
	if (passing || late->checks || late->chained)
		keep_seen(late, program, most_bytes(program));
	else if (late->takes) // other threads may receive into what the call frees, before it ends
		keep_seen(late, program, 0);
}

// Whether packets of the call are identified for sure, or, where they are not a whole batch, those of the newest one are.
static int is_wanted(const struct nfp_thread *thread, struct nfp_late *late, uint64_t ticks)
{
	uint64_t number = late->whole ? late->whole : late->batches;
	return number &&
	       nfp_late_is_wanted(thread, nfp_late_batch_at(late, number - 1), ticks ? ticks : nfp_ticks());
}

void nfp_late_enter(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_burst burst,
                    uint32_t frame, uint64_t ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (nfp_late_is_inside(thread, frame))
		return;
	begin_call(thread, burst, frame);
	if (burst.number_shift) {
		late->entered_ticks = ticks ? ticks : nfp_ticks();
		hold_numbers(thread, program, burst);
		return;
	}
	uint32_t passing = passing_bytes(thread, program), most = most_bytes(program);
	late->whole = find_whole(late, burst);
	late->checks = passing < most && is_due(thread, late);
	if (!passing && !late->checks && late->whole && !program->checked) {
		late->array = burst.pointers;
		return;
	}
	if (burst.single)
		late->held[0] = burst.pointers;
	else
		nfp_late_copy_pointers(late->held, (const uint64_t *)(uintptr_t)burst.pointers, late->count);
	late->place = burst.single ? 0 : burst.pointers;
	if (!passing && !late->checks && !is_seen(program))
		return;
	int all = late->checks || is_wanted(thread, late, ticks);
	keep_seen(late, program, all ? most : passing);
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
	const uint64_t *pointers = late->array ? (const uint64_t *)(uintptr_t)late->array : late->held;
	const struct nfp_late_batch *batch = nfp_late_batch_at(late, late->whole - 1);
	for (uint32_t i = 0; i < late->count; i++) {
		late->held[i] = pointers[i];
		uint64_t position =
		    late->order == NFP_ORDER_CHANGED
		        ? nfp_late_find_below(late, pointers[i], batch->first + batch->count, batch->first)
		        : batch->first + i;
		if (position == NFP_LATE_NOWHERE || nfp_late_pointer_at(late, position) != late->held[i]) {
			late->order++;
			return !late->array;
		}
	}
	return 1;
}

// Reads bytes at the end of a call. Returns 0 where they are gone.
static int read_again(const struct nfp_program *program, uint8_t *out, uint64_t address, uint32_t count)
{
	if (program->checked)
		return nfp_copy_readable(out, address, count);
	copy_bytes(out, (const uint8_t *)(uintptr_t)address, count);
	return 1;
}

// Completes a packet's copy. Returns 0 where the other bytes are gone.
static int complete(struct nfp_late *late, const struct nfp_program *program, uint32_t index)
{
	const struct nfp_late_seen *seen = &late->seen[index];
	uint32_t count = count_of(seen), copied = late->copied;
	uint8_t *out = late->copies[index];
	if (count <= copied)
		return 1;
	return read_again(program, out + copied, address_of(seen) + copied, count - copied) &&
	       mark_of(out, count, copied) == seen->mark;
}

static uint64_t arrival_of(const struct nfp_late *late, const struct nfp_program *program, uint32_t index)
{
	return has_stamps(late, program) ? late->arrivals[index] : 0;
}

// A packet of a pool, at the end of the call, with its bytes in `out` where these are not to be trusted. Returns 0 where it
// is gone.
static int read_pooled(const struct nfp_late *late, const struct nfp_program *program, uint32_t index,
                       uint8_t *out, struct nfp_view *view)
{
	if (!program->checked || late->number_shift) {
		read_held(late, program, index, view);
		return 1;
	}
	if (!nfp_view_copy(program, late->held[index], view))
		return 0;
	view->readable = nfp_smaller(nfp_smaller(view->readable, view->length), most_bytes(program));
	return nfp_copy_readable(out, (uint64_t)(uintptr_t)view->data, view->readable);
}

// Whether the buffer of a packet says the same as at the entry.
static int is_described(struct nfp_late *late, const struct nfp_program *program, uint32_t index)
{
	const struct nfp_late_seen *seen = &late->seen[index];
	struct nfp_view view;
	if (!read_pooled(late, program, index, late->reread, &view))
		return 0;
	uint64_t place = place_of(view.data, nfp_smaller(view.readable, most_bytes(program)));
	return seen->place == place && seen->length == view.length &&
	       arrival_of(late, program, index) == (view.stamped ? view.arrival : 0);
}

// How many of a packet's first bytes have to be copied at the entry, so that it can be read at the end of the call; 0: none,
// and what its buffer says stays as well.
static uint32_t changed_bytes(struct nfp_late *late, const struct nfp_program *program, uint32_t index)
{
	const struct nfp_late_seen *seen = &late->seen[index];
	uint32_t changed = count_of(seen);
	if (!read_again(program, late->reread, address_of(seen), changed))
		return most_bytes(program);
	while (changed && late->copies[index][changed - 1] == late->reread[changed - 1])
		changed--;
	if (!changed && program->pooled && !is_described(late, program, index))
		changed = 1;
	if (changed > HEAD_BYTES)
		return most_bytes(program);
	return (changed + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
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
	const struct nfp_late_seen *seen = &late->seen[index];
	if (address_of(seen) != (uint64_t)(uintptr_t)view.data || seen->length != view.length ||
	    !is_same_bytes(late->copies[index], view.data, nfp_smaller(count_of(seen), view.readable)))
		late->keeps_heads = 1;
}

void nfp_late_check(struct nfp_thread *thread, const struct nfp_program *program, struct nfp_late *late)
{
	struct nfp_thread_shared *shared = thread->shared;
	uint32_t copied = (uint32_t)shared->copying;
	for (uint32_t i = 0; i < late->count; i++) {
		shared->checked_packets++;
		if (late->number_shift && !late->keeps_heads)
			check_freed(late, program, i);
		uint32_t changed = changed_bytes(late, program, i);
		if (changed <= copied)
			continue;
		shared->differing_packets++;
		if (changed > shared->copying)
			shared->copying = changed;
		late->until_check = 0;
	}
	if (program->plain && program->pooled && late->until_check && !thread->shared->copying &&
	    is_lasting(late))
		thread->packets_entry = (void *)nfp_trusted_entry_thunk;
}

// As nfp_late_view, but nothing follows where the bytes are gone.
static int view_kept(struct nfp_late *late, const struct nfp_program *program, uint32_t index,
                     struct nfp_view *view)
{
	const struct nfp_late_seen *seen = &late->seen[index];
	if (!late->seen_packets) {
		int there = read_pooled(late, program, index, late->copies[index], view);
		if (program->checked && !late->number_shift)
			view->data = late->copies[index];
		return there;
	}
	if (!complete(late, program, index))
		return 0;
	uint64_t arrival = arrival_of(late, program, index);
	*view = (struct nfp_view){.buffer = buffer_of(late, program, index),
	                          .data = late->copies[index],
	                          .readable = count_of(seen),
	                          .length = seen->length,
	                          .arrival = arrival,
	                          .stamped = arrival != 0,
	                          .numbers = late->headed ? late->marks[index] : 0};
	return 1;
}

int nfp_late_view(struct nfp_thread *thread, const struct nfp_program *program, uint32_t index,
                  struct nfp_view *view)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (view_kept(late, program, index, view))
		return 1;
	if (!late->number_shift) // else it is rare: the thread was preempted in the call
		thread->shared->copying = most_bytes(program);
	return 0;
}
