// SPDX-License-Identifier: Apache-2.0
// How far a thread may write its ring, and the end of a lap. Runs on the target's threads, possibly in a signal handler
// that has come while the thread did the same: `limit` and `room` are replaced only where nobody has come in between. Else a
// limit of the lap before could stand above a cursor of this one, and let it run out of the ring.
#include "ring_space.h"

// Partner: nfp_counters_set, which changes `counted` and then lets the thread take the slow path.
static void set_limit(struct nfp_thread *thread)
{
	uint32_t counted;
	do {
		counted = __atomic_load_n(&thread->counted, __ATOMIC_SEQ_CST);
		uint64_t token = nfp_ring_space_none(thread, &thread->limit);
		if (!counted)
			nfp_replace_local(&thread->limit, token,
			                  __atomic_load_n(&thread->room, __ATOMIC_RELAXED));
	} while (counted != __atomic_load_n(&thread->counted, __ATOMIC_SEQ_CST));
}

void nfp_limit_set_one(struct nfp_thread *thread)
{
	uint64_t token = nfp_ring_space_none(thread, &thread->limit);
	nfp_replace_local(&thread->limit, token,
	                  __atomic_load_n(&thread->cursor, __ATOMIC_RELAXED) + NFP_RECORD_BYTES);
}

// From here on signal handlers work it out themselves.
static void set_none(struct nfp_thread *thread)
{
	nfp_ring_space_none(thread, &thread->limit);
	nfp_ring_space_none(thread, &thread->room);
}

// Goes on with the next lap. The monitor passes over what was left of this one, but waits until it is written: else it
// would take what an earlier lap has left there for records of the next lap but one. A signal handler that comes first and
// leaves a limit of this lap has written: then the cursor is another one.
static void end_lap(struct nfp_thread *thread, uint64_t cursor)
{
	uint64_t offset = nfp_ring_space_offset(thread, cursor);
	uint64_t lap = cursor - offset - thread->base;
	set_none(thread);
	if (!nfp_replace_local(&thread->cursor, cursor, thread->base + (lap ^ NFP_RING_LAPS_APART)))
		return;
	struct nfp_record *slot = (struct nfp_record *)(uintptr_t)cursor;
	for (; offset < thread->ring_bytes; offset += NFP_RECORD_BYTES)
		slot = nfp_put(slot, 0, (uint32_t)NFP_FILL << NFP_KIND_SHIFT, 0);
}

static int is_at_lap_end(const struct nfp_thread *thread, uint64_t cursor, uint64_t tail, uint64_t bytes)
{
	uint64_t offset = nfp_ring_space_offset(thread, cursor);
	uint64_t rest = offset < thread->ring_bytes ? thread->ring_bytes - offset : 0;
	return nfp_ring_space_in_lap(thread, cursor) < bytes &&
	       nfp_ring_space_left(thread, cursor, tail) >= rest + bytes;
}

int nfp_ring_space_find(struct nfp_thread *thread, uint64_t bytes)
{
	// Partner: nfp_drain_publish. What the monitor read before it moved tail may be overwritten.
	uint64_t tail = __atomic_load_n(&thread->shared->tail, __ATOMIC_ACQUIRE), cursor;
	int fits;
	// A ring that is full stays so for long.
	if (thread->limit <= NFP_RING_SPACE_TOKENS && thread->room <= NFP_RING_SPACE_TOKENS &&
	    nfp_ring_space_left(thread, thread->cursor, tail) < bytes)
		return 0;
	do {
		cursor = __atomic_load_n(&thread->cursor, __ATOMIC_RELAXED);
		if (is_at_lap_end(thread, cursor, tail, bytes))
			end_lap(thread, cursor);
		nfp_ring_space_set(thread, tail);
		set_limit(thread);
		cursor = __atomic_load_n(&thread->cursor, __ATOMIC_RELAXED);
		fits = cursor + bytes <= __atomic_load_n(&thread->room, __ATOMIC_RELAXED);
		// Again where a signal handler has come to the lap's end.
	} while (!fits && is_at_lap_end(thread, cursor, tail, bytes));
	if (!fits) // nothing is written, so no limit may stay (end_lap)
		set_none(thread);
	__atomic_store_n(&thread->shared->position, tail + nfp_ring_space_unread(thread, cursor, tail),
	                 __ATOMIC_RELAXED);
	return fits;
}
