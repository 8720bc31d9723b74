// SPDX-License-Identifier: Apache-2.0
// The target of the probe benchmark: 100 leaf functions of ten instructions, called in turn, the same with two
// hand-written records each (the floor), with eight arguments each (two on the stack), with a first instruction that
// saves a register, and through GOT slots.
// Reads commands from standard input: `bare`, `floor`, `many`, `push` and `slots` time one of them and answer with the
// median ticks per call, of so many rounds if a number follows; `chain` times 20 nested calls; `quit` ends.
// With -DSLOTS it is the library of the functions that are called through GOT slots, with -DWRAPPERS one to preload,
// whose functions of the same names write two records by hand around a call of the real ones.
#ifdef WRAPPERS
#define _GNU_SOURCE
#include <dlfcn.h>
#endif
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

#define BODY                                                                                                 \
	"lea 1(%0,%0), %0\n\txor $5, %0\n\tadd $7, %0\n\trol $3, %0\n\tsub $9, %0\n\t"                       \
	"xor $17, %0\n\tadd $3, %0\n\tror $5, %0\n\tadd $1, %0"
#define LEAF(n)                                                                                              \
	__attribute__((noinline, aligned(16))) uint64_t leaf##n(uint64_t x)                                  \
	{                                                                                                    \
		__asm__ volatile(BODY : "+r"(x));                                                            \
		return x;                                                                                    \
	}                                                                                                    \
	__attribute__((noinline, aligned(16))) uint64_t floor##n(uint64_t x)                                 \
	{                                                                                                    \
		record(n);                                                                                   \
		__asm__ volatile(BODY : "+r"(x));                                                            \
		record(n | 1u << 24);                                                                        \
		return x;                                                                                    \
	}                                                                                                    \
	__attribute__((noinline, aligned(16))) uint64_t many##n(uint64_t x, long b, long c, long d, long e,  \
	                                                        long f, uint64_t g, uint64_t h)              \
	{                                                                                                    \
		__asm__ volatile(BODY : "+r"(x) : "r"(b), "r"(c), "r"(d), "r"(e), "r"(f));                   \
		return x + g + h;                                                                            \
	}                                                                                                    \
	__attribute__((noinline, aligned(16))) uint64_t push##n(uint64_t x)                                  \
	{                                                                                                    \
		__asm__ volatile(BODY : "+r"(x) : : "rbx");                                                  \
		return x;                                                                                    \
	}                                                                                                    \
	extern uint64_t slot##n(uint64_t x);
