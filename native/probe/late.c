// SPDX-License-Identifier: Apache-2.0
// Late capture: packets are identified when a transmit or drop call ends, and only those that deserve it: of a batch
// that has become old, or that was drawn for the sample.
//
//   receive exit    the pointers are kept in the order of their receipt; the batch is drawn, or not
//   transmit entry  the pointers are kept: the driver may overwrite or free what they lead to. Where packets do not
//                   stay readable, where their bytes are or these themselves, too (snapshot.c). Where a check has found
//                   the array as it was, nothing is done here until the next one
//   transmit exit   is any of them old enough, or drawn? Most calls end here. Else each packet's own batch is looked
//                   for among the pointers, and its headers are read
//
// Runs on the target's threads; called by capture.c. Never writes but in its thread's own memory, and every index is bounded.
#include "late.h"
#include "describe.h"

enum { MISSES_MAX = 2 }; // packets of a call that are looked for in vain before the rest is left alone

#define NOWHERE NFP_LATE_NOWHERE

// ---- which batches ----------------------------------------------------------------------------------------

// Whether the next batch is drawn: by splitmix64, so that each one is equally likely, whatever repeats in the NF.
static uint32_t is_drawn(const struct nfp_thread *thread, struct nfp_late *late)
{
	uint64_t hash = late->draw_state += NFP_WEYL;
	hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull;
	hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
	return hash >> 32 < __atomic_load_n(&thread->shared->late.sample, __ATOMIC_RELAXED);
}

// A separate function: few batches need it, and the others need not save registers for it.
static __attribute__((noinline)) void write_note(struct nfp_thread *thread, struct nfp_late *late,
                                                 uint32_t function, uint32_t drawn)
{
	struct nfp_record *slot = nfp_reserve(thread, 1, NFP_LOST_PACKET);
	if (!slot)
		return;
	nfp_put(slot, 0, function | (uint32_t)NFP_BATCH_NOTE << NFP_KIND_SHIFT,
	        NFP_NOTE_LATE | (drawn ? NFP_NOTE_DRAWN : 0));
	late->noted = 1;
}

static inline void note(struct nfp_thread *thread, struct nfp_late *late, uint32_t function, uint32_t drawn)
{
	if (thread->gate & NFP_GATE_LATE && (!late->noted || drawn))
		write_note(thread, late, function, drawn);
}

static void keep_received(struct nfp_late *late, struct nfp_burst burst, uint32_t count)
{
	const uint64_t *in = (const uint64_t *)(uintptr_t)burst.pointers;
	uint32_t at = (uint32_t)(late->received % NFP_LATE_POINTERS);
	uint32_t first = nfp_smaller(count, NFP_LATE_POINTERS - at);
	if (burst.single) {
		late->pointers[at] = burst.pointers;
		return;
	}
	if (!burst.pointers) {
		for (uint32_t i = 0; i < count; i++)
			late->pointers[(at + i) % NFP_LATE_POINTERS] = 0;
		return;
	}
	nfp_late_copy_pointers(late->pointers + at, in, first);
	nfp_late_copy_pointers(late->pointers, in + first, count - first);
}

static inline struct nfp_late_batch *begin_batch(const struct nfp_thread *thread, struct nfp_late *late,
                                                 uint32_t count, uint64_t start_ticks)
{
	struct nfp_late_batch *batch = nfp_late_batch_at(late, late->batches++);
	batch->start_ticks = start_ticks;
	batch->age_start_ticks = thread->batch_earliest;
	batch->spent_ticks = late->spent_ticks;
	batch->first = late->received;
	batch->count = count;
	batch->drawn = is_drawn(thread, late);
	batch->gone = 0;
	return batch;
}

void nfp_late_receive(struct nfp_thread *thread, uint32_t function, struct nfp_burst burst,
                      uint64_t start_ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	uint32_t count = nfp_smaller(burst.count, NFP_LATE_POINTERS);
	struct nfp_late_batch *batch = begin_batch(thread, late, count, start_ticks);
	keep_received(late, burst, count);
	if (late->order == NFP_ORDER_CHANGED && burst.pointers && !burst.single)
		batch->sum = nfp_late_sum((const uint64_t *)(uintptr_t)burst.pointers, count);
	late->received += count;
	nfp_late_leave(thread);
	note(thread, late, function, batch->drawn);
}

