// SPDX-License-Identifier: Apache-2.0
// What the descriptors may be that a hostile target names: for the library, its session, its counters.
#ifndef NFPROBE_TEST_HOSTILE_DESCRIPTORS_H
#define NFPROBE_TEST_HOSTILE_DESCRIPTORS_H
#include "hostile.h"
#include <errno.h>
#include <stdio.h>
#include <sys/un.h>

#define NO_SUCH_DESCRIPTOR 900

static struct nfp_boot *volatile boot_page;
static const char *path; // of a file that this user may read and not write

static int open_read_only(void)
{
	return open(path, O_RDONLY | O_NONBLOCK);
}

static int open_path_only(void)
{
	return open(path, O_PATH);
}

static int open_device(void)
{
	return open("/dev/zero", O_RDWR);
}

static int open_nothing(void)
{
	return NO_SUCH_DESCRIPTOR;
}

static int open_negative(void)
{
	return -100; // AT_FDCWD
}

static int open_pipe(void)
{
	int ends[2];
	return pipe(ends) == 0 ? ends[1] : -1;
}

static int open_socket(void)
{
	int ends[2];
	return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 ? ends[0] : -1;
}

// Of another file system than memory files have.
static int open_unlinked(void)
{
	char name[64];
	snprintf(name, sizeof(name), "/dev/shm/memfd:nfprobe-session-%d", (int)getpid());
	int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	unlink(name);
	return fd;
}

static int reopen(int fd, int flags)
{
	char name[64];
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	return open(name, flags);
}

static int name_of_library(void)
{
	return memfd_create(boot_page->library_name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

static int open_memory_read_only(void)
{
	return reopen(name_of_library(), O_RDONLY);
}

static int open_memory_path_only(void)
{
	return reopen(name_of_library(), O_PATH);
}

static int open_memory_full(void)
{
	int fd = name_of_library();
	return ftruncate(fd, 1 << 20) == 0 ? fd : -1;
}

static int open_memory_sealed(void)
{
	int fd = name_of_library();
	return fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) == 0 ? fd : -1;
}

static int open_memory_appending(void)
{
	int fd = name_of_library();
	return fcntl(fd, F_SETFL, O_APPEND) == 0 ? fd : -1;
}

static int open_memory_mapped(void) // cannot be sealed against writing
{
	int fd = name_of_library();
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : fd;
}

static int open_memory_other(void)
{
	return memfd_create("something-else", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

static int open_session_read_only(void)
{
	return reopen(make_session(TOTAL_BYTES, SOUND_SEALS).fd, O_RDONLY);
}

static int open_session_path_only(void)
{
	return reopen(make_session(TOTAL_BYTES, SOUND_SEALS).fd, O_PATH);
}

// For counters.

static int connect_elsewhere(void) // to a socket of another user's service
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	return connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? fd : -errno;
}

static int full_socket(void)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
		return -errno;
	while (send(ends[0], "x", 1, MSG_DONTWAIT) == 1)
		;
	return ends[0];
}
#endif