#define TEN(make, t)                                                                                         \
	make(t##0) make(t##1) make(t##2) make(t##3) make(t##4) make(t##5) make(t##6) make(t##7) make(t##8)   \
	    make(t##9)
#define HUNDRED(make)                                                                                        \
	TEN(make, 1)                                                                                         \
	TEN(make, 2) TEN(make, 3) TEN(make, 4) TEN(make, 5) TEN(make, 6) TEN(make, 7) TEN(make, 8)           \
	    TEN(make, 9) TEN(make, 10)
#ifdef SLOTS // the shared library with the functions that are called through GOT slots
#define SLOT(n)                                                                                              \
	__attribute__((noinline, aligned(16))) uint64_t slot##n(uint64_t x)                                  \
	{                                                                                                    \
		__asm__ volatile(BODY : "+r"(x));                                                            \
		return x;                                                                                    \
	}
HUNDRED(SLOT)
#elif defined(WRAPPERS)
#define WRAPPER(n)                                                                                           \
	static uint64_t (*real##n)(uint64_t);                                                                \
	__attribute__((noinline, aligned(16))) uint64_t slot##n(uint64_t x)                                  \
	{                                                                                                    \
		record(n);                                                                                   \
		x = real##n(x);                                                                              \
		record(n | 1u << 24);                                                                        \
		return x;                                                                                    \
	}                                                                                                    \
	__attribute__((constructor)) static void find##n(void)                                               \
	{                                                                                                    \
		*(void **)&real##n = dlsym(RTLD_NEXT, "slot" #n);                                            \
	}
HUNDRED(WRAPPER)
#else
HUNDRED(LEAF)

#define CALL_LEAF(n) x = leaf##n(x);
#define CALL_FLOOR(n) x = floor##n(x);
#define CALL_MANY(n) x = many##n(x, 2, 3, 4, 5, 6, 7, 8);
#define CALL_SLOT(n) x = slot##n(x);
#define CALL_PUSH(n) x = push##n(x);

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

static double median(uint64_t *ticks, size_t rounds)
{
	qsort(ticks, rounds, sizeof(*ticks), compare);
	return (double)ticks[rounds / 2] / (TURNS * 100);
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

static uint64_t call_many(uint64_t x)
{
	for (int turn = 0; turn < TURNS; turn++) {
		HUNDRED(CALL_MANY)
	}
	return x;
}

static uint64_t call_slots(uint64_t x)
{
	for (int turn = 0; turn < TURNS; turn++) {
		HUNDRED(CALL_SLOT)
	}
	return x;
}

static uint64_t call_pushes(uint64_t x)
{
	for (int turn = 0; turn < TURNS; turn++) {
		HUNDRED(CALL_PUSH)
	}
	return x;
}

// Each level calls the next one and works a little.
#define CHAIN_END(n)                                                                                         \
	__attribute__((noinline, aligned(16))) uint64_t chain##n(uint64_t x)                                 \
	{                                                                                                    \
		return leaf10(x);                                                                            \
	}
#define CHAIN(n, next)                                                                                       \
	__attribute__((noinline, aligned(16))) uint64_t chain##n(uint64_t x)                                 \
	{                                                                                                    \
		x = chain##next(x);                                                                          \
		__asm__ volatile(BODY : "+r"(x));                                                            \
		return x;                                                                                    \
	}
CHAIN_END(20)
CHAIN(19, 20)
CHAIN(18, 19) CHAIN(17, 18) CHAIN(16, 17) CHAIN(15, 16) CHAIN(14, 15) CHAIN(13, 14) CHAIN(12, 13)
    CHAIN(11, 12) CHAIN(10, 11) CHAIN(9, 10) CHAIN(8, 9) CHAIN(7, 8) CHAIN(6, 7) CHAIN(5, 6) CHAIN(4, 5)
        CHAIN(3, 4) CHAIN(2, 3) CHAIN(1, 2)

            static uint64_t call_chains(uint64_t x)
{
	for (int turn = 0; turn < TURNS * 5; turn++)
		x = chain1(x);
	return x;
}

static const struct family {
	const char *name;
	uint64_t (*call)(uint64_t);
} families[] = {{"bare", call_leaves}, {"floor", call_floors}, {"many", call_many}, {"slots", call_slots},
                {"push", call_pushes}, {"chain", call_chains}, {NULL, NULL}};

int main(void)
{
	static uint64_t ticks[ROUNDS];
	char line[64];
	uint64_t x = 1;
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) && strncmp(line, "quit", 4) != 0) {
		line[strcspn(line, "\n")] = 0;
		char *number = strchr(line, ' ');
		size_t rounds = number ? strtoul(number, NULL, 10) : ROUNDS;
		if (number)
			*number = 0;
		const struct family *family = families;
		while (family->name && strcmp(family->name, line) != 0)
			family++;
		if (!family->name || rounds < 1 || rounds > ROUNDS)
			return 2;
		for (size_t round = 0; round < rounds; round++) {
			uint64_t start = __builtin_ia32_rdtsc();
			x = family->call(x);
			uint64_t end = __builtin_ia32_rdtsc();
			ticks[round] = end - start;
			while (__builtin_ia32_rdtsc() - end < PAUSE_TICKS)
				; // the monitor drains what the round wrote: a full ring is not what is measured
		}
		printf("%.3f\n", median(ticks, rounds));
		fflush(stdout);
	}
	return (int)(x & 1);
}
#endif
