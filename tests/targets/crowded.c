// SPDX-License-Identifier: Apache-2.0
// A process whose C library has no free memory within reach but four small holes. Answers with sorted numbers'
// checksum.
#define _GNU_SOURCE
#include "commands.h"
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define REACH (2ul << 30)
#define HOLE (3ul << 19) // 1.5 MiB
#define HOLES 4

struct range {
	uintptr_t low, high;
};

// Fills what is free in [low, high), but for holes at its end.
static void fill(uintptr_t low, uintptr_t high, int *holes)
{
	while (*holes > 0 && high - low > 2 * HOLE) {
		high -= HOLE + (64 << 10);
		mmap((void *)high, 64 << 10, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		--*holes;
	}
	mmap((void *)low, high - low, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

static void crowd(void)
{
	static struct range free_ranges[1024];
	uintptr_t middle = (uintptr_t)qsort & ~0xffful, before = middle - 2 * REACH, low, high;
	int count = 0, holes = HOLES;
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	while (fgets(line, sizeof(line), maps) && sscanf(line, "%lx-%lx", &low, &high) == 2 && count < 1024) {
		uintptr_t start = before > middle - REACH ? before : middle - REACH;
		uintptr_t end = low < middle + REACH ? low : middle + REACH;
		if (start < end)
			free_ranges[count++] = (struct range){start, end};
		before = high > before ? high : before;
	}
	fclose(maps);
	for (int i = 0; i < count; i++)
		fill(free_ranges[i].low, free_ranges[i].high, &holes);
}

static int compare(const void *a, const void *b)
{
	return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

static const char *run_sort(long count)
{
	static int numbers[1000];
	static char answer[32];
	unsigned long sum = 0;
	srand(7);
	for (long i = 0; i < count; i++) {
		for (int k = 0; k < 1000; k++)
			numbers[k] = rand();
		qsort(numbers, 1000, sizeof(int), compare);
		for (int k = 0; k < 1000; k++)
			sum = sum * 31 + (unsigned long)numbers[k];
	}
	snprintf(answer, sizeof(answer), "%lx", sum);
	return answer;
}

int main(void)
{
	static const struct command commands[] = {{"sort", run_sort}, {NULL, NULL}};
	crowd();
	return obey(commands);
}
