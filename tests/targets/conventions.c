// SPDX-License-Identifier: Apache-2.0
// Functions that move arguments and results in every way there is; a library. See conventions.h.
#include "conventions.h"
#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value)) // as far as gcc knows, it changes here

struct two return_two(long x)
{
	return (struct two){x + 1, x * 2};
}
struct two_doubles return_two_doubles(double x)
{
	return (struct two_doubles){x + 1, x * 2};
}
struct double_first return_double_first(long x)
{
	return (struct double_first){(double)x / 2, x - 5};
}
struct long_first return_long_first(long x)
{
	return (struct long_first){x - 5, (double)x / 2};
}
struct words_3 return_words_3(long x)
{
	return (struct words_3){{x, x + 1, x + 2}};
}
struct words_25 return_words_25(long x)
{
	struct words_25 result;
	for (int i = 0; i < 25; i++)
		result.values[i] = x + i;
	return result;
}
long double return_long_double(double x)
{
	return (long double)x / 3;
}
_Complex long double return_complex_long(double x)
{
	return __builtin_complex((long double)x, 2.0L);
}
_Complex double return_complex(double x)
{
	return __builtin_complex(x * 3, x - 1);
}
__int128 return_128(unsigned long x)
{
	return (__int128)x << 70 | x;
}
__attribute__((target("avx2"))) __m256i return_256(__m256i a, __m256i b)
{
	return _mm256_add_epi64(a, b);
}

long take_ten(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}
double take_ten_doubles(double a, double b, double c, double d, double e, double f, double g, double h, double i,
			double j)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}
long take_words_3(struct words_3 by_value)
{
	return by_value.values[0] + 2 * by_value.values[1] + 3 * by_value.values[2];
}
long take_words_25(long before, struct words_25 by_value, long after)
{
	long sum = before * 1000 + after * 7;
	for (int i = 0; i < 25; i++)
		sum += by_value.values[i] * (i + 1);
	return sum;
}
long take_aligned(struct aligned_32 by_value, long after)
{
	return (long)((uintptr_t)&by_value % 32) + by_value.values[0] + by_value.values[3] + after;
}
long double take_long_double(long double a, int b, long double c)
{
	return a * b - c;
}
long take_128(long a, long b, long c, long d, long e, __int128 f)
{
	return a + b + c + d + e + (long)(f >> 64) + (long)f;
}
double sum_variable(int count, ...)
{
	double sum = 0;
	va_list list;
	va_start(list, count);
	for (int i = 0; i < count; i++)
		sum += i % 2 ? va_arg(list, double) : (double)va_arg(list, long);
	va_end(list);
	return sum;
}
int print_variable(char *text, unsigned long room, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	int length = vsnprintf(text, room, format, list);
	va_end(list);
	return length;
}
long change_arguments(long a, long b, long c, long d, long e, long f, long g, long h)
{
	volatile long *words[2] = {&g, &h}; // they live where the caller put them
	for (long i = 0; i < 5; i++) {
		*words[0] += a * i + b + *words[1];
		*words[1] ^= c + d + e + f + *words[0];
	}
	return g - h;
}
long change_by_value(struct words_25 by_value, long turns)
{
	for (long i = 0; i < turns; i++)
		by_value.values[i % 25] = by_value.values[(i + 7) % 25] * 3 - i;
	long sum = 0;
	for (int i = 0; i < 25; i++)
		sum += by_value.values[i] * (i + 1);
	return sum;
}
// The caller leaves 32 bytes above the return address for it to write to.
__attribute__((ms_abi)) long take_as_windows(long a, long b, long c, long d, long e, double f)
{
	long kept[4] = {a, b, c, d};
	KEEP(kept[0]);
	return kept[0] + kept[1] * 2 + kept[2] * 3 + kept[3] * 4 + e * 5 + (long)(f * 2);
}

static NOINLINE long sum_array(long *values, long count)
{
	long sum = 0;
	for (long i = 0; i < count; i++)
		sum += values[i];
	return sum;
}
long use_alloca(long count)
{
	long *values = alloca((unsigned long)count * sizeof(long));
	for (long i = 0; i < count; i++)
		values[i] = i;
	return sum_array(values, count);
}
long use_array(long count)
{
	long values[count + 1];
	for (long i = 0; i <= count; i++)
		values[i] = i * 2;
	return sum_array(values, count + 1);
}
uintptr_t find_caller(void)
{
	return (uintptr_t)__builtin_return_address(0);
}
uintptr_t find_caller_of_frame(long count)
{
	volatile char *room = alloca((unsigned long)count);
	room[0] = 1;
	uintptr_t *frame = __builtin_frame_address(0);
	KEEP(frame);
	return frame[1] * (uintptr_t)room[0];
}

static NOINLINE long take_eight(long a, long b, long c, long d, long e, long f, long g, long h)
{
	KEEP(a);
	return a - b + c - d + e - f + 100 * g - h;
}
long jump_with_stack(long a, long b, long c, long d, long e, long f, long g, long h)
{
	return take_eight(b, a, d, c, f, e, g, h);
}
long jump_by_pointer(long (*function)(long), long x)
{
	return function(x + 1);
}

// gcc knows which registers a static function leaves alone (-fipa-ra), and keeps values in them.
static NOINLINE long leaf(long x)
{
	KEEP(x);
	return x * 3 + 1;
}
long call_leaf(long a, long b, long c, long d, long e, long f)
{
	long sum = 0;
	for (long i = 0; i < 4; i++)
		sum += leaf(i) * (a ^ (b + i)) + leaf(sum) * (c ^ (d - i)) + leaf(sum) * (e ^ (f * i));
	return sum;
}
long call_nested(long x)
{
	long outer = x * 7;
	NOINLINE long nested(long y)
	{
		KEEP(y);
		outer += y; // through r10
		return outer;
	}
	return nested(1) + nested(2) * 10;
}

static jmp_buf back;
static NOINLINE void jump_back(long depth)
{
	KEEP(depth);
	if (depth == 0)
		longjmp(back, 1);
	if (depth > 0) // always
		jump_back(depth - 1);
	__asm__ volatile("");
}
long return_again(long depth)
{
	volatile long local = depth * 7;
	if (setjmp(back) == 0) {
		jump_back(depth);
		return -1;
	}
	return local;
}

#define CASES(with)                                                                                                  \
	switch (which) {                                                                                             \
	case 0: return (with) + 11;                                                                                  \
	case 1: return (with) * 5;                                                                                   \
	case 2: return (with) ^ 0x55;                                                                                \
	case 3: return -(with);                                                                                      \
	case 4: return (with) / 3;                                                                                   \
	case 5: return leaf(with) - 2;                                                                               \
	case 6: return leaf(leaf(with)) << 2;                                                                        \
	case 7: return (with) % 11;                                                                                  \
	default: return 0;                                                                                           \
	}
long choose_by_table(unsigned long which, long x)
{
	CASES(x)
}
long choose_with_stack(unsigned long which, long b, long c, long d, long e, long f, long g)
{
	long x = b + c + d + e + f + g;
	CASES(x)
}
NOINLINE long count_down(long n)
{
	if (n <= 0)
		return 0;
	long below = count_down(n - 1);
	KEEP(below); // so that no loop is made of it
	return n + below;
}
