// SPDX-License-Identifier: Apache-2.0
// Calls every function of conventions.h once a round, through its GOT slot (-fno-plt), and checks each result
// against what its arguments say. Answers "right", or what was wrong.
#include "commands.h"
#include "conventions.h"
#include <stdlib.h>

#define EXPECT(condition)                                                                                            \
	if (!(condition))                                                                                            \
		return "wrong: " #condition

static const char *check_results(long x)
{
	struct two two = return_two(x);
	EXPECT(two.a == x + 1 && two.b == x * 2);
	struct two_doubles doubles = return_two_doubles((double)x);
	EXPECT(doubles.a == (double)x + 1 && doubles.b == (double)x * 2);
	struct double_first double_first = return_double_first(x);
	EXPECT(double_first.a == (double)x / 2 && double_first.b == x - 5);
	struct long_first long_first = return_long_first(x);
	EXPECT(long_first.a == x - 5 && long_first.b == (double)x / 2);
	struct words_3 three = return_words_3(x);
	EXPECT(three.values[0] == x && three.values[2] == x + 2);
	struct words_25 large = return_words_25(x);
	EXPECT(large.values[0] == x && large.values[24] == x + 24);
	EXPECT(return_long_double((double)x) == (long double)(double)x / 3);
	_Complex long double longer = return_complex_long((double)x);
	EXPECT(__real__ longer == (long double)(double)x && __imag__ longer == 2.0L);
	_Complex double complex = return_complex((double)x);
	EXPECT(__real__ complex == (double)x * 3 && __imag__ complex == (double)x - 1);
	EXPECT(return_128((unsigned long)x) == ((__int128)(unsigned long)x << 70 | (unsigned long)x));
	return NULL;
}

static __attribute__((target("avx2"))) const char *check_vectors(long x)
{
	long sums[4];
	_mm256_storeu_si256((__m256i *)sums, return_256(_mm256_set_epi64x(x, 3, 2, 1), _mm256_set1_epi64x(x)));
	EXPECT(sums[0] == x + 1 && sums[1] == x + 2 && sums[2] == x + 3 && sums[3] == 2 * x);
	return NULL;
}

static const char *check_arguments(long x)
{
	struct words_3 three = {{x, x + 1, x + 2}};
	struct words_25 large;
	for (int i = 0; i < 25; i++)
		large.values[i] = x + i;
	EXPECT(take_ten(1, 2, 3, 4, 5, 6, 7, 8, 9, x) == 285 + 10 * x);
	EXPECT(take_ten_doubles(1, 2, 3, 4, 5, 6, 7, 8, 9, (double)x) == 285 + 10 * (double)x);
	EXPECT(take_words_3(three) == 6 * x + 8);
	EXPECT(take_words_25(3, large, 5) == 325 * x + 5200 + 3035);
	struct aligned_32 aligned = {{x, 0, 0, 4}};
	EXPECT(take_aligned(aligned, 9) == x + 13);
	EXPECT(take_long_double(1.5L, 4, (long double)x) == 6 - (long double)x);
	EXPECT(take_128(1, 2, 3, 4, 5, (__int128)x << 64 | 6) == 21 + x);
	EXPECT(sum_variable(12, 1L, 2.5, 3L, 4.5, 5L, 6.5, 7L, 8.5, 9L, 10.5, x, 12.5) == 70 + (double)x);
	char text[96], expected[96];
	int length = print_variable(text, sizeof(text), "%ld %g %s %d %d %d %.2f %c", x, 0.5, "seven", 4, 5, 6, 7.25, 'z');
	snprintf(expected, sizeof(expected), "%ld 0.5 seven 4 5 6 7.25 z", x);
	EXPECT(strcmp(text, expected) == 0 && length == (int)strlen(expected));
	EXPECT(take_as_windows(x, 2, 3, 4, 5, 6.5) == x + 67);
	return NULL;
}

static const char *check_changes(long x)
{
	long g = 8, h = x;
	for (long i = 0; i < 5; i++) {
		g += 3 * i + 4 + h;
		h ^= 5 + 6 + 7 + x + g;
	}
	EXPECT(change_arguments(3, 4, 5, 6, 7, x, 8, x) == g - h);
	struct words_25 large, changed;
	for (int i = 0; i < 25; i++)
		large.values[i] = changed.values[i] = x + i;
	long sum = 0;
	for (long i = 0; i < 40; i++)
		changed.values[i % 25] = changed.values[(i + 7) % 25] * 3 - i;
	for (int i = 0; i < 25; i++)
		sum += changed.values[i] * (i + 1);
	EXPECT(change_by_value(large, 40) == sum);
	EXPECT(large.values[7] == x + 7);
	return NULL;
}

static const char *check_frames(long x);

static int is_here(uintptr_t address)
{
	return address > (uintptr_t)check_frames && address < (uintptr_t)check_frames + 4096;
}

static long choose(unsigned long which, long x)
{
	long cases[8] = {x + 11, x * 5, x ^ 0x55, -x, x / 3, x * 3 - 1, (x * 9 + 4) << 2, x % 11};
	return which < 8 ? cases[which] : 0;
}

static __attribute__((noinline)) const char *check_frames(long x)
{
	long count = 100 + x % 50;
	unsigned long which = (unsigned long)x % 9;
	EXPECT(use_alloca(count) == count * (count - 1) / 2);
	EXPECT(use_array(count) == count * (count + 1));
	EXPECT(is_here(find_caller()));
	EXPECT(is_here(find_caller_of_frame(count)));
	EXPECT(jump_with_stack(1, 2, 3, 4, 5, 6, x, 8) == 3 + 100 * x - 8);
	EXPECT(jump_by_pointer(labs, -x - 1) == x);
	static long before[9];
	long kept = call_leaf(x % 9, x % 9 + 1, 3, 4, 5, 6);
	if (before[x % 9] == 0)
		before[x % 9] = kept; // the first command comes before the probes
	EXPECT(kept == before[x % 9]);
	EXPECT(call_nested(x) == 7 * x + 1 + (7 * x + 3) * 10);
	EXPECT(return_again(x % 3 + 2) == (x % 3 + 2) * 7);
	EXPECT(choose_by_table(which, x) == choose(which, x));
	EXPECT(choose_with_stack(which, x, 1, 2, 3, 4, 5) == choose(which, x + 15));
	EXPECT(count_down(9) == 45);
	return NULL;
}

static const char *run_rounds(long count)
{
	for (long i = 0; i < count; i++) {
		long x = i * 1000003 + 7;
		const char *trouble = check_results(x);
		trouble = trouble ? trouble : check_arguments(x);
		trouble = trouble ? trouble : check_changes(x);
		trouble = trouble ? trouble : check_frames(x);
		if (!trouble && __builtin_cpu_supports("avx2"))
			trouble = check_vectors(x);
		if (trouble)
			return trouble;
	}
	return "right";
}

int main(void)
{
	static const struct command commands[] = {{"rounds", run_rounds}, {NULL, NULL}};
	return obey(commands);
}
