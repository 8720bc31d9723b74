// SPDX-License-Identifier: Apache-2.0
// See drain.h. The copy runs in straight pieces of one lap.
#include "drain.h"
#include "abi/ring.h"

// A hole is looked for this far: a signal handler that made one has written its records directly behind it,
// and one probe reserves at most the slack at once, at a lap's end twice as much.
enum { LOOK_AHEAD = 2 * NFP_RING_SLACK_BYTES / NFP_RECORD_BYTES, LOOK_NEAR = 16 };

static const struct nfp_record *slot_at(const uint8_t *ring, uint64_t ring_bytes, uint64_t position)
{
	return (const struct nfp_record *)(ring + (position & (ring_bytes - 1)));
}

// Pairs with the store of the tag, the last one of a probe (template_macros.inc, nfp_put of the probe library): whoever
// sees the tag sees word and sp. `low` is that of the slot's address where it was written.
static int slot_committed(const struct nfp_record *slot, uint32_t low, uint32_t *tag)
{
	*tag = __atomic_load_n(&slot->tag, __ATOMIC_ACQUIRE) - low;
	return !(*tag & NFP_LAP_BIT);
}

// Copies from up to `slots` adjacent slots what is a record. Returns how many slots were committed.
static uint64_t copy_piece(const struct nfp_record *slot, uint32_t low, struct nfp_record *records,
                           uint64_t slots, uint64_t *count)
{
	uint64_t read = 0, copied = 0;
	for (; read < slots; read++, low += NFP_RECORD_BYTES) {
		uint32_t tag;
		if (!slot_committed(slot + read, low, &tag))
			break;
		__builtin_prefetch(slot + read + 32);
		records[copied].value = slot[read].value;
		records[copied].sp = slot[read].sp;
		records[copied].tag = tag;
		copied += tag >> NFP_KIND_SHIFT != NFP_FILL;
	}
	*count += copied;
	return read;
}

static uint64_t copy_committed(const uint8_t *ring, uint64_t ring_bytes, uint64_t *position,
                               struct nfp_record *records, uint64_t room)
{
	uint64_t count = 0, start = *position; // once around: a target may write FILL records without end
	while (count < room && *position - start < ring_bytes) {
		uint64_t piece = (ring_bytes - (*position & (ring_bytes - 1))) / NFP_RECORD_BYTES;
		if (piece > room - count)
			piece = room - count;
		uint64_t read =
		    copy_piece(slot_at(ring, ring_bytes, *position), nfp_ring_low(*position, ring_bytes),
		               records + count, piece, &count);
		*position += read * NFP_RECORD_BYTES;
		if (read < piece)
			break;
	}
	return count;
}

// Up to `count` slots from `position`: the first committed one, or `count`.
static uint64_t first_committed(const uint8_t *ring, uint64_t ring_bytes, uint64_t position, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t at = position + i * NFP_RECORD_BYTES;
		uint32_t tag;
		if (slot_committed(slot_at(ring, ring_bytes, at), nfp_ring_low(at, ring_bytes), &tag))
			return i;
	}
	return count;
}

// Slots from `position` to the next committed one; 0 when it is committed itself or none is in sight. What
// a running producer has committed in order since the first look is no hole: hence the second one, which
// sees all that was written before the slot found (acquire in slot_committed).
static uint64_t hole_length(const uint8_t *ring, uint64_t ring_bytes, uint64_t position, int how)
{
	uint64_t ahead = how & NFP_DRAIN_NEAR ? LOOK_NEAR : LOOK_AHEAD;
	uint64_t found = first_committed(ring, ring_bytes, position, ahead);
	if (found == ahead)
		return 0;
	return first_committed(ring, ring_bytes, position, found);
}

uint64_t nfp_drain(const uint8_t *ring, uint64_t ring_bytes, uint64_t *position, int how,
                   struct nfp_record *records, uint64_t room, struct nfp_drain_hole *hole)
{
	*hole = (struct nfp_drain_hole){0};
	*position &= ~(uint64_t)(NFP_RECORD_BYTES - 1);
	uint64_t count = copy_committed(ring, ring_bytes, position, records, room);
	if (count == room)
		return count;
	uint64_t length = hole_length(ring, ring_bytes, *position, how);
	// The caller has seen this hole at *position: only one at which nothing was copied is the same.
	if (length && how & NFP_DRAIN_SKIP && !count) {
		hole->torn = length;
		*position += length * NFP_RECORD_BYTES;
		count = copy_committed(ring, ring_bytes, position, records, room);
		length = count < room ? hole_length(ring, ring_bytes, *position, how) : 0;
	}
	hole->blocked = length > 0;
	return count;
}

void nfp_drain_publish(struct nfp_thread_shared *thread, uint64_t position)
{
	// Pairs with the acquire load of tail in the slow path of the probe library: the slots before it have
	// been read and may be written again.
	__atomic_store_n(&thread->tail, position, __ATOMIC_RELEASE);
}
