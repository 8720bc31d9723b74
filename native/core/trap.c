// SPDX-License-Identifier: Apache-2.0
// The kernel sends SIGTRAP for an int3 by force: where the thread blocks or ignores it, the kernel resets the
// process's action to the default and unblocks it. A tracer still sees the trap first, but the target would
// not be as it was.
#include "trap.h"
#include <dirent.h>
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

// Fills `tids` with the threads that block SIGTRAP.
static uint32_t list_blocked(int32_t pid, uint32_t helper_tid, struct nfp_trap_use *use, pid_t *tids)
{
	char path[64];
	uint32_t count = 0;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *directory = opendir(path);
	if (!directory)
		return 0;
	for (struct dirent *entry; (entry = readdir(directory));) {
		struct status status;
		pid_t tid = atoi(entry->d_name);
		if (tid <= 0 || read_status(pid, tid, &status) != 0)
			continue;
		if (status.ignored & TRAP_BIT)
			use->refusal = "the target ignores SIGTRAP";
		use->is_caught |= (status.caught & TRAP_BIT) != 0;
		if (status.tid_inside == (long)helper_tid)
			use->helper = tid;
		else if ((status.blocked & TRAP_BIT) && count < BLOCKED_MAX)
			tids[count++] = tid;
	}
	closedir(directory);
	return count;
}

void nfp_trap_look(int32_t pid, uint32_t helper_tid, struct nfp_trap_use *use)
{
	pid_t tids[BLOCKED_MAX];
	*use = (struct nfp_trap_use){0};
	uint32_t count = list_blocked(pid, helper_tid, use, tids);
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
