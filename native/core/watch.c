// SPDX-License-Identifier: Apache-2.0
// Who is watched, from when until when. ptrace_events.c has what is done when a thread reports something.
#define _GNU_SOURCE
#include "watch.h"
#include "patch_process.h"
#include "ptrace_events.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 30000
#define EVENTS_AT_ONCE                                                                                       \
	256 // many threads can meet a breakpoint faster than they are sent on: it would never end
#define TURNS_TO_LOOK 16 // at a thread that does not come to its stop
#define STARVED_PATIENCE_NS 60000000000ull
#define OPTIONS (PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC)

static void wake(int signal)
{
	(void)signal;
}

int nfp_watch_has_target(const struct nfp_watch *watch)
{
	for (uint32_t i = 0; !watch->replaced && i < watch->threads.count; i++)
		if (!watch->threads.items[i].gone && !watch->threads.items[i].foreign)
			return 1;
	return 0;
}

int nfp_watch_events(struct nfp_watch *watch)
{
	int status, count = 0;
	for (pid_t tid; count < EVENTS_AT_ONCE && (tid = waitpid(-1, &status, __WALL | WNOHANG)) > 0; count++)
		nfp_react(watch, tid, status);
	return count > 0;
}

void nfp_watch_pause(struct nfp_watch *watch)
{
	if (!nfp_watch_events(watch))
		nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
}

static int is_awaited(const struct nfp_seized *thread)
{
	return !thread->gone && (thread->state == AWAITED || thread->state == NEWBORN);
}

// Whether a thread is blocked in the kernel where no signal wakes it, as in vfork: it does not come to its stop,
// and has met no breakpoint that it has not reported.
static int is_blocked(const struct nfp_watch *watch, pid_t tid)
{
	char path[64], line[512];
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", watch->threads.pid, tid);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t bytes = file < 0 ? 0 : read(file, line, sizeof(line) - 1);
	if (file >= 0)
		close(file);
	line[bytes > 0 ? bytes : 0] = 0;
	const char *state = strrchr(line, ')');
	return !state || state[2] == 'S' || state[2] == 'D';
}

// Waits for the stops of all that were interrupted. Returns how many do not come. Threads that wait for a CPU
// get a stop only when it is their turn: on a busy machine that takes longer than the patience.
static uint32_t wait_for_all(struct nfp_watch *watch, uint64_t patience_ns)
{
	uint64_t start_ns = nfp_now_ns();
	uint32_t missing = 0;
	for (uint32_t i = 0; i < watch->threads.count; i++) {
		struct nfp_seized *thread = &watch->threads.items[i];
		while (is_awaited(thread) && !watch->replaced) {
			uint64_t waited_ns = nfp_now_ns() - start_ns;
			if (waited_ns > STARVED_PATIENCE_NS ||
			    (waited_ns > patience_ns && is_blocked(watch, thread->tid))) {
				missing++;
				break;
			}
			nfp_watch_pause(watch);
		}
	}
	return missing;
}

static void interrupt(struct nfp_watch *watch, struct nfp_seized *thread)
{
	if (thread->gone || thread->state == NEWBORN || thread->state >= HELD)
		return;
	thread->state = AWAITED;
	if (ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0) != 0)
		thread->gone = 1;
	nfp_watch_events(watch); // who has stopped does not stand in a queue
}

static int makes_others(long number)
{
#ifdef SYS_fork // not on processors that Linux came to later
	if (number == SYS_fork || number == SYS_vfork)
		return 1;
#endif
	return number == SYS_clone || number == SYS_clone3;
}

// Whether a thread that was seized while it made another one, which is therefore not traced, is through with it: it has
// stopped since, or is blocked in another system call, or in vfork with its child known.
static int is_past_birth(struct nfp_watch *watch, struct nfp_seized *thread)
{
	if (thread->gone || thread->visited || thread->state >= HELD)
		return 1;
	long number = nfp_blocked_in(thread->tid);
	if (number >= 0 && makes_others(number) && nfp_has_sharer(watch->threads.pid, thread->tid)) {
		int found = nfp_thread_set_seize_sharers(&watch->threads);
		thread->visited = found >= 0;
	} else if (number >= 0 && !makes_others(number))
		thread->visited = 1;
	return thread->visited;
}

