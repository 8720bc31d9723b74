// SPDX-License-Identifier: Apache-2.0
// Where a thread stands in its ring. All is worked out from `cursor` and the monitor's `tail`, so that signal handlers
// may come at any time and go further.
#ifndef NFPROBE_RING_SPACE_H
#define NFPROBE_RING_SPACE_H
#include "library.h"

#define NFP_RING_SPACE_TOKENS 0xffffff // below every address of a ring

// Bytes from the beginning of the lap to the slot at `cursor`.
static inline uint64_t nfp_ring_space_offset(const struct nfp_thread *thread, uint64_t cursor)
{
	return (cursor - thread->base) & (NFP_RING_LAPS_APART - 1);
}

// Bytes between `tail` and the slot at `cursor`: never more than the ring has, so that two laps tell them.
static inline uint64_t nfp_ring_space_unread(const struct nfp_thread *thread, uint64_t cursor, uint64_t tail)
{
	uint64_t odd_lap = (cursor - thread->base) & NFP_RING_LAPS_APART ? thread->ring_bytes : 0;
	return (nfp_ring_space_offset(thread, cursor) + odd_lap - tail) & (2 * thread->ring_bytes - 1);
}

// Bytes that may be written before the monitor reads on. A tail that cannot be leaves none.
static inline uint64_t nfp_ring_space_left(const struct nfp_thread *thread, uint64_t cursor, uint64_t tail)
{
	uint64_t usable = thread->ring_bytes - NFP_RING_SLACK_BYTES;
	uint64_t unread = nfp_ring_space_unread(thread, cursor, tail);
	return unread < usable ? usable - unread : 0;
}

// As above in this lap.
static inline uint64_t nfp_ring_space_in_lap(const struct nfp_thread *thread, uint64_t cursor)
{
	uint64_t usable = thread->ring_bytes - NFP_RING_SLACK_BYTES;
	uint64_t offset = nfp_ring_space_offset(thread, cursor);
	return offset < usable ? usable - offset : 0;
}

// Position of the slot at `cursor`.
static inline uint64_t nfp_ring_space_position(const struct nfp_thread *thread, uint64_t cursor)
{
	uint64_t tail = __atomic_load_n(&thread->shared->tail, __ATOMIC_RELAXED);
	return tail + nfp_ring_space_unread(thread, cursor, tail);
}

// Puts into `word`, a limit or a room, what no record is below, so that signal handlers work it out themselves. Returns it:
// another value each time, and never 0, which blocks without a ring have.
static inline uint64_t nfp_ring_space_none(struct nfp_thread *thread, uint64_t *word)
{
	uint64_t token = (nfp_fetch_add_local(&thread->tokens, 2) & NFP_RING_SPACE_TOKENS) | 1;
	__atomic_store_n(word, token, __ATOMIC_SEQ_CST);
	return token;
}

// Sets `room` for what has been read up to `tail`. A signal handler of this thread that comes in between has set a newer
// one, perhaps in another lap: it stands.
static inline __attribute__((always_inline)) void nfp_ring_space_set(struct nfp_thread *thread, uint64_t tail)
{
	uint64_t token = nfp_ring_space_none(thread, &thread->room);
	uint64_t cursor = __atomic_load_n(&thread->cursor, __ATOMIC_RELAXED);
	uint64_t left = nfp_ring_space_left(thread, cursor, tail),
	         in_lap = nfp_ring_space_in_lap(thread, cursor);
	nfp_replace_local(&thread->room, token, cursor + (left < in_lap ? left : in_lap));
}
#endif
