// SPDX-License-Identifier: Apache-2.0
// One thread hammers malloc beside a thread that sleeps. Prints a counter each second, so that a test sees a
// hang of either.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *sleeper(void *argument)
{
	(void)argument;
	for (;;)
		nanosleep(&(struct timespec){0, 50000000}, NULL);
	return NULL;
}

int main(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, sleeper, NULL);
	time_t shown = 0;
	for (unsigned long turns = 0;; turns++) {
		volatile char *block = malloc(2048 + turns % 30000);
		block[0] = 1;
		free((void *)block);
		if (turns % 100000 == 0 && time(NULL) != shown) {
			shown = time(NULL);
			printf("%lu\n", turns);
			fflush(stdout);
		}
	}
}
