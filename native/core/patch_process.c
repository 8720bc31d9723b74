// SPDX-License-Identifier: Apache-2.0
// The child is made as vfork makes one, on a stack of its own: it runs in the monitor's memory, and the thread that
// made it stands still until it has ended. When the monitor is killed the memory stays as long as the child does.
#define _GNU_SOURCE
#include "patch_process.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (1u << 20)
#define ROOM_BYTES (64u << 20) // taken page by page, as it is used
#define ALIGNMENT_BYTES 64

struct guarded {
	int (*work)(void *shared);
	void *shared;
	int result;
	int finished;
};

// Of the thread that waits, and of its child: they have the same thread-local storage, and never run at once.
static __thread struct {
	uint8_t *next;
	size_t left;
} room;

void *nfp_patch_process_memory(size_t bytes)
{
	size_t taken = (bytes + ALIGNMENT_BYTES - 1) & ~(size_t)(ALIGNMENT_BYTES - 1);
	if (taken < bytes || taken > room.left)
		return NULL;
	void *found = room.next;
	room.next += taken;
	room.left -= taken;
	return found;
}

// A signal to the monitor's process group, such as Ctrl-C, is not for the patch process, nor one that is meant to end the
// monitor: the work is a matter of milliseconds, and half of it would kill the target. A process group of its own is
// enough; a session of its own would be a scheduling group of its own, too (sched_autogroup), in which a monitor's
// niceness counts for nothing.
static void shield(void)
{
	sigset_t all;
	setpgid(0, 0);
	sigfillset(&all);
	sigdelset(&all, SIGCHLD); // watch.c waits for it
	sigprocmask(SIG_SETMASK, &all, NULL);
}

static int run(void *argument)
{
	struct guarded *guarded = argument;
	shield();
	guarded->result = guarded->work(guarded->shared);
	guarded->finished = 1;
	_exit(0);
}

static int wait_for(pid_t child, const struct guarded *guarded)
{
	int status;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			break; // another thread reaps children: it has finished nevertheless
	return guarded->finished ? guarded->result : -ECHILD;
}

int nfp_patch_process(int (*work)(void *shared), void *shared)
{
	struct guarded guarded = {.work = work, .shared = shared};
	uint8_t *memory = mmap(NULL, STACK_BYTES + ROOM_BYTES, PROT_READ | PROT_WRITE,
	                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return -errno;
	room.next = memory + STACK_BYTES;
	room.left = ROOM_BYTES;
	pid_t child = clone(run, memory + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, &guarded);
	int result = child < 0 ? -errno : wait_for(child, &guarded);
	room.left = 0;
	munmap(memory, STACK_BYTES + ROOM_BYTES);
	return result;
}

struct entry {
	uint64_t inode;
	int64_t offset;
	uint16_t bytes;
	uint8_t type;
	char name[];
};

int nfp_each_number(const char *directory, int (*visit)(void *context, int32_t number), void *context)
{
	_Alignas(8) char entries[4096];
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int result = 0;
	for (long bytes; result >= 0 && (bytes = syscall(SYS_getdents64, fd, entries, sizeof(entries))) > 0;)
		for (long at = 0; result >= 0 && at < bytes;) {
			const struct entry *entry = (const void *)(entries + at);
			int32_t number = atoi(entry->name);
			if (number > 0)
				result = visit(context, number);
			at += entry->bytes;
		}
	close(fd);
	return result < 0 ? result : 0;
}
