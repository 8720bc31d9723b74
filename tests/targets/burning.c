// SPDX-License-Identifier: Apache-2.0
// Turns of which every twentieth burns time in a function that no probe is on. `run N` makes N turns and answers what
// share of the thread's CPU time that function had, in thousandths, by the kernel's account of it.
#define _GNU_SOURCE
#include "commands.h"
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define BURN_EVERY 20
#define LIGHT_STEPS 20000
#define HEAVY_STEPS 1000000

static char answer[32];
static long turns;

static long cpu_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

static NOINLINE void begin_turn(void)
{
	turns++;
	__asm__ volatile("");
}

static NOINLINE void burn_light(void)
{
	for (long i = 0; i < LIGHT_STEPS; i++)
		__asm__ volatile("" : "+r"(i));
}

static NOINLINE void burn_heavy(void)
{
	for (long i = 0; i < HEAVY_STEPS; i++)
		__asm__ volatile("" : "+r"(i));
}

static NOINLINE long work(long turn)
{
	long spent_ns = 0;
	burn_light();
	if (turn % BURN_EVERY == BURN_EVERY / 2) {
		spent_ns = -cpu_ns();
		burn_heavy();
		spent_ns += cpu_ns();
	}
	return spent_ns;
}

static const char *run(long count)
{
	long heavy_ns = 0, start_ns = cpu_ns();
	for (long i = 0; i < count; i++) {
		begin_turn();
		heavy_ns += work(i);
	}
	begin_turn();
	snprintf(answer, sizeof(answer), "%ld", 1000 * heavy_ns / (cpu_ns() - start_ns));
	return answer;
}

int main(void)
{
	static const struct command commands[] = {{"run", run}, {NULL, NULL}};
	return obey(commands);
}