void nfp_late_receive_numbers(struct nfp_thread *thread, uint32_t function, uint32_t count,
                              uint64_t start_ticks)
{
	struct nfp_late *late = nfp_late_of(thread);
	count = nfp_smaller(count, NFP_LATE_NUMBERS);
	const struct nfp_late_batch *batch = begin_batch(thread, late, count, start_ticks);
	late->is_untagged = count != 0;
	late->left = 0;
	nfp_late_leave(thread);
	note(thread, late, function, batch->drawn);
}

// ---- what deserves it -----------------------------------------------------------------------------------------

static uint64_t oldest_position(struct nfp_late *late)
{
	uint64_t kept = nfp_late_oldest_kept(late);
	uint64_t batched = late->batches > NFP_LATE_BATCHES
	                       ? nfp_late_batch_at(late, late->batches - NFP_LATE_BATCHES)->first
	                       : 0;
	return kept > batched ? kept : batched;
}

// The latest position below `before` where the pointer was received, or NOWHERE.
uint64_t nfp_late_find_below(const struct nfp_late *late, uint64_t pointer, uint64_t before, uint64_t oldest)
{
	while (before > oldest)
		if (nfp_late_pointer_at(late, --before) == pointer)
			return before;
	return NOWHERE;
}

// The batch that holds the position; it does not begin before `oldest_position`.
static struct nfp_late_batch *find_batch(struct nfp_late *late, uint64_t position)
{
	uint64_t number = late->batches - 1;
	while (nfp_late_batch_at(late, number)->first > position)
		number--;
	return nfp_late_batch_at(late, number);
}

// What identifying packets has taken since the time is not their own age: else one late batch would make the next ones
// late, and so on.
static uint64_t spent_since(struct nfp_late *late, uint64_t ticks)
{
	uint64_t oldest = late->batches > NFP_LATE_BATCHES ? late->batches - NFP_LATE_BATCHES : 0;
	uint64_t number = late->batches - 1, taken = nfp_handoff_spent(late, ticks);
	if (!late->batches)
		return taken == UINT64_MAX ? 0 : taken;
	while (number > oldest && nfp_late_batch_at(late, number)->start_ticks > ticks)
		number--;
	uint64_t received = late->spent_ticks - nfp_late_batch_at(late, number)->spent_ticks;
	return received < taken ? received : taken;
}

