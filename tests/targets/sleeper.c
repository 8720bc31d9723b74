// SPDX-License-Identifier: Apache-2.0
// Does one thing that keeps its main thread from running, again and again, and says when: a line for each, with begin
// and end by CLOCK_MONOTONIC_RAW in ns, and how many major page faults the kernel counted. sleeper fault FILE: reads a
// page of a mapped file that was evicted. sleeper fsync FILE: writes and syncs. sleeper lock: takes a mutex that a
// thread called `slowlock` holds for 3 ms. sleeper pipe: reads from a pipe into which a thread called `writer` writes
// after 3 ms. sleeper fresh: touches 64 fresh pages.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int is_held;
static int file, ends[2];
static volatile uint8_t *pages, sink;

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long count_major_faults(void)
{
	struct rusage usage;
	return getrusage(RUSAGE_THREAD, &usage) ? -1 : usage.ru_majflt;
}

static void rest_ms(int ms)
{
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static void *hold(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		is_held = 1;
		rest_ms(3);
		is_held = 0;
		pthread_mutex_unlock(&mutex);
		rest_ms(1);
	}
	return unused;
}

static void *write_late(void *unused)
{
	while (write(ends[1], "x", 1) == 1)
		rest_ms(8);
	return unused;
}

static void start(const char *name, void *(*run)(void *))
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, run, NULL) || pthread_setname_np(thread, name))
		exit(1);
}

static void evict(void)
{
	madvise((void *)pages, PAGES * PAGE, MADV_DONTNEED);
	posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
}

static void do_once(const char *what, int turn)
{
	char byte;
	if (!strcmp(what, "fault"))
		sink = pages[turn % PAGES * PAGE];
	else if (!strcmp(what, "fsync") && (pwrite(file, "x", 1, turn % PAGES * PAGE) != 1 || fsync(file)))
		exit(1);
	else if (!strcmp(what, "pipe") && read(ends[0], &byte, 1) != 1)
		exit(1);
	else if (!strcmp(what, "fresh"))
		for (int i = 0; i < PAGES; i++)
			pages[i * PAGE] = 1;
	else if (!strcmp(what, "lock")) {
		pthread_mutex_lock(&mutex);
		pthread_mutex_unlock(&mutex);
	}
}

int main(int count, char **words)
{
	const char *what = words[1];
	if (count > 2 && (file = open(words[2], O_RDWR)) < 0)
		return 1;
	if (pipe(ends))
		return 1;
	pages = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
	             count > 2 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, count > 2 ? file : -1, 0);
	if (pages == MAP_FAILED)
		return 1;
	madvise((void *)pages, PAGES * PAGE, count > 2 ? MADV_RANDOM : MADV_NOHUGEPAGE);
	if (!strcmp(what, "lock"))
		start("slowlock", hold);
	if (!strcmp(what, "pipe"))
		start("writer", write_late);
	for (int turn = 0;; turn++) {
		rest_ms(5);
		if (!strcmp(what, "fault"))
			evict();
		if (!strcmp(what, "fresh"))
			madvise((void *)pages, PAGES * PAGE, MADV_DONTNEED);
		while (!strcmp(what, "lock") && !is_held)
			;
		long before = count_major_faults();
		int64_t begin = now_ns();
		do_once(what, turn);
		int64_t end = now_ns();
		printf("%lld %lld %ld\n", (long long)begin, (long long)end, count_major_faults() - before);
		fflush(stdout);
	}
}
