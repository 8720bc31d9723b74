// SPDX-License-Identifier: Apache-2.0
// Functions that align their stack beyond what the ABI does, and use alloca, so that the compiler keeps where their
// frame begins in a register of its own (DRAP). Each command checks its results and answers "right".
#include "commands.h"
#include <alloca.h>
#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <stdexcept>
#include <string>

#define NOINLINE __attribute__((noinline, noclone, used))
#define EXPECT(condition)                                                                                    \
	if (!(condition))                                                                                    \
	return "wrong: " #condition

enum { ALIGNMENT = 64, WORDS = 8 };

struct alignas(ALIGNMENT) block {
	long words[WORDS];
};

extern "C" {
// Fills what it gets, and checks that it is aligned: else the sum is wrong.
NOINLINE void fill(block *where, char *room, long bytes, long seed)
{
	for (long i = 0; i < WORDS; i++)
		where->words[i] = seed + i;
	std::memset(room, (int)(seed & 63), (size_t)bytes);
	if (reinterpret_cast<uintptr_t>(where) % ALIGNMENT)
		where->words[0] = -1;
}

static inline long sum_of(const block &where, const char *room, long bytes)
{
	long sum = 0;
	for (long i = 0; i < WORDS; i++)
		sum += where.words[i];
	for (long i = 0; i < bytes; i++)
		sum += room[i];
	return sum;
}

static long sum_expected(long bytes, long seed)
{
	return WORDS * seed + WORDS * (WORDS - 1) / 2 + bytes * (seed & 63);
}

#define LOCALS(bytes, seed)                                                                                  \
	block local;                                                                                         \
	char *room = static_cast<char *>(alloca((size_t)(bytes)));                                           \
	fill(&local, room, bytes, seed)

NOINLINE long aligned(long bytes, long seed)
{
	LOCALS(bytes, seed);
	return sum_of(local, room, bytes);
}

// So many values that every register is taken, that of the frame too.
NOINLINE long crowded(const long *v, long bytes, long seed)
{
	LOCALS(bytes, seed);
	long a = v[0], b = v[1], c = v[2], d = v[3], e = v[4], f = v[5], g = v[6], h = v[7], i = v[8],
	     j = v[9], k = v[10];
	for (long round = 0; round < seed % 7; round++) {
		a += b ^ round, b += c * 3, c ^= d + k, d += e, e ^= f * 5, f += g, g ^= h, h += i, i ^= j,
		    j += k, k ^= a;
		room[(unsigned long)(a ^ k) % (unsigned long)bytes] ^= 1;
	}
	long mixed = a + b + c + d + e + f + g + h + i + j + k;
	return mixed - mixed + sum_of(local, room, 0);
}

NOINLINE long call_many(long a, long b, long c, long d, long e, long f, long g, long h)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h;
}

// Hands arguments over on the stack.
NOINLINE long hands_over(long bytes, long seed)
{
	LOCALS(bytes, seed);
	return call_many(1, 1, 1, 1, 1, 1, seed, local.words[1]) + sum_of(local, room, bytes);
}

NOINLINE long branches(long bytes, long seed)
{
	LOCALS(bytes, seed);
	switch (seed % 6) {
	case 0:
		return sum_of(local, room, bytes);
	case 1:
		fill(&local, room, bytes, seed);
		return sum_of(local, room, bytes);
	case 2:
		return local.words[7] - seed - 7 + sum_of(local, room, bytes);
	case 3:
		room[0] = 0;
		return sum_of(local, room, bytes) + (seed & 63);
	case 4:
		return call_many(0, 0, 0, 0, 0, 0, 0, 0) + sum_of(local, room, bytes);
	default:
		local.words[0] -= 1;
		return sum_of(local, room, bytes) + 1;
	}
}

NOINLINE long rare(long bytes, long seed)
{
	LOCALS(bytes, seed);
	if (__builtin_expect(seed % 5 == 3, 0)) {
		fill(&local, room, bytes, 0);
		fill(&local, room, bytes, seed);
	}
	return sum_of(local, room, bytes);
}

NOINLINE long recursive(long depth, long seed)
{
	LOCALS(16, seed);
	long below = depth ? recursive(depth - 1, seed + 1) : 0;
	return below + sum_of(local, room, 16);
}

NOINLINE long ends_in_call(long bytes, long seed)
{
	{
		LOCALS(bytes, seed);
		seed += sum_of(local, room, bytes) - sum_expected(bytes, seed);
	}
	return aligned(bytes, seed);
}

// ---- these look at what is above their frame

NOINLINE long seventh(long bytes, long seed, long, long, long, long, long last)
{
	LOCALS(bytes, seed);
	return sum_of(local, room, bytes) + last;
}

NOINLINE long ninth_late(long bytes, long seed, long a, long b, long c, long d, long, long, long *last)
{
	LOCALS(bytes, seed);
	long sum = sum_of(local, room, bytes);
	for (long i = 0; i < seed % 3; i++)
		sum += call_many(a, b, c, d, a, b, c, d);
	return sum + *last;
}

NOINLINE long variable(long bytes, long seed, ...)
{
	LOCALS(bytes, seed);
	std::va_list list;
	va_start(list, seed);
	long sum = sum_of(local, room, bytes);
	for (long i = 0; i < 10; i++)
		sum += va_arg(list, long);
	va_end(list);
	return sum;
}

