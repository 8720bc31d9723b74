// SPDX-License-Identifier: Apache-2.0
// Preloaded into the program that NFPROBE_MAPPER_PROGRAM names: a thread on other CPUs than NFPROBE_MAPPER_CPU that maps
// and unmaps memory as long as it is told to, as an allocator may. Each time the program's other threads are interrupted:
// their CPUs have to forget the mapping (TLB shootdown). Reads ms, a line each, from the fifo NFPROBE_MAPPER/commands, and
// writes begin and end in ticks to the fifo NFPROBE_MAPPER/spans.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <x86intrin.h>

#define BYTES 4096

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static FILE *commands, *spans;

// For reading and writing, so that it neither waits for the other side nor ends with it.
static FILE *open_fifo(const char *name)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", getenv("NFPROBE_MAPPER"), name);
	return fopen(path, "r+");
}

static void map_for(uint64_t ms)
{
	for (uint64_t end_ns = now_ns() + ms * 1000000; now_ns() < end_ns;) {
		void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
		                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (memory != MAP_FAILED)
			munmap(memory, BYTES);
	}
}

static void *serve(void *unused)
{
	cpu_set_t cpus;
	sched_getaffinity(0, sizeof(cpus), &cpus);
	CPU_CLR(atoi(getenv("NFPROBE_MAPPER_CPU")), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	char line[32];
	while (commands && spans && fgets(line, sizeof(line), commands)) {
		uint64_t begin = __rdtsc();
		map_for(strtoull(line, NULL, 10));
		fprintf(spans, "%llu %llu\n", (unsigned long long)begin, (unsigned long long)__rdtsc());
		fflush(spans);
	}
	return unused;
}

__attribute__((constructor)) static void begin(void)
{
	const char *program = getenv("NFPROBE_MAPPER_PROGRAM");
	pthread_t thread;
	if (!program || strcmp(program, program_invocation_short_name))
		return;
	commands = open_fifo("commands"); // here: a program that becomes another user may not open them later
	spans = open_fifo("spans");
	pthread_create(&thread, NULL, serve, NULL);
}
