// SPDX-License-Identifier: Apache-2.0
// The sweep: takes what all rings of a session hold, ring after ring, many in one call; and which threads of the target
// are gone, as the kernel says. Called by session.py: a session may have a thousand rings, most of them idle, and is swept
// hundreds of times a second.
#ifndef NFPROBE_SWEEP_H
#define NFPROBE_SWEEP_H
#include "drain.h"

// cdef begin
struct nfp_ring_state {
	uint64_t position; // up to here the ring was read
	uint64_t hole_since_ns; // since when it is known to hold a hole there (drain.h); 0: it holds none
	uint64_t began; // `position` when this sweep came to the ring
	uint32_t known; // 0: the ring was never looked at, `position` says nothing
	uint32_t swept; // the sweep that `began` is of
};

struct nfp_sweep {
	const uint8_t *rings; // all of them, ring_bytes each
	struct nfp_thread_shared *table;
	struct nfp_ring_state *states; // NFP_THREAD_COUNT
	uint64_t ring_bytes;
	uint64_t now_ns; // of a clock that never stops
	uint64_t torn; // slots that were given up as holes, in all sweeps
	const uint32_t *chosen; // the rings to be swept; NULL: the first `threads`
	uint32_t threads; // rings to be swept
	uint32_t next; // the one that comes next; `threads`: the sweep is over
	uint32_t number; // of the sweep, never 0
	uint32_t turn; // sweeps over living threads: in which one a ring is looked at for holes
	uint32_t is_over; // the threads of these rings have ended: their holes will not be filled
	uint32_t reserved;
};

// Records of one ring, adjacent.
struct nfp_sweep_part {
	uint32_t thread;
	uint32_t reserved;
	uint64_t count;
};

// Begins a sweep over so many rings. Each is read at least up to what stands in it now, and at most once around.
void nfp_sweep_begin(struct nfp_sweep *sweep, uint32_t threads, uint64_t now_ns);
// Begins a sweep over the rings of threads that are gone, each at most once around; holes are left out. `chosen` is used
// until the sweep is over.
void nfp_sweep_begin_last(struct nfp_sweep *sweep, const uint32_t *chosen, uint32_t threads, uint64_t now_ns);
// Takes what fits into `room` records. `parts` has room for NFP_THREAD_COUNT. Returns how many parts there are; to be
// called again until `next` has come to `threads`.
uint32_t nfp_sweep_take(struct nfp_sweep *sweep, struct nfp_record *records, uint64_t room,
                        struct nfp_sweep_part *parts);

// Sets gone[i] to 1 where no thread of process `pid` has the number tids[i], in this process's pid namespace, at this moment;
// else to 0. The kernel is asked for each one by itself: a listing of /proc/PID/task leaves living threads out while others
// end.
void nfp_threads_gone(int32_t pid, const uint32_t *tids, uint32_t count, uint8_t *gone);
// Gives thread table entries, whose rings were drained, to the next new threads.
void nfp_threads_free(struct nfp_session_header *header, struct nfp_thread_shared *table,
                      const uint32_t *indexes, uint32_t count);
// cdef end
#endif
