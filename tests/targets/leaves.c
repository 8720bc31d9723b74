// SPDX-License-Identifier: Apache-2.0
// The target of the probe benchmark: 100 leaf functions of ten instructions, called in turn, and the same
// with two hand-written records each, the floor. Reads commands from standard input: `bare` and `floor` time
// one of them and answer with the median ticks per call; `quit` ends.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING_BYTES (256 << 10)
#define ROUNDS 201
#define TURNS 20
#define PAUSE_TICKS 1000000

struct record {
	uint64_t tsc;
	uint32_t tag;
	uint32_t rsp;
};

static struct record ring[RING_BYTES / sizeof(struct record)];
static uint64_t position;

static inline __attribute__((always_inline)) void record(uint32_t tag)
{
	struct record *slot = &ring[position++ & (RING_BYTES / sizeof(struct record) - 1)];
	slot->tsc = __builtin_ia32_rdtsc();
	slot->tag = tag;
	slot->rsp = (uint32_t)(uintptr_t)__builtin_frame_address(0);
}

#define BODY                                                                                                         \
	"lea 1(%0,%0), %0\n\txor $5, %0\n\tadd $7, %0\n\trol $3, %0\n\tsub $9, %0\n\t"                            \
	"xor $17, %0\n\tadd $3, %0\n\tror $5, %0\n\tadd $1, %0"
#define LEAF(n)                                                                                                      \
	__attribute__((noinline, aligned(16))) uint64_t leaf##n(uint64_t x)                                        \
	{                                                                                                            \
		__asm__ volatile(BODY : "+r"(x));                                                                    \
		return x;                                                                                            \
	}                                                                                                            \
	__attribute__((noinline, aligned(16))) uint64_t floor##n(uint64_t x)                                       \
	{                                                                                                            \
		record(n);                                                                                           \
		__asm__ volatile(BODY : "+r"(x));                                                                    \
		record(n | 1u << 24);                                                                                \
		return x;                                                                                            \
	}
#define TEN(make, t)                                                                                                 \
	make(t##0) make(t##1) make(t##2) make(t##3) make(t##4) make(t##5) make(t##6) make(t##7) make(t##8) make(t##9)
#define HUNDRED(make)                                                                                                \
	TEN(make, 1) TEN(make, 2) TEN(make, 3) TEN(make, 4) TEN(make, 5) TEN(make, 6) TEN(make, 7) TEN(make, 8)      \
	TEN(make, 9) TEN(make, 10)
HUNDRED(LEAF)

#define CALL_LEAF(n) x = leaf##n(x);
#define CALL_FLOOR(n) x = floor##n(x);

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

static double median(uint64_t *ticks)
{
	qsort(ticks, ROUNDS, sizeof(*ticks), compare);
	return (double)ticks[ROUNDS / 2] / (TURNS * 100);
}

static uint64_t call_leaves(uint64_t x)
{
	for (int turn = 0; turn < TURNS; turn++) {
		HUNDRED(CALL_LEAF)
	}
	return x;
}

static uint64_t call_floors(uint64_t x)
{
	for (int turn = 0; turn < TURNS; turn++) {
		HUNDRED(CALL_FLOOR)
	}
	return x;
}

int main(void)
{
	static uint64_t ticks[ROUNDS];
	char line[64];
	uint64_t x = 1;
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) && strncmp(line, "quit", 4) != 0) {
		int floor = strncmp(line, "floor", 5) == 0;
		for (int round = 0; round < ROUNDS; round++) {
			uint64_t start = __builtin_ia32_rdtsc();
			x = floor ? call_floors(x) : call_leaves(x);
			uint64_t end = __builtin_ia32_rdtsc();
			ticks[round] = end - start;
			while (__builtin_ia32_rdtsc() - end < PAUSE_TICKS)
				; // the monitor drains what the round wrote: a full ring is not what is measured
		}
		printf("%.3f\n", median(ticks));
		fflush(stdout);
	}
	return (int)(x & 1);
}
