// SPDX-License-Identifier: Apache-2.0
// Functions whose arguments a test knows: turn i of a command calls them with numbers made of i. Each command
// answers with the sum of the results, so that a probe which changes an argument is seen.
#define _GNU_SOURCE
#include "commands.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone, used))

struct item {
	uint64_t name;
	uint64_t weight;
	int32_t change;
	uint8_t small[4];
};

NOINLINE uint64_t weigh(const struct item *item)
{
	__asm__ volatile("" : "+r"(item));
	return item ? item->weight + item->small[2] : 7;
}

NOINLINE uint64_t sum_six(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	__asm__ volatile("" : "+r"(a));
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f;
}

NOINLINE uint64_t sum_seven(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g)
{
	__asm__ volatile("" : "+r"(a));
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g;
}

static char answer[32];

static const char *say(uint64_t sum)
{
	snprintf(answer, sizeof(answer), "%lu", (unsigned long)sum);
	return answer;
}

static const char *run_items(long count)
{
	uint64_t sum = 0;
	for (long i = 0; i < count; i++) {
		struct item item = {(uint64_t)i, (uint64_t)i * 0x9e3779b97f4a7c15u, (int32_t)-i, {1, 2, (uint8_t)i, 4}};
		sum += weigh(&item);
	}
	return say(sum);
}

static const char *run_nothing(long count)
{
	uint64_t sum = 0;
	for (long i = 0; i < count; i++)
		sum += weigh(NULL);
	return say(sum);
}

static const char *run_numbers(long count)
{
	uint64_t sum = 0;
	for (long n = 0; n < count; n++) {
		uint64_t i = (uint64_t)n;
		sum += sum_six(i, i + 1, i + 2, i + 3, i * 4, 100 - i);
		sum += sum_seven(i, 2, 3, 4, 5, 6, i * i);
	}
	return say(sum);
}

static const char *run_library(long count)
{
	uint64_t sum = 0;
	for (long i = 0; i < count; i++)
		sum += (uint64_t)labs(i * 1000003 - 5000000);
	return say(sum);
}

int main(void)
{
	static const struct command commands[] = {{"items", run_items},
	                                          {"nothing", run_nothing},
	                                          {"numbers", run_numbers},
	                                          {"library", run_library},
	                                          {NULL, NULL}};
	return obey(commands);
}
