// SPDX-License-Identifier: Apache-2.0
// Threads that live for long and call a function now and then, and beside them threads that come, call it and go, so
// many a second. Each call is handed its thread's own number, never used again, and how many calls of this thread there
// were before: whoever reads these sees by himself which records are of one thread, in which order, and which are
// missing.
//   thread_storm LIVING TURNS_PER_SECOND CALLS_IN_A_TURN BRIEF_PER_SECOND CALLS_IN_A_BRIEF_LIFE
// `made` answers how many threads there were until now, `calm` the same when no more brief ones come and the last has gone,
// `stop` ends all threads.
#define _GNU_SOURCE
#include "commands.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define NUMBER_SHIFT 32
#define STACK_BYTES (64 << 10)
#define LIVING_MAX 4096
#define SECOND_NS 1000000000l

static long living, turns_per_second, living_calls, brief_per_second, brief_calls;
static uint64_t threads_made;
static int is_calm, is_over, brief_now;
static pthread_attr_t small;

NOINLINE uint64_t note(uint64_t value)
{
	__asm__ volatile("" : "+r"(value));
	return value;
}

static uint64_t call(uint64_t number, uint64_t sequence, long calls)
{
	for (long i = 0; i < calls; i++)
		note(number << NUMBER_SHIFT | sequence++);
	return sequence;
}

static void *live(void *unused)
{
	struct timespec pause = {0, SECOND_NS / turns_per_second - 1};
	uint64_t number = __atomic_add_fetch(&threads_made, 1, __ATOMIC_RELAXED), made = 0;
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		made = call(number, made, living_calls);
		nanosleep(&pause, NULL);
	}
	return unused;
}

static void *come_and_go(void *unused)
{
	uint64_t number = __atomic_add_fetch(&threads_made, 1, __ATOMIC_RELAXED);
	call(number, 0, brief_calls);
	__atomic_fetch_sub(&brief_now, 1, __ATOMIC_RELEASE);
	return unused;
}

// One that falls behind makes no more than it was asked for, later.
static void *make_brief(void *unused)
{
	struct timespec next;
	pthread_attr_t detached = small;
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	clock_gettime(CLOCK_MONOTONIC, &next);
	while (!__atomic_load_n(&is_calm, __ATOMIC_RELAXED)) {
		pthread_t thread;
		__atomic_fetch_add(&brief_now, 1, __ATOMIC_RELAXED);
		if (pthread_create(&thread, &detached, come_and_go, NULL) != 0)
			__atomic_fetch_sub(&brief_now, 1, __ATOMIC_RELAXED);
		next.tv_nsec += SECOND_NS / brief_per_second;
		next.tv_sec += next.tv_nsec / SECOND_NS;
		next.tv_nsec %= SECOND_NS;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
	}
	return unused;
}

static pthread_t threads[LIVING_MAX], maker;

static const char *made(long unused)
{
	static char answer[32];
	(void)unused;
	snprintf(answer, sizeof(answer), "%lu", (unsigned long)__atomic_load_n(&threads_made, __ATOMIC_RELAXED));
	return answer;
}

static const char *calm(long unused)
{
	struct timespec pause = {0, 1000000};
	if (brief_per_second && !is_calm) {
		__atomic_store_n(&is_calm, 1, __ATOMIC_RELAXED);
		pthread_join(maker, NULL);
	}
	while (__atomic_load_n(&brief_now, __ATOMIC_ACQUIRE))
		nanosleep(&pause, NULL);
	return made(unused);
}

static const char *stop(long unused)
{
	calm(unused);
	__atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
	for (long i = 0; i < living; i++)
		pthread_join(threads[i], NULL);
	return made(unused);
}

int main(int argc, char **argv)
{
	static const struct command commands[] = {{"made", made}, {"calm", calm}, {"stop", stop}, {NULL, NULL}};
	if (argc != 6 || (living = atol(argv[1])) > LIVING_MAX)
		return 2;
	turns_per_second = atol(argv[2]);
	living_calls = atol(argv[3]);
	brief_per_second = atol(argv[4]);
	brief_calls = atol(argv[5]);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK_BYTES);
	for (long i = 0; i < living; i++)
		if (pthread_create(&threads[i], &small, live, NULL) != 0)
			return 3;
	if (brief_per_second && pthread_create(&maker, &small, make_brief, NULL) != 0)
		return 3;
	return obey(commands);
}
