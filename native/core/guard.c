// SPDX-License-Identifier: Apache-2.0
// The child calls nothing that another thread of the monitor may hold a lock of: fork keeps only this one.
#define _GNU_SOURCE
#include "guard.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct guarded {
	int result;
	int finished;
	_Alignas(16) char shared[];
};

static int wait_for(pid_t child, struct guarded *guarded)
{
	int status;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			break; // somebody else reaps children: it has finished all the same
	return guarded->finished ? guarded->result : -ECHILD;
}

// A signal to the monitor's process group, such as Ctrl-C, is not for the guard, nor one that is meant to end the
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

int nfp_guard(int (*work)(void *shared), void *shared, size_t bytes)
{
	size_t size = sizeof(struct guarded) + bytes;
	struct guarded *guarded = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (guarded == MAP_FAILED)
		return -errno;
	memcpy(guarded->shared, shared, bytes);
	pid_t child = fork();
	if (child == 0) {
		shield();
		guarded->result = work(guarded->shared);
		guarded->finished = 1;
		_exit(0);
	}
	int result = child < 0 ? -errno : wait_for(child, guarded);
	memcpy(shared, guarded->shared, bytes);
	munmap(guarded, size);
	return result;
}
