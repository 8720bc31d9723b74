// SPDX-License-Identifier: Apache-2.0
// Finds the threads of a target in /proc and seizes them.
#define _GNU_SOURCE
#include "thread_set.h"
#include "address_space.h"
#include "patch_process.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

int nfp_thread_set_make(struct nfp_thread_set *threads, int32_t pid, long options)
{
	*threads = (struct nfp_thread_set){.pid = pid, .options = options};
	threads->items = nfp_patch_process_memory(NFP_THREAD_SET_MAX * sizeof(*threads->items));
	return threads->items ? 0 : -ENOMEM;
}

struct nfp_seized *nfp_thread_set_find(const struct nfp_thread_set *threads, pid_t tid)
{
	for (uint32_t i = threads->count; i-- > 0;) // the latest first: a number may be used again
		if (threads->items[i].tid == tid && !threads->items[i].gone)
			return &threads->items[i];
	return NULL;
}

struct nfp_seized *nfp_thread_set_add(struct nfp_thread_set *threads, pid_t tid)
{
	for (uint32_t i = 0; threads->count == NFP_THREAD_SET_MAX && i < threads->count; i++)
		if (threads->items[i].gone) {
			threads->items[i] = (struct nfp_seized){.tid = tid};
			return &threads->items[i];
		}
	if (threads->count == NFP_THREAD_SET_MAX)
		return NULL;
	struct nfp_seized *thread = &threads->items[threads->count++];
	*thread = (struct nfp_seized){.tid = tid};
	return thread;
}

static ssize_t read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t bytes = read(fd, text, size - 1);
	close(fd);
	text[bytes > 0 ? bytes : 0] = 0;
	return bytes;
}

// A thread that has exited but is still listed (a main thread that called pthread_exit) cannot be seized.
static int is_dead(int32_t pid, pid_t tid)
{
	char path[64], line[512];
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	if (read_file(path, line, sizeof(line)) <= 0)
		return 1;
	const char *state = strrchr(line, ')');
	return !state || state[1] != ' ' || state[2] == 'Z' || state[2] == 'X';
}

int nfp_is_traced_here(pid_t tid)
{
	char path[64], text[4096];
	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	if (read_file(path, text, sizeof(text)) <= 0)
		return 0;
	const char *tracer = strstr(text, "\nTracerPid:");
	return tracer && atoi(tracer + 11) == getpid();
}

static int seize(struct nfp_thread_set *threads, pid_t tid)
{
	struct nfp_seized thread;
	long first = tid == threads->pid ? PTRACE_O_TRACEEXIT : 0; // address_space.h says why
	int error = nfp_seize_with(tid, threads->options | first, &thread);
	if (error == -ESRCH || (error && is_dead(threads->pid, tid)))
		return 0;
	if (error) // one that a seized thread has made is traced from its birth, and will report itself
		return nfp_is_traced_here(tid) ? 0 : error;
	return nfp_thread_set_add(threads, tid) ? 1 : -E2BIG;
}

// One is enough, all threads of a process have the same memory; but one that is ending has none.
int nfp_thread_set_check(const struct nfp_thread_set *threads, int memory)
{
	for (uint32_t i = 0; i < threads->count; i++)
		if (!threads->items[i].gone && !threads->items[i].foreign &&
		    nfp_runs_in(threads->items[i].tid, memory))
			return 0;
	return -ESTALE;
}

struct newcomers {
	struct nfp_thread_set *threads;
	int found;
};

static int seize_newcomer(void *context, int32_t tid)
{
	struct newcomers *newcomers = context;
	int seized = nfp_thread_set_find(newcomers->threads, tid) ? 0 : seize(newcomers->threads, tid);
	newcomers->found += seized > 0;
	return seized;
}

int nfp_thread_set_seize_new(struct nfp_thread_set *threads)
{
	char path[64];
	struct newcomers newcomers = {threads, 0};
	snprintf(path, sizeof(path), "/proc/%d/task", threads->pid);
	int error = nfp_each_number(path, seize_newcomer, &newcomers);
	return error ? error : newcomers.found;
}

