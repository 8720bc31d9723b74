// SPDX-License-Identifier: Apache-2.0
// Threads that stand there from the start and new ones, all calling one small function. Needs nothing but a C
// library, so that it runs from bare root directories. -DSTORAGE=BYTES and -DALIGNED=BYTES give each thread
// storage of its own, whose content it checks.
#define _GNU_SOURCE
#include "commands.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define STANDING 3
#ifndef STORAGE
#define STORAGE 13
#endif
#ifndef ALIGNED
#define ALIGNED 1
#endif

static _Thread_local _Alignas(ALIGNED) unsigned char storage[STORAGE] = {7};
static sem_t go[STANDING], done[STANDING];
static long wanted;
static int is_damaged, is_storming;

NOINLINE long step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static void check_storage(unsigned char mark)
{
	for (int i = 0; i < STORAGE; i++)
		if (storage[i] != (i == 0 ? 7 : mark))
			__atomic_store_n(&is_damaged, 1, __ATOMIC_RELAXED);
}

static void use(long count)
{
	check_storage(storage[STORAGE - 1]);
	memset(storage + 1, (int)(count & 255), STORAGE - 1);
	long x = 0;
	for (long i = 0; i < count; i++)
		x = step(x);
	check_storage((unsigned char)count);
	if (x != count)
		__atomic_store_n(&is_damaged, 1, __ATOMIC_RELAXED);
}

static void *stand(void *argument)
{
	intptr_t which = (intptr_t)argument;
	for (;;) {
		while (sem_wait(&go[which]) != 0)
			;
		use(wanted);
		sem_post(&done[which]);
	}
	return NULL;
}

static void *fresh(void *argument)
{
	use((long)(intptr_t)argument);
	return NULL;
}

// The main thread, three standing ones and a new one: 5 x count calls.
static const char *run_calls(long count)
{
	pthread_t thread;
	wanted = count;
	for (int i = 0; i < STANDING; i++)
		sem_post(&go[i]);
	if (pthread_create(&thread, NULL, fresh, (void *)(intptr_t)count) != 0)
		return "no thread";
	use(count);
	pthread_join(thread, NULL);
	for (int i = 0; i < STANDING; i++)
		while (sem_wait(&done[i]) != 0)
			;
	return is_damaged ? "damaged" : "right";
}

// Makes short threads, three at a time, until it is told to stop.
static void *make_threads(void *argument)
{
	pthread_t threads[3];
	(void)argument;
	while (__atomic_load_n(&is_storming, __ATOMIC_RELAXED)) {
		for (int i = 0; i < 3; i++)
			pthread_create(&threads[i], NULL, fresh, (void *)(intptr_t)20);
		for (int i = 0; i < 3; i++)
			pthread_join(threads[i], NULL);
	}
	return NULL;
}

static const char *run_storm(long count) // 1 begins, 0 ends
{
	static pthread_t storm;
	is_storming = (int)count;
	if (count)
		pthread_create(&storm, NULL, make_threads, NULL);
	else
		pthread_join(storm, NULL);
	return is_damaged ? "damaged" : "right";
}

// Loads the library that the environment names.
static const char *run_load(long count)
{
	(void)count;
	return dlopen(getenv("LOADED"), RTLD_NOW) ? "loaded" : dlerror();
}

static const struct command commands[] = {
    {"calls", run_calls}, {"load", run_load}, {"storm", run_storm}, {NULL, NULL}};

static int filter(const char *path)
{
	static uint64_t instructions[4096]; // struct sock_filter; musl's compiler finds no <linux/filter.h>
	struct {
		unsigned short count;
		uint64_t *instructions;
	} program = {0, instructions};
	int file = open(path, O_RDONLY);
	program.count = (unsigned short)(read(file, instructions, sizeof(instructions)) / 8);
	close(file);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return prctl(PR_SET_SECCOMP, 2, &program, 0, 0); // SECCOMP_MODE_FILTER
}

int main(int count, char **arguments)
{
	pthread_t thread;
	if (count > 1 && filter(arguments[1]) != 0)
		return 3;
	for (intptr_t i = 0; i < STANDING; i++) {
		sem_init(&go[i], 0, 0);
		sem_init(&done[i], 0, 0);
		pthread_create(&thread, NULL, stand, (void *)i);
	}
	if (count > 2 && filter(arguments[2]) != 0)
		return 3;
	return obey(commands);
}
