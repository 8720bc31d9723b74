// SPDX-License-Identifier: Apache-2.0
// The kernel sends SIGTRAP for a breakpoint by force: where the thread blocks or ignores it, the kernel resets the
// process's action to the default and unblocks it. A tracer still sees the trap first, but the target would
// not be as it was.
#include "trap.h"
#include "patch_process.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCKED_MAX 1024
#define LOOKS 25 // at a thread that could have unblocked it
#define LOOKS_MAX 1250
#define BETWEEN_LOOKS_NS 4000000
#define TRAP_BIT (1ull << (SIGTRAP - 1))

struct status {
	uint64_t blocked, ignored, caught;
	long tid_inside; // in the innermost pid namespace
	int is_runnable;
};

static uint64_t mask_after(const char *text, const char *name)
{
	const char *found = strstr(text, name);
	return found ? strtoull(found + strlen(name), NULL, 16) : 0;
}

// A file of a thread's in /proc, as text.
static int read_file(int32_t pid, pid_t tid, const char *name, char *text, size_t room)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", pid, tid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t bytes = read(fd, text, room - 1);
	close(fd);
	if (bytes <= 0)
		return -ESRCH;
	text[bytes] = 0;
	return 0;
}

static int read_status(int32_t pid, pid_t tid, struct status *status)
{
	char text[4096];
	int error = read_file(pid, tid, "status", text, sizeof(text));
	if (error)
		return error;
	status->blocked = mask_after(text, "\nSigBlk:");
	status->ignored = mask_after(text, "\nSigIgn:");
	status->caught = mask_after(text, "\nSigCgt:");
	const char *state = strstr(text, "\nState:\t");
	status->is_runnable = state && state[8] == 'R';
	status->tid_inside = tid;
	const char *numbers = strstr(text, "\nNSpid:");
	const char *end = numbers ? strchr(numbers + 1, '\n') : NULL;
	while (end && end > numbers && end[-1] >= '0' && end[-1] <= '9')
		end--;
	if (end && end > numbers)
		status->tid_inside = atol(end);
	return 0;
}

// Processor time of a thread; 0 where the kernel does not say (CONFIG_SCHED_INFO).
static uint64_t read_ran_ns(int32_t pid, pid_t tid)
{
	char text[64];
	return read_file(pid, tid, "schedstat", text, sizeof(text)) == 0 ? strtoull(text, NULL, 10) : 0;
}

struct blocked_thread {
	pid_t tid;
	int looks;
	uint64_t ran_ns;
};

// The threads that block SIGTRAP.
struct blocking {
	int32_t pid;
	uint32_t helper_tid; // in the target's own namespace
	uint32_t count;
	struct nfp_trap_use *use;
	struct blocked_thread threads[BLOCKED_MAX];
};

static int look_at_thread(void *context, int32_t tid)
{
	struct blocking *blocking = context;
	struct status status;
	if (read_status(blocking->pid, tid, &status) != 0)
		return 0;
	if (status.ignored & TRAP_BIT)
		blocking->use->refusal = "the target ignores SIGTRAP";
	blocking->use->is_caught |= (status.caught & TRAP_BIT) != 0;
	if (status.tid_inside == (long)blocking->helper_tid)
		blocking->use->helper = tid;
	else if ((status.blocked & TRAP_BIT) && blocking->count < BLOCKED_MAX)
		blocking->threads[blocking->count++] = (struct blocked_thread){tid, 0, 0};
	return 0;
}

// A thread that waits for a processor unblocks nothing: a look at it says nothing unless it has run since the last one.
// pthread_create blocks all signals for moments, and beside other work a moment may last a second.
static int still_blocks(int32_t pid, struct blocked_thread *thread)
{
	struct status status;
	if (read_status(pid, thread->tid, &status) != 0 || !(status.blocked & TRAP_BIT))
		return 0;
	uint64_t ran_ns = read_ran_ns(pid, thread->tid);
	thread->looks += !status.is_runnable || !ran_ns || ran_ns != thread->ran_ns;
	thread->ran_ns = ran_ns;
	return 1;
}

void nfp_trap_look(int32_t pid, uint32_t helper_tid, struct nfp_trap_use *use)
{
	char path[64];
	struct blocking blocking = {.pid = pid, .helper_tid = helper_tid, .use = use};
	*use = (struct nfp_trap_use){0};
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	nfp_each_number(path, look_at_thread, &blocking);
	int looks = 0;
	for (int look = 0; look < LOOKS_MAX && looks < LOOKS && blocking.count > 0 && !use->refusal; look++) {
		nanosleep(&(struct timespec){0, BETWEEN_LOOKS_NS}, NULL);
		uint32_t still = 0;
		for (uint32_t i = 0; i < blocking.count; i++) {
			struct blocked_thread *thread = &blocking.threads[i];
			if (!still_blocks(pid, thread))
				continue;
			looks = thread->looks > looks ? thread->looks : looks;
			blocking.threads[still++] = *thread;
		}
		blocking.count = still;
	}
	if (blocking.count > 0 && !use->refusal)
		use->refusal = "a thread of the target blocks SIGTRAP";
}

int nfp_trap_is_caught(int32_t pid)
{
	struct status status;
	return read_status(pid, pid, &status) == 0 && (status.caught & TRAP_BIT) != 0;
}
