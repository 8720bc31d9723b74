// SPDX-License-Identifier: Apache-2.0
// Turns of two functions that take equally much of the thread's time: one touches fresh pages, the other only computes.
// `run N` makes N turns and answers how many page faults the kernel says that the thread had meanwhile, and what share
// of its time the first function had, in thousandths.
#define _GNU_SOURCE
#include "commands.h"
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define TURN_NS 40000000
#define AREA_BYTES (256 << 10)
#define PAGE_BYTES 4096

static char answer[64];

static long cpu_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

static long count_faults(void)
{
	struct rusage usage;
	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

static NOINLINE void touch_pages(void)
{
	for (long until_ns = cpu_ns() + TURN_NS; cpu_ns() < until_ns;) {
		char *area =
		    mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (area == MAP_FAILED)
			return;
		for (ptrdiff_t at = 0; at < AREA_BYTES; at += PAGE_BYTES)
			((volatile char *)area)[at] = 1;
		munmap(area, AREA_BYTES);
	}
}

static NOINLINE void compute(void)
{
	for (long until_ns = cpu_ns() + TURN_NS; cpu_ns() < until_ns;)
		for (long i = 0; i < 20000; i++)
			__asm__ volatile("" : "+r"(i));
}

static const char *run(long count)
{
	long touching_ns = 0, start_ns = cpu_ns(), faults = count_faults();
	for (long i = 0; i < count; i++) {
		touching_ns -= cpu_ns();
		touch_pages();
		touching_ns += cpu_ns();
		compute();
	}
	faults = count_faults() - faults;
	snprintf(answer, sizeof(answer), "%ld %ld", faults, 1000 * touching_ns / (cpu_ns() - start_ns));
	return answer;
}

int main(void)
{
	static const struct command commands[] = {{"run", run}, {NULL, NULL}};
	return obey(commands);
}
