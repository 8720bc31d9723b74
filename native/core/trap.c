// SPDX-License-Identifier: Apache-2.0
// The kernel sends SIGTRAP for an int3 by force: where the thread blocks or ignores it, the kernel resets the
// process's action to the default and unblocks it. A tracer still sees the trap first, but the target would
// not be as it was.
#include "trap.h"
#include "guard.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCKED_MAX 1024
#define LOOKS 25
#define BETWEEN_LOOKS_NS 4000000
#define TRAP_BIT (1ull << (SIGTRAP - 1))

struct status {
	uint64_t blocked, ignored, caught;
	long tid_inside; // in the innermost pid namespace
};

static uint64_t mask_after(const char *text, const char *name)
{
	const char *found = strstr(text, name);
	return found ? strtoull(found + strlen(name), NULL, 16) : 0;
}

static int read_status(int32_t pid, pid_t tid, struct status *status)
{
	char path[64], text[4096];
	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", pid, tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t bytes = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (bytes <= 0)
		return -ESRCH;
	text[bytes] = 0;
	status->blocked = mask_after(text, "\nSigBlk:");
	status->ignored = mask_after(text, "\nSigIgn:");
	status->caught = mask_after(text, "\nSigCgt:");
	status->tid_inside = tid;
	const char *numbers = strstr(text, "\nNSpid:");
	const char *end = numbers ? strchr(numbers + 1, '\n') : NULL;
	while (end && end > numbers && end[-1] >= '0' && end[-1] <= '9')
		end--;
	if (end && end > numbers)
		status->tid_inside = atol(end);
	return 0;
}

// The threads that block SIGTRAP.
struct blocking {
	int32_t pid;
	uint32_t helper_tid; // in the target's own namespace
	uint32_t count;
	struct nfp_trap_use *use;
	pid_t tids[BLOCKED_MAX];
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
		blocking->tids[blocking->count++] = tid;
	return 0;
}

void nfp_trap_look(int32_t pid, uint32_t helper_tid, struct nfp_trap_use *use)
{
	char path[64];
	struct blocking blocking = {.pid = pid, .helper_tid = helper_tid, .use = use};
	*use = (struct nfp_trap_use){0};
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	nfp_each_number(path, look_at_thread, &blocking);
	uint32_t count = blocking.count;
	pid_t *tids = blocking.tids;
	for (int look = 0; look < LOOKS && count > 0 && !use->refusal; look++) {
		nanosleep(&(struct timespec){0, BETWEEN_LOOKS_NS}, NULL);
		uint32_t still = 0;
		for (uint32_t i = 0; i < count; i++) {
			struct status status;
			if (read_status(pid, tids[i], &status) == 0 && (status.blocked & TRAP_BIT))
				tids[still++] = tids[i];
		}
		count = still;
	}
	if (count > 0 && !use->refusal)
		use->refusal = "a thread of the target blocks SIGTRAP";
}

int nfp_trap_is_caught(int32_t pid)
{
	struct status status;
	return read_status(pid, pid, &status) == 0 && (status.caught & TRAP_BIT) != 0;
}
