// SPDX-License-Identifier: Apache-2.0
// Preloaded into a broker: notes when it has received and when it sends, by wrappers of read and write, as a person would
// who cannot change it. The record is a time stamp, the descriptor and how many bytes. It goes into an array in memory,
// or, with the environment variable BROKER_LOG, into this file by one write each.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define RECORDS (1u << 20)

struct record {
	struct timespec when;
	int64_t descriptor;
	int64_t bytes;
};

static struct record records[RECORDS];
static uint64_t noted;
static int file = -1;
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_write)(int, const void *, size_t);

__attribute__((constructor)) static void find_real(void)
{
	*(void **)&real_read = dlsym(RTLD_NEXT, "read");
	*(void **)&real_write = dlsym(RTLD_NEXT, "write");
	const char *name = getenv("BROKER_LOG");
	if (name)
		file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
}

static void note(int descriptor, ssize_t bytes)
{
	struct record *record = &records[noted++ & (RECORDS - 1)];
	clock_gettime(CLOCK_MONOTONIC, &record->when);
	record->descriptor = descriptor;
	record->bytes = bytes;
	if (file >= 0 && real_write(file, record, sizeof(*record)) != sizeof(*record))
		abort();
}

ssize_t read(int descriptor, void *buffer, size_t bytes)
{
	ssize_t got = real_read(descriptor, buffer, bytes);
	note(descriptor, got);
	return got;
}

ssize_t write(int descriptor, const void *buffer, size_t bytes)
{
	note(descriptor, (ssize_t)bytes);
	return real_write(descriptor, buffer, bytes);
}
