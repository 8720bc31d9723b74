// SPDX-License-Identifier: Apache-2.0
// What a hostile target maps where it is asked to load the probe library: other files with the same symbols.
#ifndef NFPROBE_TEST_HOSTILE_LIBRARY_H
#define NFPROBE_TEST_HOSTILE_LIBRARY_H
#include "hostile.h"
#include <dlfcn.h>
#include <stdio.h>

#define LOW_PLACE ((void *)0x10000000) // below every library

static void *entry_of(void *library)
{
	return library ? dlsym(library, "nfp_helper_main") : NULL;
}

// Not by dlopen, which may be replaced.
static void *load_given(const char *path, int flags)
{
	return dlmopen(LM_ID_BASE, path, flags);
}

static void *load_file(int fd)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return load_given(path, RTLD_NOW | RTLD_NODELETE);
}

// The same content in a file of this process's own, which it can change whenever it likes.
static void *load_copy(const char *path, int flags)
{
	uint8_t content[4096];
	ssize_t bytes;
	int from = open(path, O_RDONLY | O_CLOEXEC), to = memfd_create("libnfprobe-copy", MFD_CLOEXEC);
	(void)flags;
	while ((bytes = read(from, content, sizeof(content))) > 0)
		if (write(to, content, (size_t)bytes) != bytes)
			_exit(10);
	close(from);
	return load_file(to);
}

static void *load_both(const char *path, int flags)
{
	return load_given(path, flags) ? load_copy(path, flags) : NULL;
}

// One byte of its code is not what it was; the process never comes there.
static void *load_patched(const char *path, int flags)
{
	void *library = load_given(path, flags);
	uint8_t *place = dlsym(library, "nfprobe_iterate_phdr");
	if (mprotect((void *)((uintptr_t)place & ~4095ul), 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
		_exit(11);
	*place = 0xcc;
	return library;
}

// A file that is called as the library is.

static void load_named(const char *path)
{
	if (!load_given(path, RTLD_NOW))
		_exit(12);
}

static void map_named(const char *path) // as programs do that look up symbols
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (mmap(LOW_PLACE, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) != LOW_PLACE)
		_exit(13);
	close(fd);
}
#endif
