// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RANDOM_BYTES 16
#define PAIRS_MAX 256

int nfp_memory_is_gone(int memory)
{
	uint8_t byte;
	return pread(memory, &byte, 1, 0) ==
	       0; // living memory answers with an error: nothing is mapped there
}

int nfp_memory_read(int memory, uint64_t address, void *bytes, size_t count)
{
	ssize_t found = pread(memory, bytes, count, (off_t)address);
	return found == (ssize_t)count ? 0 : found < 0 ? -errno : -ESTALE;
}

int nfp_memory_write(int memory, uint64_t address, const void *bytes, size_t count)
{
	ssize_t written = pwrite(memory, bytes, count, (off_t)address);
	return written == (ssize_t)count ? 0 : written < 0 ? -errno : -ESTALE;
}

static int open_of(pid_t tid, const char *name)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", tid, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

// Where the kernel has put the random bytes of the program that a thread runs now, 0 when that is not known.
static uint64_t random_address(pid_t tid)
{
	Elf64_auxv_t pairs[PAIRS_MAX];
	int file = open_of(tid, "auxv");
	ssize_t bytes = file < 0 ? 0 : read(file, pairs, sizeof(pairs));
	if (file >= 0)
		close(file);
	for (ssize_t i = 0; i < bytes / (ssize_t)sizeof(*pairs) && pairs[i].a_type != AT_NULL; i++)
		if (pairs[i].a_type == AT_RANDOM)
			return pairs[i].a_un.a_val;
	return 0;
}

int nfp_runs_in(pid_t tid, int memory)
{
	uint8_t here[RANDOM_BYTES], there[RANDOM_BYTES];
	uint64_t address = random_address(tid);
	int own = address ? open_of(tid, "mem") : -1;
	if (own < 0)
		return 0;
	int is_same = nfp_memory_read(own, address, here, sizeof(here)) == 0 &&
	              nfp_memory_read(memory, address, there, sizeof(there)) == 0 &&
	              memcmp(here, there, sizeof(here)) == 0;
	close(own);
	return is_same;
}
