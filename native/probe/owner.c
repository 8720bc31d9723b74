// SPDX-License-Identifier: Apache-2.0
// Which batch a buffer that is named by a number was received in: 4 bytes for each buffer, whatever thread hands it on.
//
//   offset of the buffer / 1 KiB -> | thread: 10 bits | batch: 10 bits | position + 1: 12 bits |      0: not known
//
// A packet in several buffers is tagged by its first one. A batch that leaves in one call is marked as gone; other calls
// clear the tag of each buffer that they hand on. So a packet that the NF makes in a buffer that is free again belongs to
// no batch.
//
// Most batches leave as they were received, before the next one comes. So a thread's newest batch is tagged only when
// buffers are looked up: until then it is recognised by its numbers (nfp_owner_is_next), and the tags of its buffers are
// those of older batches, which are gone.
//
// The table is private memory of the target. Two threads may write one entry only when the NF lets both use the buffer. Runs
// on the target's threads; called by late.c, snapshot.c and share.c.
#include "late.h"

enum {
	OWNER_SHIFT = 10, // no buffer with its headroom is smaller
	BATCH_BITS = 10,
	BATCH_MASK = (1 << BATCH_BITS) - 1,
	POSITION_BITS = 12,
	POSITION_MASK = (1 << POSITION_BITS) - 1,
};
_Static_assert(NFP_THREAD_COUNT <= 1 << (32 - BATCH_BITS - POSITION_BITS), "a thread has 10 bits");
_Static_assert(NFP_LATE_BATCHES <= 1 << BATCH_BITS, "batches that are kept differ in 10 bits");
_Static_assert(NFP_LATE_NUMBERS <= POSITION_MASK, "a position has 12 bits");

uint64_t nfp_owners_needed(uint64_t buffers_bytes)
{
	return (buffers_bytes >> OWNER_SHIFT) + 1;
}

// Partner: make_owners (helper.c), which stores the count of a larger table after its address.
static uint64_t count_entries(void)
{
	return __atomic_load_n(&nfp_library.owners_count, __ATOMIC_ACQUIRE);
}

static uint64_t index_of(uint32_t number, uint32_t shift)
{
	return (uint64_t)number << shift >> OWNER_SHIFT;
}

static void set_tags(const uint32_t *numbers, uint32_t count, uint32_t shift, uint32_t tag, uint32_t step)
{
	uint64_t entries = count_entries();
	uint32_t *owners = nfp_library.owners;
	for (uint32_t i = 0; i < count; i++, tag += step) {
		uint64_t index = index_of(numbers[i], shift);
		if (index < entries)
			owners[index] = tag;
	}
}

void nfp_owner_give(struct nfp_thread *thread, uint64_t batch, struct nfp_burst burst)
{
	uint32_t tag = (thread->index << BATCH_BITS | ((uint32_t)batch & BATCH_MASK)) << POSITION_BITS;
	set_tags(burst.numbers, burst.count, burst.number_shift, tag + 1, 1);
}

void nfp_owner_tag_newest(struct nfp_thread *thread)
{
	struct nfp_late *late = nfp_late_of(thread);
	if (!late->is_untagged)
		return;
	uint64_t number = late->batches - 1;
	const struct nfp_late_batch *batch = nfp_late_batch_at(late, number);
	late->is_untagged = 0;
	if (batch->gone)
		return;
	uint32_t shift = late->input->number_shift;
	set_tags(late->numbers, late->left, shift, 0, 0);
	uint32_t tag = (thread->index << BATCH_BITS | ((uint32_t)number & BATCH_MASK)) << POSITION_BITS;
	set_tags(late->numbers + late->left, batch->count - late->left, shift, tag + late->left + 1, 1);
}

void nfp_owner_forget(struct nfp_thread *thread, struct nfp_burst burst)
{
	nfp_owner_tag_newest(thread);
	set_tags(burst.numbers, burst.count, burst.number_shift, 0, 0);
}

