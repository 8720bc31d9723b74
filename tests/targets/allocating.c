// SPDX-License-Identifier: Apache-2.0
// One thread lives in malloc and free, of blocks that are mapped and unmapped each time: it is in the kernel often, and
// never where a library may be loaded. The other one sleeps for a millisecond at a time; with "rarely" it computes for
// 200 ms before each sleep.
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long pause_ms;

static void compute(void)
{
	struct timespec now, start;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < pause_ms);
}

static void *sleep_on(void *nothing)
{
	for (;;) {
		compute();
		usleep(1000);
	}
	return nothing;
}

int main(int count, char **words)
{
	pthread_t sleeper;
	pause_ms = count > 1 && strcmp(words[1], "rarely") == 0 ? 200 : 0;
	mallopt(M_MMAP_THRESHOLD, 64 << 10);
	if (pthread_create(&sleeper, NULL, sleep_on, NULL) != 0)
		return 1;
	for (unsigned long turns = 0;; turns++) {
		volatile char *block = malloc((turns % 4 ? 128 : 64 + turns % 4096 * 64));
		block[0] = 1;
		free((void *)block);
	}
}
