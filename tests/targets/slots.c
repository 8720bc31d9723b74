// SPDX-License-Identifier: Apache-2.0
// Calls functions of other modules and counts its calls, and one of them for the first time when it is told to;
// one is also called through a pointer in data. Linked in different ways: PLT or not, bound at start or at the
// first call.
#include "commands.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

unsigned long crc32(unsigned long, const unsigned char *, unsigned);
unsigned long adler32(unsigned long, const unsigned char *, unsigned);
unsigned long zlibCompileFlags(void);
void count_down(long turns);

static long calls;

static const char *run_crc(long count)
{
	for (long i = 0; i < count; i++) {
		if (crc32(0, (const unsigned char *)"123456789", 9) != 0xcbf43926)
			return "wrong";
		if (crc32(0, (const unsigned char *)"a", 1) != 0xe8b7be43)
			return "wrong";
		calls += 2;
	}
	return "right";
}

static const char *run_adler(long count)
{
	for (long i = 0; i < count; i++)
		if (adler32(1, (const unsigned char *)"Wikipedia", 9) != 0x11e60398)
			return "wrong";
	return "right";
}

static int compare(const void *left, const void *right)
{
	return *(const int *)left - *(const int *)right;
}

static const char *run_libc(long count)
{
	for (long i = 0; i < count; i++) {
		int numbers[5] = {5, 3, 1, 4, 2};
		qsort(numbers, 5, sizeof(int), compare);
		if (numbers[0] != 1 || numbers[4] != 5 || strtoul("7f", NULL, 16) != 127)
			return "wrong";
	}
	return "right";
}

// strlen is an ifunc: the C library chooses among several.
static const char *run_length(long count)
{
	static volatile char text[] = "of a packet";
	for (long i = 0; i < count; i++)
		if (strlen((const char *)text) != sizeof(text) - 1)
			return "wrong";
	return "right";
}

static const char *run_loop(long count)
{
	for (long i = 0; i < count; i++)
		count_down(i % 7 + 1);
	return "right";
}

static unsigned long (*volatile stored)(void) = zlibCompileFlags;

static const char *run_direct(long count)
{
	unsigned long sum = 0;
	for (long i = 0; i < count; i++)
		sum += zlibCompileFlags();
	return sum ? "right" : "wrong";
}

static const char *run_stored(long count)
{
	unsigned long sum = 0;
	for (long i = 0; i < count; i++)
		sum += stored();
	return sum ? "right" : "wrong";
}

static const char *run_calls(long count)
{
	static char answer[32];
	(void)count;
	snprintf(answer, sizeof(answer), "%ld", calls);
	calls = 0;
	return answer;
}

int main(void)
{
	static const struct command commands[] = {
	    {"crc", run_crc},       {"adler", run_adler},   {"libc", run_libc},
	    {"loop", run_loop},     {"calls", run_calls},   {"direct", run_direct},
	    {"stored", run_stored}, {"length", run_length}, {NULL, NULL}};
	return obey(commands);
}
