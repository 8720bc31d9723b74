// SPDX-License-Identifier: Apache-2.0
// ptrace(2) has the rules: a seized thread reports each signal before it gets it, a group-stop, its clones
// and forks, its exec and its end; each report stops it until it is answered.
#define _GNU_SOURCE
#include "ptrace_events.h"
#include "address_space.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

void nfp_go_on(struct nfp_seized *thread, int signal)
{
	thread->state = RUNNING;
	thread->visited = 1;
	ptrace(PTRACE_CONT, thread->tid, 0, (long)signal);
}

static void detach(struct nfp_seized *thread, int signal)
{
	thread->gone = 1;
	ptrace(PTRACE_DETACH, thread->tid, 0, (long)signal);
}

// Whether the thread has executed a breakpoint of ours. Its registers are read.
static const struct nfp_change *met_trap(struct nfp_watch *watch, struct nfp_seized *thread)
{
	if (nfp_registers_read(thread->tid, &thread->registers) != 0)
		return NULL;
	uint64_t trap = nfp_trap_address(&thread->registers);
	const struct nfp_span *span = nfp_plan_span(&watch->plan, trap);
	if (!span || !watch->stood[span->change])
		return NULL;
	const struct nfp_change *change = &watch->plan.changes[span->change];
	return trap == change->address ? change : NULL;
}

static void let_go(struct nfp_watch *watch, struct nfp_seized *thread, int signal)
{
	if (nfp_registers_read(thread->tid, &thread->registers) == 0) {
		int moved = watch->looks ? nfp_move_out(thread, watch->memory, &watch->plan) : 0;
		watch->left += moved < 0;
		watch->moved += moved > 0 ? (uint32_t)moved : 0;
		if (nfp_restart_interrupted_call(&thread->registers))
			nfp_registers_write(thread->tid, &thread->registers);
	}
	detach(thread, signal);
}

// What a stopped thread does next. Whatever it stopped for, that is the stop which an interrupt asked for: the
// kernel forgets an interrupt when another stop comes first.
static void settle(struct nfp_watch *watch, struct nfp_seized *thread, int signal)
{
	if (watch->mode == NFP_WATCH_FOLLOW) {
		if (thread->state == AWAITED && nfp_registers_read(thread->tid, &thread->registers) == 0 &&
		    nfp_restart_interrupted_call(&thread->registers))
			nfp_registers_write(thread->tid, &thread->registers);
		nfp_go_on(thread, signal);
	} else if (watch->mode == NFP_WATCH_RELEASE)
		let_go(watch, thread, signal);
	else {
		thread->state = HELD;
		thread->signal = signal;
	}
}

// A signal that is about to be delivered. Ours is taken away, and the thread goes on at the trampoline.
static void on_signal(struct nfp_watch *watch, struct nfp_seized *thread, int signal)
{
	const struct nfp_change *change = signal == SIGTRAP ? met_trap(watch, thread) : NULL;
	siginfo_t info;
	if (change) {
		watch->traps++;
		nfp_program_counter_set(&thread->registers, change->trampoline);
		nfp_registers_write(thread->tid, &thread->registers);
		// Of two SIGTRAPs for one thread the kernel keeps the first: one that another process has sent stays.
		if (ptrace(PTRACE_GETSIGINFO, thread->tid, 0, &info) == 0 && info.si_code > 0)
			signal = 0;
	}
	settle(watch, thread, signal);
}

// Its birth, an interrupt, or a signal that stops the whole target.
static void on_stop(struct nfp_watch *watch, struct nfp_seized *thread, int signal)
{
	if (met_trap(watch, thread)) { // the trap comes next
		nfp_go_on(thread, 0);
		thread->state = AWAITED;
	} else if (!nfp_is_group_stop(signal) || watch->mode == NFP_WATCH_RELEASE) {
		settle(watch, thread, 0);
	} else if (watch->mode == NFP_WATCH_FOLLOW) {
		thread->state = LISTENING;
		thread->visited = 1;
		ptrace(PTRACE_LISTEN, thread->tid, 0, 0);
	} else {
		thread->state = HELD_LISTENING;
	}
}

