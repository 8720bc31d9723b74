// SPDX-License-Identifier: Apache-2.0
// The slow path of a probe: a thread's first record (it gets a ring), and a ring that looks full (ring_space.c looks again,
// losses are counted and marked in the stream). Runs on the target's threads, possibly in a
// signal handler, possibly on a small stack: raw system calls only, no locks.
#include "late.h"
#include "library.h"
#include "queue.h"
#include "ring_space.h"
#include "arch/arch.h"
#include <sys/syscall.h>

struct nfp_library nfp_library = {.session_fd = -1};
#define THUNKS                                                                                               \
	{                                                                                                    \
	    .slow = (void *)nfp_slow_thunk,                                                                  \
	    .receive_exit = (void *)nfp_receive_exit_thunk,                                                  \
	    .packets_entry = (void *)nfp_packets_entry_thunk,                                                \
	    .packets_exit = (void *)nfp_packets_exit_thunk,                                                  \
	    .counted_entry = (void *)nfp_counted_entry_thunk,                                                \
	    .counted_exit = (void *)nfp_counted_exit_thunk,                                                  \
	}
struct nfp_thread nfp_null_thread = THUNKS;
struct nfp_thread nfp_silent_thread = THUNKS;
struct nfp_thread nfp_claiming_thread = THUNKS;

// Partner: nfp_threads_free. Who takes the bit away has the entry, as the monitor left it.
static int take(uint64_t *word, uint64_t bit)
{
	return (__atomic_fetch_and(word, ~bit, __ATOMIC_ACQ_REL) & bit) != 0;
}

// Costs next to nothing: a thread without a ring comes here with each of its records.
static int is_any_free(void)
{
	uint64_t free = 0;
	for (uint32_t word = 0; word < NFP_THREAD_COUNT / 64; word++)
		free |= __atomic_load_n(&nfp_library.header->free_threads[word], __ATOMIC_RELAXED);
	return free != 0;
}

// A free table entry, one whose ring is mapped already if there is one. Returns -1 when all are in use.
static int take_any(void)
{
	for (int mapped = 1; mapped >= 0; mapped--)
		for (uint32_t index = 0; index < NFP_THREAD_COUNT; index++) {
			uint64_t *word = &nfp_library.header->free_threads[index / 64];
			uint64_t left = __atomic_load_n(word, __ATOMIC_RELAXED) >> index % 64;
			if (!left) {
				index |= 63;
				continue;
			}
			index += (uint32_t)__builtin_ctzll(left);
			if ((nfp_library.rings[index] != 0) == mapped && take(word, 1ull << index % 64))
				return (int)index;
		}
	return -1;
}

static void give_back(uint32_t index)
{
	__atomic_fetch_or(&nfp_library.header->free_threads[index / 64], 1ull << index % 64,
	                  __ATOMIC_RELEASE);
}

