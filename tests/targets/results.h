// SPDX-License-Identifier: Apache-2.0
// What benchmarks' targets share whose only thread never makes a system call: where the benchmark reads what they have
// measured, and a thread that nfprobe is loaded through.
#ifndef RESULTS_H
#define RESULTS_H
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static void *sleep_on(void *nothing)
{
	for (;;)
		usleep(5000);
	return nothing;
}

// Maps the file for all that is written into it. Returns NULL when something failed.
static void *open_results(const char *path, size_t bytes)
{
	pthread_t sleeper;
	int file = open(path, O_RDWR);
	void *results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	return results != MAP_FAILED && pthread_create(&sleeper, NULL, sleep_on, NULL) == 0 ? results : NULL;
}
#endif