static int visit_all(struct nfp_watch *watch)
{
	uint64_t start_ns = nfp_now_ns();
	for (uint32_t i = 0; i < watch->threads.count; i++)
		if (!is_past_birth(watch, &watch->threads.items[i]))
			interrupt(watch, &watch->threads.items[i]);
	for (uint32_t i = 0; i < watch->threads.count; i++) // grows
		for (uint32_t turn = 1; !watch->threads.items[i].visited && !watch->threads.items[i].gone;
		     turn++) {
			nfp_watch_pause(watch);
			if (watch->replaced) // nobody reports the end of the threads that it had
				return -ESTALE;
			if (turn % TURNS_TO_LOOK == 0 && is_past_birth(watch, &watch->threads.items[i]))
				break;
			if (watch->threads.items[i].state == RUNNING)
				interrupt(watch, &watch->threads.items[i]);
			if (nfp_now_ns() - start_ns > STARVED_PATIENCE_NS)
				return -ETIMEDOUT;
		}
	return 0;
}

// Until a look finds nobody new and the kernel counts as many as are known, and nobody may be making one without our knowledge.
static int seize_all(struct nfp_watch *watch)
{
	uint64_t start_ns = nfp_now_ns();
	int found, is_whole = 0;
	do {
		found = nfp_thread_set_seize_new(&watch->threads);
		nfp_watch_events(watch);
		if (found >= 0) {
			int sharers = nfp_thread_set_seize_sharers(&watch->threads);
			found = sharers < 0 ? sharers : found + sharers;
		}
		int error = found > 0 ? visit_all(watch) : 0;
		if (error)
			return error;
		is_whole = !found && nfp_thread_set_is_whole(&watch->threads);
		if (!found && !is_whole) { // or somebody has just begun, or ended
			nfp_watch_pause(watch);
			is_whole = nfp_thread_set_is_whole(&watch->threads);
		}
		if (!is_whole && nfp_now_ns() - start_ns > STARVED_PATIENCE_NS)
			return -ETIMEDOUT;
	} while (found > 0 || (!found && !is_whole && nfp_watch_has_target(watch)));
	return found < 0 ? found : nfp_thread_set_check(&watch->threads, watch->memory);
}

int nfp_watch_begin(struct nfp_watch *watch, int32_t pid, int memory, struct nfp_change *changes,
                    uint32_t count)
{
	*watch = (struct nfp_watch){.memory = memory};
	// Only so that a sleep ends when a thread of the target reports something.
	struct sigaction action = {.sa_handler = wake};
	sigaction(SIGCHLD, &action, NULL);
	watch->stood = nfp_patch_process_memory(count + 1);
	int error = nfp_plan_make(&watch->plan, changes, count, NULL);
	if (!error)
		error = nfp_thread_set_make(&watch->threads, pid, OPTIONS);
	if (error || !watch->stood)
		return -ENOMEM;
	return seize_all(watch);
}

void nfp_watch_hold(struct nfp_watch *watch, uint64_t patience_ns)
{
	watch->mode = NFP_WATCH_HOLD;
	for (uint32_t i = 0; i < watch->threads.count; i++)
		interrupt(watch, &watch->threads.items[i]);
	wait_for_all(watch, patience_ns);
}

void nfp_watch_resume(struct nfp_watch *watch)
{
	watch->mode = NFP_WATCH_FOLLOW;
	for (uint32_t i = 0; i < watch->threads.count; i++) {
		struct nfp_seized *thread = &watch->threads.items[i];
		if (thread->gone)
			continue;
		if (thread->state == HELD_LISTENING) { // stopped by a signal of its own: it stays so
			thread->state = LISTENING;
			ptrace(PTRACE_LISTEN, thread->tid, 0, 0);
		}
		if (thread->state != HELD)
			continue;
		if (nfp_restart_interrupted_call(&thread->registers))
			nfp_registers_write(thread->tid, &thread->registers);
		nfp_go_on(thread, thread->signal);
	}
}

void nfp_watch_release(struct nfp_watch *watch, uint64_t patience_ns)
{
	watch->mode = NFP_WATCH_RELEASE;
	for (uint32_t i = 0; i < watch->threads.count; i++) // first, since their parents wait for them
		if (!watch->threads.items[i].gone && watch->threads.items[i].state == HELD_CHILD)
			nfp_let_child_go(watch, &watch->threads.items[i]);
	for (uint32_t i = 0; i < watch->threads.count; i++)
		if (watch->looks || nfp_blocked_in(watch->threads.items[i].tid) < 0)
			interrupt(watch, &watch->threads.items[i]);
	watch->left += wait_for_all(watch, patience_ns); // the end of this process lets those go
}