static void describe(struct nfp_thread *thread, uint32_t index)
{
	struct nfp_thread_shared *shared = &nfp_library.table[index];
	thread->index = index;
	thread->base = nfp_library.rings[index];
	thread->ring_bytes = nfp_library.header->ring_bytes;
	if (!thread->cursor) // of the thread that had this entry before: its ring goes on
		thread->cursor = thread->base;
	thread->shared = shared;
	thread->slow = nfp_null_thread.slow;
	thread->receive_exit = nfp_null_thread.receive_exit;
	thread->packets_exit = nfp_null_thread.packets_exit;
	thread->counted_entry = nfp_null_thread.counted_entry;
	thread->counted_exit = nfp_null_thread.counted_exit;
	thread->counted = 0; // of the thread that had this entry before
	thread->timed_step = 1;
	thread->limit = thread->room = 0;
	shared->late = nfp_library.header->late;
	__atomic_store_n(&shared->state, NFP_THREAD_USED, __ATOMIC_RELAXED); // start_ticks makes it known
	nfp_late_begin(thread, index);
	nfp_queue_forget(thread);
	shared->tid = (uint32_t)nfp_syscall3(SYS_gettid, 0, 0, 0);
	// Partner: Session.read_table, which accepts a tid only with a start.
	__atomic_store_n(&shared->start_ticks, nfp_ticks(), __ATOMIC_RELEASE);
	// The thread table's `position` is where the monitor begins to read this ring: stored before the
	// gate opens, and read by it after `threads` (partner: Session.drain).
	__atomic_store_n(&shared->position, nfp_ring_space_position(thread, thread->cursor),
	                 __ATOMIC_RELEASE);
	uint32_t used = __atomic_load_n(&nfp_library.header->threads, __ATOMIC_RELAXED);
	while (used < index + 1 &&
	       !__atomic_compare_exchange_n(&nfp_library.header->threads, &used, index + 1, 0,
	                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
}

// Called by the helper thread and by threads of a forked child that have met their parent's open gate. Who stores
// an outdated gate last sees it at the second look.
void nfp_follow_gate(void)
{
	uint32_t gate;
	do {
		gate = nfp_wanted_gate();
		__atomic_store_n(&nfp_null_thread.gate, gate, __ATOMIC_SEQ_CST);
		__atomic_store_n(&nfp_silent_thread.gate, gate, __ATOMIC_SEQ_CST);
	} while (gate != nfp_wanted_gate());
}

// Partner: set_gates in helper.c, which changes the gate for all and then that of each block with a ring.
static void open_gate(struct nfp_thread *thread)
{
	uint32_t gate;
	do {
		gate = nfp_gate_of(thread);
		__atomic_store_n(&thread->gate, gate, __ATOMIC_SEQ_CST);
	} while (gate != nfp_gate_of(thread));
}

// Gives the calling thread a ring. A child made by vfork runs on its parent's memory and must leave no trace
// there: it gets none.
static struct nfp_thread *claim(struct nfp_thread **word)
{
	if (!is_any_free() || nfp_syscall3(SYS_getpid, 0, 0, 0) != nfp_library.pid)
		return 0;
	int index = take_any();
	if (index < 0)
		return 0;
	if (nfp_ring_map((uint32_t)index) != 0) {
		give_back((uint32_t)index);
		return 0;
	}
	struct nfp_thread *thread = &nfp_library.threads[index];
	describe(thread, (uint32_t)index);
	open_gate(thread);
	*word = thread;
	return thread;
}

// Leaves a LOST mark for each class that lost something since the last one.
static void mark_lost(struct nfp_thread *thread)
{
	for (uint32_t loss = 0; loss < NFP_LOST_CLASSES; loss++) {
		if (thread->lost_pending[loss] == 0 || thread->cursor >= thread->room)
			continue;
		uint64_t count = __atomic_exchange_n(&thread->lost_pending[loss], 0, __ATOMIC_RELAXED);
		nfp_put(nfp_take(thread, 1), count, (uint32_t)NFP_LOST << NFP_KIND_SHIFT, loss);
	}
}

// Signal handlers of this thread count, too: hence the single instructions.
static void count_lost(struct nfp_thread *thread, uint32_t loss, uint64_t records)
{
	nfp_fetch_add_local(&thread->shared->lost[loss], records);
	nfp_fetch_add_local(&thread->lost_pending[loss], records);
}

static int has_ring(const struct nfp_thread *thread)
{
	return thread >= nfp_library.threads && thread < nfp_library.threads + NFP_THREAD_COUNT;
}

struct nfp_thread *nfp_thread_enter(struct nfp_thread *thread, uint32_t loss)
{
	if (has_ring(thread))
		return thread;
	struct nfp_thread **word = nfp_thread_word();
	if (nfp_is_forked()) {
		nfp_follow_gate();
		*word = &nfp_silent_thread;
		return 0;
	}
	thread = 0;
	// One instruction: a signal handler of this thread comes before it or after it.
	struct nfp_thread *before = __atomic_exchange_n(word, &nfp_claiming_thread, __ATOMIC_RELAXED);
	if (before != &nfp_claiming_thread) { // else this is a signal handler inside the lines below
		// A signal handler may have claimed since the probe looked.
		thread = has_ring(before) ? before : claim(word);
		if (*word == &nfp_claiming_thread)
			*word = before;
	}
	if (thread)
		nfp_ring_space_find(thread, NFP_RECORD_BYTES);
	else
		__atomic_fetch_add(&nfp_library.header->unregistered[loss], 1, __ATOMIC_RELAXED);
	return thread;
}

// Whether so many bytes fit, and what is lost has been marked before them.
static int make_room(struct nfp_thread *thread, uint64_t bytes)
{
	if (!nfp_ring_space_find(thread, bytes))
		return 0;
	mark_lost(thread);
	return thread->cursor + bytes <= thread->room || nfp_ring_space_find(thread, bytes);
}

struct nfp_thread *nfp_thread_slow(struct nfp_thread *thread, uint32_t loss)
{
	thread = nfp_thread_enter(thread, loss);
	if (!thread)
		return 0;
	if (make_room(thread, NFP_RECORD_BYTES))
		return thread;
	count_lost(thread, loss, 1);
	return 0;
}

int nfp_make_room(struct nfp_thread *thread, uint32_t count, uint32_t loss)
{
	if (make_room(thread, (uint64_t)count * NFP_RECORD_BYTES))
		return 1;
	count_lost(thread, loss, count);
	return 0;
}
