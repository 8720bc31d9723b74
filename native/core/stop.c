// SPDX-License-Identifier: Apache-2.0
// The batched stop: seize every thread first (they keep running), then interrupt all, wait for all, look at
// all program counters, write, let all go, read back. The plan is made before; nothing here allocates or
// computes while the target stands still.
#include "stop.h"
#include "address_space.h"
#include "thread_set.h"
#include "patch_process.h"
#include "ptrace.h"
#include "runs.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#define REPLACED "the process has started another program"

static int fail(struct nfp_stop *stop, int error, const char *what)
{
	snprintf(stop->message, sizeof(stop->message), "%s: %s", what, strerror(-error));
	return error;
}

// Stops threads [from, count).
static int stop_from(struct nfp_thread_set *threads, uint32_t from, uint64_t deadline_ns)
{
	for (uint32_t i = from; i < threads->count; i++)
		if (nfp_interrupt(&threads->items[i]) != 0)
			threads->items[i].gone = 1;
	for (uint32_t i = from; i < threads->count; i++) {
		int error = nfp_wait_interrupted(&threads->items[i], deadline_ns);
		if (error && error != -ESRCH)
			return error;
	}
	return 0;
}

static int seize_all(struct nfp_stop *stop, struct nfp_thread_set *threads)
{
	int found;
	do {
		found = nfp_thread_set_seize_new(threads);
	} while (found > 0);
	return found < 0 ? fail(stop, found, "a thread of the target cannot be seized") : 0;
}

// Until a look at the list finds nobody new and the kernel counts as many as are known, all threads are stopped: only a running
// one makes another, and who was left out of the list runs.
static int stop_all(struct nfp_stop *stop, struct nfp_thread_set *threads, uint64_t deadline_ns)
{
	uint32_t from = 0;
	int found;
	do {
		int error = stop_from(threads, from, deadline_ns);
		if (error)
			return fail(stop, error,
			            error == -ESTALE ? REPLACED : "a thread of the target did not stop");
		from = threads->count;
		found = nfp_thread_set_seize_new(threads);
		if (found < 0)
			return fail(stop, found, "a new thread of the target cannot be seized");
		if (!found && nfp_thread_set_is_whole(threads)) {
			error = nfp_thread_set_check(threads, stop->memory_fd);
			return error ? fail(stop, error, REPLACED) : 0;
		}
	} while (found || nfp_now_ns() < deadline_ns);
	return fail(stop, -ETIMEDOUT, "a thread of the target is not found");
}

static void release_all(struct nfp_thread_set *threads)
{
	for (uint32_t i = 0; i < threads->count; i++)
		if (!threads->items[i].stopped &&
		    !threads->items[i].gone) { // interrupted, but the wait gave up
			nfp_wait_interrupted(&threads->items[i], nfp_now_ns() + 100000000u);
		}
	for (uint32_t i = 0; i < threads->count; i++)
		nfp_release(&threads->items[i]);
}

static int move_all_out(struct nfp_stop *stop, struct nfp_thread_set *threads, int memory,
                        const struct nfp_plan *plan)
{
	for (uint32_t i = 0; i < threads->count; i++) {
		if (threads->items[i].gone)
			continue;
		int moved = nfp_move_out(&threads->items[i], memory, plan);
		if (moved < 0)
			return fail(stop, moved, "a thread stands in the bytes to be changed");
		stop->moved += (uint32_t)moved;
	}
	return 0;
}

static int change_stopped(struct nfp_stop *stop, struct nfp_thread_set *threads, int memory,
                          struct nfp_runs *runs, uint64_t patience_ns)
{
	struct nfp_priority before;
	int error = seize_all(stop, threads);
	nfp_priority_boost(&before);
	uint64_t start_ns = nfp_now_ns();
	if (!error)
		error = stop_all(stop, threads, start_ns + patience_ns);
	if (!error)
		error = move_all_out(stop, threads, memory, runs->plan);
	if (!error) {
		error = nfp_runs_write(runs, memory);
		if (error)
			fail(stop, error, "the target's code cannot be written through /proc/PID/mem");
	}
	release_all(threads);
	stop->stopped_ns = nfp_now_ns() - start_ns;
	nfp_priority_restore(&before);
	stop->threads = threads->count;
	if (!error)
		nfp_runs_verify(runs, memory);
	return error;
}

static int stop_and_change_here(struct nfp_stop *stop, struct nfp_change *changes, uint32_t count,
                                const struct nfp_move *moves, uint64_t patience_ns)
{
	struct nfp_thread_set threads = {0};
	struct nfp_plan plan = {0};
	struct nfp_runs runs = {0};
	stop->threads = stop->moved = stop->changed = 0;
	stop->stopped_ns = 0;
	int error = nfp_thread_set_make(&threads, stop->pid, PTRACE_O_TRACEEXEC);
	if (!error)
		error = nfp_plan_make(&plan, changes, count, moves);
	if (!error)
		error = nfp_runs_make(&runs, &plan);
	if (error)
		fail(stop, error, "laying out the changes");
	else {
		nfp_runs_touch(&runs, stop->memory_fd);
		error = change_stopped(stop, &threads, stop->memory_fd, &runs, patience_ns);
	}
	for (uint32_t i = 0; !error && i < count; i++)
		stop->changed += changes[i].failed == NFP_CHANGE_MADE;
	return error;
}

struct work {
	struct nfp_stop *stop;
	struct nfp_change *changes;
	const struct nfp_move *moves;
	uint64_t patience_ns;
	uint32_t count;
};

static int do_work(void *shared)
{
	struct work *work = shared;
	return stop_and_change_here(work->stop, work->changes, work->count, work->moves, work->patience_ns);
}

int nfp_stop_and_change(struct nfp_stop *stop, struct nfp_change *changes, uint32_t count,
                        const struct nfp_move *moves, uint64_t patience_ns)
{
	struct work work = {stop, changes, moves, patience_ns, count};
	return nfp_patch_process(do_work, &work);
}

int nfp_change_word(int32_t memory_fd, uint64_t address, uint64_t expected, uint64_t replacement)
{
	uint64_t found;
	if (address % 8 != 0)
		return -EINVAL;
	int error = nfp_memory_read(memory_fd, address, &found, sizeof(found));
	if (error)
		return error;
	// The kernel copies eight aligned bytes with one store: a thread sees the old pointer or the new one.
	return found != expected ? -EILSEQ
	                         : nfp_memory_write(memory_fd, address, &replacement, sizeof(replacement));
}