// As the kernel counts them, those included that have exited and are still listed; 0 when the target is gone.
static long count_threads(int32_t pid)
{
	char path[64], line[512];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	const char *at = read_file(path, line, sizeof(line)) > 0 ? strrchr(line, ')') : NULL;
	for (int field = 2; at && field < 20;
	     field++) // ")" ends the second field, num_threads is the twentieth
		at = strchr(at + 1, ' ');
	return at ? atol(at) : 0;
}

int nfp_thread_set_is_whole(const struct nfp_thread_set *threads)
{
	long known = 0, counted = count_threads(threads->pid);
	int has_leader = 0;
	for (uint32_t i = 0; i < threads->count; i++)
		if (!threads->items[i].gone && !threads->items[i].foreign) {
			known++;
			has_leader |= threads->items[i].tid == threads->pid;
		}
	return counted <= known + (!has_leader && is_dead(threads->pid, threads->pid));
}

int nfp_shares_memory(int32_t pid, pid_t other)
{
	long differ = syscall(SYS_kcmp, pid, other, KCMP_VM, 0, 0);
	return differ < 0 ? -errno : differ == 0;
}

// Calls `visit` for each child of a thread that runs in the target's memory, until it returns a negative number.
static int each_sharer(int32_t pid, pid_t tid, struct nfp_thread_set *threads,
                       int (*visit)(struct nfp_thread_set *, pid_t))
{
	char path[96], text[4096];
	int found = 0;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", tid, tid);
	if (read_file(path, text, sizeof(text)) <= 0)
		return 0;
	char *rest = NULL;
	for (char *word = strtok_r(text, " ", &rest); word && found >= 0; word = strtok_r(NULL, " ", &rest)) {
		if (nfp_shares_memory(pid, atoi(word)) != 1)
			continue;
		int result = visit(threads, atoi(word));
		found = result < 0 ? result : found + result;
	}
	return found;
}

static int seize_sharer(struct nfp_thread_set *threads, pid_t child)
{
	if (nfp_thread_set_find(threads, child))
		return 0;
	int seized = seize(threads, child);
	if (seized > 0)
		nfp_thread_set_find(threads, child)->foreign = 1;
	return seized;
}

int nfp_thread_set_seize_sharers(struct nfp_thread_set *threads)
{
	int found = 0;
	for (uint32_t i = 0; i < threads->count && found >= 0; i++) { // grows: children of children, too
		if (threads->items[i].gone)
			continue;
		int result = each_sharer(threads->pid, threads->items[i].tid, threads, seize_sharer);
		found = result < 0 ? result : found + result;
	}
	return found;
}

static int count_sharer(struct nfp_thread_set *threads, pid_t child)
{
	(void)threads;
	(void)child;
	return 1;
}

int nfp_has_sharer(int32_t pid, pid_t tid)
{
	return each_sharer(pid, tid, NULL, count_sharer) > 0;
}

long nfp_blocked_in(pid_t tid)
{
	char path[64], text[256];
	snprintf(path, sizeof(path), "/proc/%d/syscall", tid);
	if (read_file(path, text, sizeof(text)) <= 0 || text[0] < '0' || text[0] > '9')
		return -1; // "running", or -1 for a page fault
	return atol(text);
}

int nfp_move_out(struct nfp_seized *thread, int memory, const struct nfp_plan *plan)
{
	uint64_t place;
	int moved = nfp_plan_place(plan, nfp_program_counter(&thread->registers), &place);
	if (moved < 0)
		return moved;
	if (moved && !nfp_runs_in(thread->tid, memory)) // the same address means something else there
		return 0;
	if (moved) {
		nfp_program_counter_set(&thread->registers, place);
		int error = nfp_registers_write(thread->tid, &thread->registers);
		if (error)
			return error;
	}
	int in_frames = nfp_move_in_frames(memory, nfp_stack_pointer(&thread->registers), plan);
	return in_frames < 0 ? in_frames : moved + in_frames;
}
