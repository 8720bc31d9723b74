// SPDX-License-Identifier: Apache-2.0
// How far a thread may write its ring, and the end of a lap. Runs on the target's threads, possibly in a signal handler
// that has come while the thread did the same: each word is replaced only where nobody has come in between. Without that a
// limit of the lap before could stand above a cursor of this one, and let it run out of the ring.
#include "room.h"

// What templates compare with, while the limit is worked out: no record, so that signal handlers work it out themselves.
// Not 0, which blocks without a ring have.
#define NO_RECORD 1

// Partner: nfp_counters_set, which changes `counted` and then lets the thread take the slow path.
void nfp_limit_set(struct nfp_thread *thread)
{
	uint32_t counted;
	do {
		counted = __atomic_load_n(&thread->counted, __ATOMIC_SEQ_CST);
		__atomic_store_n(&thread->limit, NO_RECORD, __ATOMIC_SEQ_CST);
		if (!counted)
			nfp_replace_local(&thread->limit, NO_RECORD,
			                  __atomic_load_n(&thread->room, __ATOMIC_RELAXED));
	} while (counted != __atomic_load_n(&thread->counted, __ATOMIC_SEQ_CST));
}

void nfp_limit_set_one(struct nfp_thread *thread)
{
	__atomic_store_n(&thread->limit, NO_RECORD, __ATOMIC_SEQ_CST);
	nfp_replace_local(&thread->limit, NO_RECORD,
	                  __atomic_load_n(&thread->cursor, __ATOMIC_RELAXED) + NFP_RECORD_BYTES);
}

// Goes on with the next lap. The monitor passes over what was left of this one, but waits until it is written: else it
// would take what an earlier lap has left there for records of the next lap but one.
static void end_lap(struct nfp_thread *thread, uint64_t cursor)
{
	uint64_t offset = nfp_room_offset(thread, cursor);
	uint64_t lap = cursor - offset - thread->base;
	if (!nfp_replace_local(&thread->cursor, cursor, thread->base + (lap ^ NFP_RING_LAPS_APART)))
		return;
	struct nfp_record *slot = (struct nfp_record *)(uintptr_t)cursor;
	for (; offset < thread->ring_bytes; offset += NFP_RECORD_BYTES)
		slot = nfp_put(slot, 0, (uint32_t)NFP_FILL << NFP_KIND_SHIFT, 0);
}

static int is_at_lap_end(const struct nfp_thread *thread, uint64_t cursor, uint64_t tail, uint64_t bytes)
{
	uint64_t rest = thread->ring_bytes - nfp_room_offset(thread, cursor);
	return nfp_room_in_lap(thread, cursor) < bytes && nfp_room_left(thread, cursor, tail) >= rest + bytes;
}

int nfp_room_find(struct nfp_thread *thread, uint64_t bytes)
{
	// Partner: nfp_drain_publish. What the monitor read before it moved tail may be overwritten.
	uint64_t tail = __atomic_load_n(&thread->shared->tail, __ATOMIC_ACQUIRE), cursor;
	int fits;
	do {
		cursor = __atomic_load_n(&thread->cursor, __ATOMIC_RELAXED);
		if (is_at_lap_end(thread, cursor, tail, bytes))
			end_lap(thread, cursor);
		nfp_room_set(thread, tail);
		nfp_limit_set(thread);
		cursor = __atomic_load_n(&thread->cursor, __ATOMIC_RELAXED);
		fits = cursor + bytes <= __atomic_load_n(&thread->room, __ATOMIC_RELAXED);
		// Again where a signal handler has come to the lap's end.
	} while (!fits && is_at_lap_end(thread, cursor, tail, bytes));
	__atomic_store_n(&thread->shared->position, tail + nfp_room_unread(thread, cursor, tail),
	                 __ATOMIC_RELAXED);
	return fits;
}
