// SPDX-License-Identifier: Apache-2.0
// A function that sleeps for as long as it is told, and one that does nothing: calls whose least duration a test knows.
#define _GNU_SOURCE
#include "commands.h"
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone, used))

NOINLINE long nap(long us)
{
	struct timespec time = {0, us * 1000};
	if (us)
		nanosleep(&time, NULL);
	return us;
}

// Every tenth call sleeps for 2 ms.
static const char *run_naps(long count)
{
	static char answer[32];
	long sum = 0;
	for (long i = 0; i < count; i++)
		sum += nap(i % 10 == 9 ? 2000 : 0);
	snprintf(answer, sizeof(answer), "%ld", sum);
	return answer;
}

int main(void)
{
	static const struct command commands[] = {{"naps", run_naps}, {NULL, NULL}};
	return obey(commands);
}
