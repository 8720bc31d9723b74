// SPDX-License-Identifier: Apache-2.0
// See sweep.h. Nothing that the target writes is used as an index or as a length.
#include "sweep.h"
#include <errno.h>
#include "abi/ring.h"
#include <sys/syscall.h>
#include <unistd.h>

enum {
	HOLE_PATIENCE_NS = 50000000, // a hole that stands so long is given up
	HOLE_TURNS = 16, // rings are looked at for any hole in every so manieth sweep, which reads far ahead
};

static const uint8_t *ring_of(const struct nfp_sweep *sweep, uint32_t thread)
{
	return sweep->rings + thread * sweep->ring_bytes;
}

// Whether nothing stands at the position reached. Relaxed: nfp_drain, which reads what is behind it, looks again.
static int is_idle(const struct nfp_sweep *sweep, uint32_t thread)
{
	uint64_t position = sweep->states[thread].position & ~(uint64_t)(NFP_RECORD_BYTES - 1);
	const struct nfp_record *slot =
	    (const void *)(ring_of(sweep, thread) + (position & (sweep->ring_bytes - 1)));
	uint32_t tag = __atomic_load_n(&slot->tag, __ATOMIC_RELAXED);
	return ((tag - nfp_ring_low(position, sweep->ring_bytes)) & NFP_LAP_BIT) != 0;
}

static struct nfp_ring_state *state_of(struct nfp_sweep *sweep, uint32_t thread)
{
	struct nfp_ring_state *state = &sweep->states[thread];
	if (!state->known) {
		state->position = __atomic_load_n(&sweep->table[thread].tail, __ATOMIC_RELAXED);
		state->known = 1;
	}
	return state;
}

static uint64_t take(struct nfp_sweep *sweep, uint32_t thread, int how, struct nfp_record *records,
                     uint64_t room)
{
	struct nfp_ring_state *state = state_of(sweep, thread);
	struct nfp_drain_hole hole;
	uint64_t before = state->position;
	uint64_t count =
	    nfp_drain(ring_of(sweep, thread), sweep->ring_bytes, &state->position, how, records, room, &hole);
	sweep->torn += hole.torn;
	if (!hole.blocked)
		state->hole_since_ns = 0;
	else if (!state->hole_since_ns || count || hole.torn)
		state->hole_since_ns = sweep->now_ns | 1; // 0 means none
	if (state->position != before) // FILL records, too, which are not counted
		nfp_drain_publish(&sweep->table[thread], state->position);
	return count;
}

static void begin(struct nfp_sweep *sweep, const uint32_t *chosen, uint32_t threads, uint64_t now_ns)
{
	sweep->chosen = chosen;
	sweep->is_over = chosen != NULL;
	sweep->threads = threads < NFP_THREAD_COUNT ? threads : NFP_THREAD_COUNT;
	sweep->next = 0;
	sweep->now_ns = now_ns;
	sweep->number += sweep->number == UINT32_MAX ? 2 : 1;
}

void nfp_sweep_begin(struct nfp_sweep *sweep, uint32_t threads, uint64_t now_ns)
{
	begin(sweep, NULL, threads, now_ns);
	sweep->turn++;
}

void nfp_sweep_begin_last(struct nfp_sweep *sweep, const uint32_t *chosen, uint32_t threads, uint64_t now_ns)
{
	begin(sweep, chosen, threads, now_ns);
}

// Whether the sweep has read a ring once around: a thread that writes as fast as it is read does not hold up the others.
static int is_around(const struct nfp_sweep *sweep, const struct nfp_ring_state *state)
{
	return state->position - state->began >= sweep->ring_bytes;
}

// What a living thread's ring holds, up to a hole that it may still fill.
static uint64_t take_next(struct nfp_sweep *sweep, uint32_t thread, struct nfp_record *records, uint64_t room)
{
	struct nfp_ring_state *state = &sweep->states[thread];
	int looks = state->hole_since_ns || (thread + sweep->turn) % HOLE_TURNS == 0;
	if (!looks && is_idle(sweep, thread))
		return 0;
	int skips = state->hole_since_ns && sweep->now_ns - state->hole_since_ns > HOLE_PATIENCE_NS;
	return take(sweep, thread, (skips ? NFP_DRAIN_SKIP : 0) | (looks ? 0 : NFP_DRAIN_NEAR), records,
	            room);
}

static uint64_t take_last(struct nfp_sweep *sweep, uint32_t thread, struct nfp_record *records, uint64_t room)
{
	struct nfp_ring_state *state = &sweep->states[thread];
	uint64_t taken = take(sweep, thread, 0, records, room);
	while (taken < room && state->hole_since_ns && !is_around(sweep, state))
		taken += take(sweep, thread, NFP_DRAIN_SKIP, records + taken, room - taken);
	return taken;
}

uint32_t nfp_sweep_take(struct nfp_sweep *sweep, struct nfp_record *records, uint64_t room,
                        struct nfp_sweep_part *parts)
{
	uint32_t count = 0;
	for (; sweep->next < sweep->threads && room; sweep->next++) {
		uint32_t thread = sweep->chosen ? sweep->chosen[sweep->next] : sweep->next;
		if (thread >= NFP_THREAD_COUNT)
			continue;
		struct nfp_ring_state *state = state_of(sweep, thread);
		if (state->swept != sweep->number) {
			state->swept = sweep->number;
			state->began = state->position;
		}
		uint64_t taken = sweep->is_over ? take_last(sweep, thread, records, room)
		                                : take_next(sweep, thread, records, room);
		if (taken)
			parts[count++] = (struct nfp_sweep_part){.thread = thread, .count = taken};
		records += taken;
		room -= taken;
		if (!room && !is_around(sweep, state))
			break; // there may be more in this ring
	}
	return count;
}

void nfp_threads_gone(int32_t pid, const uint32_t *tids, uint32_t count, uint8_t *gone)
{
	int saved = errno;
	for (uint32_t i = 0; i < count; i++)
		// Signal 0 is not sent. EINVAL: not the number of any thread.
		gone[i] =
		    syscall(SYS_tgkill, pid, (int32_t)tids[i], 0) != 0 && (errno == ESRCH || errno == EINVAL);
	errno = saved;
}

static void free_thread(struct nfp_session_header *header, struct nfp_thread_shared *table, uint32_t index)
{
	__atomic_store_n(&table[index].start_ticks, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&table[index].state, NFP_THREAD_FREE, __ATOMIC_RELAXED);
	// Partner: take in native/probe/thread.c, whose acquire sees the entry as it is left here.
	__atomic_fetch_or(&header->free_threads[index / 64], 1ull << index % 64, __ATOMIC_RELEASE);
}

void nfp_threads_free(struct nfp_session_header *header, struct nfp_thread_shared *table,
                      const uint32_t *indexes, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (indexes[i] < NFP_THREAD_COUNT)
			free_thread(header, table, indexes[i]);
}