uint32_t nfp_owner_age(const struct nfp_thread *thread, uint32_t number, uint32_t shift)
{
	uint64_t index = index_of(number, shift), batches = nfp_library.late[thread->index].batches;
	uint32_t tag = index < count_entries() ? nfp_library.owners[index] : 0;
	if (!tag || tag >> (POSITION_BITS + BATCH_BITS) != thread->index)
		return UINT32_MAX;
	return (uint32_t)(batches - 1 - (tag >> POSITION_BITS)) & BATCH_MASK;
}

// The thread's last batch whose number ends in these bits; NULL: it is no longer kept, or gone.
static struct nfp_late_batch *find_batch(uint32_t thread, uint32_t number)
{
	struct nfp_late *late = &nfp_library.late[thread];
	uint64_t newest = late->batches - 1;
	uint64_t age = (newest - number) & BATCH_MASK;
	if (late->batches <= age || age >= NFP_LATE_BATCHES)
		return NULL;
	struct nfp_late_batch *batch = nfp_late_batch_at(late, newest - age);
	return batch->gone ? NULL : batch;
}

struct nfp_late_batch *nfp_owner_find(const struct nfp_late *late, uint32_t packet, uint32_t *position)
{
	uint64_t index = index_of(late->handed[packet], late->number_shift);
	uint32_t tag = index < count_entries() ? nfp_library.owners[index] : 0;
	*position = (tag & POSITION_MASK) - 1;
	if (!tag)
		return NULL;
	return find_batch(tag >> (POSITION_BITS + BATCH_BITS), tag >> POSITION_BITS & BATCH_MASK);
}

// Copies of a packet may share the buffer that it was received in. The first one that leaves is the packet.
void nfp_owner_inherit(const struct nfp_late *late, uint32_t packet, uint32_t next)
{
	uint32_t position;
	uint64_t from = index_of(next, late->number_shift);
	uint64_t to = index_of(late->handed[packet], late->number_shift);
	uint64_t entries = count_entries();
	if (from >= entries || to >= entries || from == to || nfp_owner_find(late, packet, &position))
		return;
	nfp_library.owners[to] = nfp_library.owners[from];
	nfp_library.owners[from] = 0;
}

struct nfp_late_batch *nfp_owner_of_all(const struct nfp_late *late)
{
	uint32_t position;
	if (!late->count)
		return NULL;
	struct nfp_late_batch *batch = nfp_owner_find(late, 0, &position);
	// Frames are filled in the order of their packets' batches, but for packets that took different ways.
	if (nfp_owner_find(late, late->count / 2, &position) != batch ||
	    nfp_owner_find(late, late->count - 1, &position) != batch)
		return NULL;
	return batch;
}

// Of the packets of the call, but not where another thread has received into a buffer that the call has freed.
static void clear_tags(const struct nfp_late *late)
{
	uint64_t entries = count_entries();
	uint32_t *owners = nfp_library.owners, cleared = 0; // the batch of those before
	for (uint32_t i = 0; i < late->count; i++) {
		uint64_t index = index_of(late->handed[i], late->number_shift);
		uint32_t tag = index < entries ? owners[index] : 0, position;
		if (!tag)
			continue;
		const struct nfp_late_batch *batch = NULL;
		if (tag >> POSITION_BITS != cleared)
			batch = nfp_owner_find(late, i, &position);
		if (batch && !nfp_late_is_own(late, batch) && batch->start_ticks > late->entered_ticks)
			continue;
		owners[index] = 0;
		cleared = tag >> POSITION_BITS;
	}
}

void nfp_owner_leave(struct nfp_late *late)
{
	if (late->array) {
		nfp_late_leave_newest(late, nfp_late_batch_at(late, late->whole - 1));
		return;
	}
	struct nfp_late_batch *whole = nfp_owner_of_all(late);
	// A batch of another thread, which may be noting its next one in the same place, is not written to.
	if (whole && late->count == whole->count && nfp_late_is_own(late, whole))
		whole->gone = 1;
	else
		clear_tags(late);
}