// ---- processes that the target makes ---------------------------------------------------------------------

static void fix_copy(struct nfp_watch *watch, pid_t child)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/mem", child);
	int memory = open(path, O_RDWR | O_CLOEXEC);
	if (memory >= 0 && !nfp_runs_in(child, watch->memory)) { // it stands still, so it is what it is
		close(memory);
		memory = -1;
	}
	// Of all batches so far: its copy may have been made much earlier than it comes to its first stop.
	for (uint32_t i = 0; memory >= 0 && i < watch->to; i++) {
		const struct nfp_change *change = &watch->plan.changes[i];
		if (change->failed || !watch->stood[i])
			continue;
		if (change->island)
			nfp_memory_write(memory, change->island, change->island_replacement,
			                 NFP_ISLAND_BYTES);
		nfp_memory_write(memory, change->address, change->replacement, change->bytes);
	}
	if (memory >= 0)
		close(memory);
}

void nfp_let_child_go(struct nfp_watch *watch, struct nfp_seized *child)
{
	fix_copy(watch, child->tid);
	detach(child, 0);
}

// A child before its first instruction. A forked one has a copy of the code as it stood: it gets the bytes of
// the end and runs. One that shares the memory waits until nothing is under way, and is never traced at its
// exec, which would take a set-user-id program's rights.
static void on_child(struct nfp_watch *watch, struct nfp_seized *child)
{
	watch->children++;
	if (watch->mode != NFP_WATCH_RELEASE && nfp_shares_memory(watch->threads.pid, child->tid) != 0) {
		child->state = HELD_CHILD;
		return;
	}
	nfp_let_child_go(watch, child);
}

static struct nfp_seized *adopt(struct nfp_watch *watch, pid_t tid)
{
	char path[64];
	struct nfp_seized *thread = nfp_thread_set_add(&watch->threads, tid);
	if (!thread)
		return NULL;
	snprintf(path, sizeof(path), "/proc/%d/task/%d", watch->threads.pid, tid);
	thread->foreign = access(path, F_OK) != 0;
	thread->state = NEWBORN;
	return thread;
}

// It has made a thread or a process, whose first stop may come much later.
static void on_birth(struct nfp_watch *watch, struct nfp_seized *parent)
{
	unsigned long child = 0;
	int known = ptrace(PTRACE_GETEVENTMSG, parent->tid, 0, &child) == 0;
	settle(watch, parent, 0);
	if (known && !nfp_thread_set_find(&watch->threads, (pid_t)child) && nfp_is_traced_here((pid_t)child))
		adopt(watch, (pid_t)child);
}

static void on_exec(struct nfp_watch *watch, struct nfp_seized *thread)
{
	if (!thread->foreign)
		watch->replaced = 1;
	detach(thread, 0);
}

// Of the first thread. Until it is answered nobody else gets its number (address_space.h).
static void on_end(struct nfp_seized *thread)
{
	thread->gone = 1;
	ptrace(PTRACE_CONT, thread->tid, 0, 0);
}

void nfp_react(struct nfp_watch *watch, pid_t tid, int status)
{
	struct nfp_seized *thread = nfp_thread_set_find(&watch->threads, tid);
	if (!WIFSTOPPED(status)) {
		if (thread)
			thread->gone = 1;
		return;
	}
	int event = status >> 16, signal = WSTOPSIG(status);
	if (!thread)
		thread = adopt(watch, tid);
	if (!thread) { // more than can be: it runs on untraced
		ptrace(PTRACE_DETACH, tid, 0, event ? 0 : (long)signal);
		return;
	}
	if (event == PTRACE_EVENT_EXEC)
		on_exec(watch, thread);
	else if (event == PTRACE_EVENT_EXIT)
		on_end(thread);
	else if (event == PTRACE_EVENT_STOP && thread->state == NEWBORN && thread->foreign)
		on_child(watch, thread);
	else if (event == PTRACE_EVENT_STOP)
		on_stop(watch, thread, signal);
	else if (event)
		on_birth(watch, thread);
	else
		on_signal(watch, thread, signal);
}