static int deserves(struct nfp_late *late, const struct nfp_late_batch *batch, uint64_t ticks,
                    uint64_t late_ticks)
{
	uint64_t age_ticks = ticks - batch->age_start_ticks;
	if (batch->drawn || age_ticks < late_ticks)
		return batch->drawn != 0;
	return age_ticks - late_ticks >= spent_since(late, batch->age_start_ticks);
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
		uint64_t position = nfp_late_find_below(late, late->held[i], before, oldest);
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

// The batch that a numbered buffer came with: of this thread, or a copy of another's that has handed the packet over.
static struct nfp_late_batch *find_owner(struct nfp_late *late, uint32_t packet, uint32_t *position,
                                         struct nfp_handed_over *other)
{
	other->reused = 0;
	if (late->array) {
		*position = late->left + packet;
		return nfp_late_batch_at(late, late->whole - 1);
	}
	struct nfp_late_batch *batch = nfp_owner_find(late, packet, position);
	if (batch && nfp_late_is_own(late, batch))
		return batch;
	other->reused = batch && batch->start_ticks > late->entered_ticks;
	if (other->reused)
		return NULL;
	return nfp_handoff_find(late, packet, position, other);
}

// As may_deserve, for numbered buffers.
static int may_numbered_deserve(struct nfp_late *late, uint64_t ticks, uint64_t late_ticks)
{
	struct nfp_handed_over other;
	uint64_t last = 0;
	uint32_t position, is_whole = nfp_owner_of_all(late) != NULL;
	for (uint32_t i = 0; i < (is_whole ? 1 : late->count); i++) {
		const struct nfp_late_batch *batch = find_owner(late, i, &position, &other);
		if (other.reused ||
		    (batch && batch->start_ticks != last && deserves(late, batch, ticks, late_ticks)))
			return 1;
		last = batch ? batch->start_ticks : 0;
	}
	return 0;
}

// Whether any packet of the call may deserve it.
static int may_deserve(struct nfp_late *late, uint64_t ticks, uint64_t late_ticks)
{
	if (!late_ticks)
		return 1;
	if (late->number_shift && !late->whole)
		return may_numbered_deserve(late, ticks, late_ticks);
	if (!late->batches)
		return 0;
	if (late->whole)
		return deserves(late, nfp_late_batch_at(late, late->whole - 1), ticks, late_ticks);
	uint64_t first = 0, last = 0;
	if (!find_span(late, oldest_position(late), &first, &last))
		return 0;
	for (uint64_t number = late->batches; number-- > 0;) {
		const struct nfp_late_batch *batch = nfp_late_batch_at(late, number);
		if (batch->first <= last && deserves(late, batch, ticks, late_ticks))
			return 1;
		if (batch->first <= first)
			return 0;
	}
	return 0;
}

// As find_origin, for numbered buffers.
static struct nfp_late_batch *find_numbered_origin(struct nfp_thread *thread, uint32_t packet,
                                                   struct nfp_origin *origin, struct nfp_handed_over *other)
{
	struct nfp_late *late = nfp_late_of(thread);
	struct nfp_late_batch *owner = find_owner(late, packet, &origin->index, other);
	if (!owner)
		return NULL;
	origin->start_ticks = owner->start_ticks;
	origin->thread = owner == &other->batch ? other->thread : thread->index;
	if (!late->array)
		nfp_handoff_complete(late, packet, origin);
	return owner;
}

// Which batch the packet came with: the last one that held its buffer.
static struct nfp_late_batch *find_origin(struct nfp_thread *thread, uint32_t packet,
                                          struct nfp_origin *origin, struct nfp_handed_over *other)
{
	struct nfp_late *late = nfp_late_of(thread);
	*origin = (struct nfp_origin){.thread = thread->index};
	other->reused = 0;
	if (late->number_shift) {
		struct nfp_late_batch *owner = find_numbered_origin(thread, packet, origin, other);
		origin->index = owner ? origin->index : NFP_NO_POSITION;
		return owner;
	}
	uint64_t position = late->batches ? nfp_late_find_below(late, late->held[packet], late->received,
	                                                        oldest_position(late))
	                                  : NOWHERE;
	if (position == NOWHERE) {
		origin->index = NFP_NO_POSITION;
		return 0;
	}
	struct nfp_late_batch *batch = find_batch(late, position);
	origin->start_ticks = batch->start_ticks;
	origin->index = (uint32_t)(position - batch->first);
	return batch;
}

static void identify(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                     uint32_t index, const struct nfp_origin *origin)
{
	struct nfp_view view;
	if (!nfp_late_view(thread, program, index, &view)) {
		thread->shared->unheld_packets++;
		return;
	}
	thread->shared->identified_packets++;
	thread->shared->unplaced_packets += !origin->start_ticks;
	nfp_describe(thread, function, program, &view, index, origin);
}

// Identifies the packets of the call that deserve it.
static void look(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                 uint64_t ticks, uint32_t count)
{
	struct nfp_late *late = nfp_late_of(thread);
	uint64_t late_ticks = __atomic_load_n(&thread->shared->late.late_ticks, __ATOMIC_RELAXED);
	if (late->checks && !late->chained)
		nfp_late_check(thread, program, late);
	if (!may_deserve(late, ticks, late_ticks))
		return;
	uint32_t readable = late->count;
	if (late->whole && (late->array || !late->number_shift) && !nfp_late_take(late))
		readable = 0;
	thread->shared->unheld_packets += count > readable ? count - readable : 0;
	for (uint32_t i = 0; i < nfp_smaller(count, readable); i++) {
		struct nfp_origin origin;
		struct nfp_handed_over other;
		struct nfp_late_batch *batch = find_origin(thread, i, &origin, &other);
		if (other.reused)
			thread->shared->unheld_packets++;
		else if (!late_ticks || (batch && deserves(late, batch, ticks, late_ticks)))
			identify(thread, function, program, i, &origin);
	}
	late->spent_ticks += nfp_ticks() - ticks;
}

static void numbered_exit(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                          uint64_t ticks, uint32_t count)
{
	struct nfp_late *late = nfp_late_of(thread);
	late->call_ticks = ticks - late->entered_ticks;
	look(thread, function, program, ticks, count);
	nfp_owner_leave(late);
	if (!late->array)
		nfp_handoff_leave(late);
}

void nfp_late_exit(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                   uint32_t frame, uint64_t ticks, uint32_t count)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (thread->handing != frame)
		return;
	nfp_late_leave(thread);
	if (late->number_shift)
		numbered_exit(thread, function, program, ticks, count);
	else
		look(thread, function, program, ticks, count);
}
