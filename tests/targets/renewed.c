// SPDX-License-Identifier: Apache-2.0
// A program that starts another one, which may be itself, when one byte comes through the pipe on descriptor 9: from its
// main thread or from another one. Both programs call the functions below all the time and check every result; both
// say whether all code in their memory is that of the files, and how many threads they have.
//
//   renewed NEXT main|thread    renewed          (the new program)
//
// With -DTRIGGER=1 this is the library whose constructor starts the thread: it is there before the program's first
// instruction. With -DTRIGGER=0 the program has none of its own.
#define _GNU_SOURCE
#include "commands.h"
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, used))
enum { PIPE = 9, WORKERS = 2, PIECE = 4096 };

#ifndef TRIGGER
#define TRIGGER 2 // all in one
#endif

static __attribute__((unused)) const char *executes;

static void start(void *(*function)(void *))
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, function, NULL) != 0)
		exit(3);
}

#if TRIGGER
static const char *next;

static __attribute__((unused)) void wait_and_execute(void)
{
	char byte;
	while (read(PIPE, &byte, 1) != 1)
		;
	execl(next, next, (char *)NULL);
	_exit(7);
}

static void *wait_in_thread(void *unused)
{
	wait_and_execute();
	return unused;
}

__attribute__((constructor)) static void begin(int count, char **words)
{
	if (count != 3)
		return;
	next = words[1];
	executes = words[2];
	fcntl(PIPE, F_SETFD, FD_CLOEXEC);
	if (strcmp(executes, "thread") == 0)
		start(wait_in_thread);
}
#endif

#if TRIGGER != 1
static long calls, wrong;

// Functions whose first instructions need each way of patching.
NOINLINE long count_up(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

NOINLINE long call_twice(long x)
{
	return count_up(x) + count_up(x + 1);
}

NOINLINE long begin_long(long x)
{
	__asm__ volatile("nopl 0x12345678(%%rax,%%rax,1)\n add $5, %0" : "+r"(x) : : "cc");
	return x;
}

NOINLINE long in_loop(long turns)
{
	long sum = 0;
	for (long i = 0; i < turns; i++)
		sum += count_up(i);
	return sum;
}

NOINLINE long with_frame(long x)
{
	volatile long kept[8] = {x, 1, 2, 3, 4, 5, 6, 7};
	return kept[0] + begin_long(kept[7]);
}

static void *work(void *unused)
{
	(void)unused;
	for (;;) {
		long sum = call_twice(3) + begin_long(1) + in_loop(4) + with_frame(2);
		__atomic_fetch_add(&wrong, sum != 4 + 5 + 6 + 10 + 14, __ATOMIC_RELAXED);
		__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
		usleep(100);
	}
	return NULL;
}

// ---- what the new program says -----------------------------------------------------------------------------

// Whether executable memory, whose line of /proc/self/maps this is, holds what its file does.
static int is_as_file(const char *line, const char *path)
{
	unsigned long start, end, offset;
	static char there[PIECE];
	if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) != 3)
		return 0;
	int file = open(path, O_RDONLY);
	for (unsigned long at = start; file >= 0 && at < end; at += PIECE) {
		ssize_t bytes = pread(file, there, PIECE, (off_t)(offset + at - start));
		if (bytes < 0 || memcmp(there, (void *)at, (size_t)bytes) != 0)
			file = -1;
	}
	if (file >= 0)
		close(file);
	return file >= 0;
}

static const char *check_code(long unused)
{
	static char answer[512], line[512];
	int compared = 0;
	while (!__atomic_load_n(&calls, __ATOMIC_RELAXED))
		usleep(1000);
	FILE *maps = fopen("/proc/self/maps", "r");
	(void)unused;
	while (maps && fgets(line, sizeof(line), maps)) {
		char *path = strchr(line, '/');
		line[strcspn(line, "\n")] = 0;
		if (strstr(line, "nfprobe"))
			return snprintf(answer, sizeof(answer), "foreign: %.400s", line), answer;
		if (!path || !strstr(line, " r-xp "))
			continue;
		if (!is_as_file(line, path))
			return snprintf(answer, sizeof(answer), "changed: %.400s", line), answer;
		compared++;
	}
	fclose(maps);
	struct stat tasks;
	stat("/proc/self/task", &tasks);
	if (wrong || !calls || compared < 2 || tasks.st_nlink != 2 + 1 + WORKERS)
		return snprintf(answer, sizeof(answer), "wrong %ld of %ld, %d files, %d threads", wrong,
		                calls, compared, (int)tasks.st_nlink - 2),
		       answer;
	return geteuid() == getuid() ? "whole" : "whole, with rights of its file";
}

int main(void)
{
	static const struct command commands[] = {{"check", check_code}, {NULL, NULL}};
	for (int i = 0; i < WORKERS; i++)
		start(work);
#if TRIGGER
	if (executes && strcmp(executes, "main") == 0) {
		puts("ready");
		fflush(stdout);
		wait_and_execute();
	}
#endif
	return obey(commands);
}
#endif
