// SPDX-License-Identifier: Apache-2.0
// See arena.h. Runs on the helper thread.
#define _GNU_SOURCE
#include "arena.h"
#include "library.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

int nfp_arena_map(uint64_t address, uint64_t offset, uint64_t bytes)
{
	if (offset < NFP_ARENA_OFFSET || bytes > NFP_ARENA_BYTES || offset + bytes > NFP_RING_OFFSET)
		return -EINVAL;
	void *mapped = mmap((void *)address, bytes, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE,
	                    nfp_library.session_fd, (off_t)offset);
	if (mapped == MAP_FAILED)
		return -errno;
	if (mapped == (void *)address)
		return 0;
	munmap(mapped, bytes); // a kernel before 4.17 takes the address for a hint
	return -EEXIST;
}

// An arena that is a file.
int nfp_arena_map_file(const char *path, uint64_t address, uint64_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	void *mapped =
	    mmap((void *)address, bytes, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
	int error = mapped == MAP_FAILED ? -errno : mapped == (void *)address ? 0 : -EEXIST;
	if (error == -EEXIST && mapped != MAP_FAILED)
		munmap(mapped, bytes);
	close(fd);
	return error;
}

// The unwinder of gcc finds the rows by __register_frame. It is loaded when the target has not done so:
// pthread_cancel, backtrace() and C++ would load it later and then not know our trampolines.
int nfp_frames_register(void *rows)
{
	void *unwinder = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_NODELETE);
	void (*register_frame)(void *) = NULL;
	if (unwinder)
		*(void **)&register_frame = dlsym(unwinder, "__register_frame");
	if (!register_frame)
		return -ENOENT;
	register_frame(rows);
	return 0;
}