struct large {
	long values[9];
};

NOINLINE long by_value(long bytes, long seed, struct large large)
{
	LOCALS(bytes, seed);
	return sum_of(local, room, bytes) + large.values[seed % 9];
}

NOINLINE void *returns_to(long bytes, long seed)
{
	LOCALS(bytes, seed);
	return __builtin_return_address(0);
}

// ---- jumps out of frames

static long destroyed;
struct counted {
	long weight;
	~counted()
	{
		destroyed += weight;
	}
};

NOINLINE long throws(long depth, long seed)
{
	LOCALS(24, seed);
	if (depth == 0)
		throw std::runtime_error("thrown");
	long below = throws(depth - 1, seed + 1);
	return below + sum_of(local, room, 24);
}

NOINLINE long cleans(long depth, long seed)
{
	LOCALS(24, seed);
	counted guard{seed};
	long below = throws(depth, seed);
	asm volatile("" ::"r"(&guard) : "memory");
	return below + sum_of(local, room, 24);
}

NOINLINE long catches(long depth, long seed)
{
	LOCALS(40, seed);
	long kept = seed * 3;
	try {
		cleans(depth, seed);
	} catch (const std::runtime_error &error) {
		return sum_of(local, room, 40) + (long)std::strlen(error.what()) + kept;
	}
	return -1;
}

static std::jmp_buf place;

NOINLINE void jumps(long depth, long seed)
{
	LOCALS(32, seed);
	if (depth == 0 && sum_of(local, room, 32) == sum_expected(32, seed))
		std::longjmp(place, 1);
	if (depth == 0)
		return;
	jumps(depth - 1, seed + 1);
	asm volatile("" ::"r"(&local), "r"(room) : "memory");
}

NOINLINE int walks(long depth, void **frames, int count)
{
	LOCALS(48, depth);
	int found = depth == 0 ? backtrace(frames, count) : walks(depth - 1, frames, count);
	asm volatile("" ::"r"(&local), "r"(room) : "memory");
	return found;
}
}

static const char *run_sums(long count)
{
	const long values[11] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
	for (long i = 0; i < count; i++) {
		long bytes = i % 97 + 1, expected = sum_expected(bytes, i), depth = i % 5, sum = 0;
		EXPECT(aligned(bytes, i) == expected);
		EXPECT(crowded(values, bytes, i) == sum_expected(0, i));
		EXPECT(hands_over(bytes, i) == expected + 21 + 7 * i + 8 * (i + 1));
		EXPECT(branches(bytes, i) == expected);
		EXPECT(rare(bytes, i) == expected);
		EXPECT(ends_in_call(bytes, i) == expected);
		for (long level = 0; level <= depth; level++)
			sum += sum_expected(16, i + level);
		EXPECT(recursive(depth, i) == sum);
	}
	return "right";
}

static const char *run_arguments(long count)
{
	for (long i = 0; i < count; i++) {
		long bytes = i % 97 + 1, expected = sum_expected(bytes, i), last = i * 11;
		struct large large;
		for (long k = 0; k < 9; k++)
			large.values[k] = i * 17 + k;
		EXPECT(seventh(bytes, i, 0, 0, 0, 0, i * 5) == expected + i * 5);
		EXPECT(ninth_late(bytes, i, 0, 0, 0, 0, 1, 2, &last) == expected + last);
		EXPECT(variable(bytes, i, i, i, i, i, i, i, i, i, i, i) == expected + 10 * i);
		EXPECT(by_value(bytes, i, large) == expected + i * 17 + i % 9);
		char *own = reinterpret_cast<char *>(run_arguments);
		char *back = static_cast<char *>(returns_to(bytes, i));
		EXPECT(back > own && back < own + 2048);
	}
	return "right";
}

static const char *run_throws(long count)
{
	for (long i = 0; i < count; i++) {
		destroyed = 0;
		EXPECT(catches(i % 4, i) == sum_expected(40, i) + 6 + i * 3);
		EXPECT(destroyed == i);
	}
	return "right";
}

static const char *run_jumps(long count)
{
	static volatile long returned;
	returned = 0;
	for (volatile long i = 0; i < count; i = i + 1) {
		if (setjmp(place) == 0)
			jumps(i % 4, i);
		else
			returned = returned + 1;
	}
	EXPECT(returned == count);
	return "right";
}

// Names of the frames of this program, innermost first; what lies elsewhere is "?".
static const char *run_walk(long depth)
{
	static std::string answer;
	void *frames[64];
	int found = walks(depth, frames, 64);
	answer.clear();
	for (int i = 0; i < found; i++) {
		char *address = static_cast<char *>(frames[i]);
		char *start = reinterpret_cast<char *>(walks);
		char *own = reinterpret_cast<char *>(run_walk);
		bool after_walk =
		    address > start && address<start + 512, after_own = address> own && address < own + 512;
		bool in_walk = after_walk && (!after_own || start > own);
		answer += in_walk ? "walks " : after_own ? "run " : "? ";
	}
	return answer.c_str();
}

int main()
{
	static const struct command commands[] = {{"sums", run_sums},     {"arguments", run_arguments},
	                                          {"throws", run_throws}, {"jumps", run_jumps},
	                                          {"walk", run_walk},     {nullptr, nullptr}};
	return obey(commands);
}
