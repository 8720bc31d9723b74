// SPDX-License-Identifier: Apache-2.0
// Loaded into a monitor by LD_PRELOAD: counts the moments at which it touches its target, and at a chosen one makes the
// target execute another program. A moment is a call of ptrace, a write of memory, or what the test adds (moment()).
// The target executes when a byte comes through a pipe, whose other end its exec closes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

enum { PATIENCE_MS = 20 }; // a target that stands still executes when it is let go

long moments_passed, moments_chosen;
int moments_trigger = -1, moments_made;

void moment(void)
{
	if (++moments_passed != moments_chosen || moments_trigger < 0)
		return;
	struct pollfd other_end = {.fd = moments_trigger};
	moments_made = 1;
	if (write(moments_trigger, "x", 1) == 1)
		poll(&other_end, 1, PATIENCE_MS);
}

long ptrace(int request, pid_t pid, void *address, void *data)
{
	static long (*real)(int, pid_t, void *, void *);
	if (!real)
		real = (long (*)(int, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");
	moment();
	return real(request, pid, address, data);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset)
{
	static ssize_t (*real)(int, const void *, size_t, off_t);
	if (!real)
		real = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
	moment();
	return real(file, bytes, count, offset);
}
