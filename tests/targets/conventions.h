// SPDX-License-Identifier: Apache-2.0
// What conventions.c offers: one function for each way in which arguments and results travel (System V ABI for
// x86-64, sections 3.2 and 3.5). convention_calls.c calls each exactly once a round.
#ifndef NFPROBE_TEST_CONVENTIONS_H
#define NFPROBE_TEST_CONVENTIONS_H
#include <immintrin.h>
#include <stdint.h>

struct two {
	long a, b;
};
struct two_doubles {
	double a, b;
};
struct double_first {
	double a;
	long b;
};
struct long_first {
	long a;
	double b;
};
struct words_3 {
	long values[3];
};
struct words_25 {
	long values[25];
};
struct aligned_32 {
	long values[4];
} __attribute__((aligned(32)));

// results
struct two return_two(long x);			      // rax, rdx
struct two_doubles return_two_doubles(double x);      // xmm0, xmm1
struct double_first return_double_first(long x);      // xmm0, rax
struct long_first return_long_first(long x);	      // rax, xmm0
struct words_3 return_words_3(long x);		      // where rdi points
struct words_25 return_words_25(long x);	      // where rdi points
long double return_long_double(double x);	      // st0
_Complex long double return_complex_long(double x);   // st0, st1
_Complex double return_complex(double x);	      // xmm0, xmm1
__int128 return_128(unsigned long x);		      // rax, rdx
__attribute__((target("avx2"))) __m256i return_256(__m256i a, __m256i b); // ymm0

// arguments
long take_ten(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j);
double take_ten_doubles(double a, double b, double c, double d, double e, double f, double g, double h, double i,
			double j);
long take_words_3(struct words_3 by_value);
long take_words_25(long before, struct words_25 by_value, long after);
long take_aligned(struct aligned_32 by_value, long after);
long double take_long_double(long double a, int b, long double c);
long take_128(long a, long b, long c, long d, long e, __int128 f);
double sum_variable(int count, ...);
int print_variable(char *text, unsigned long room, const char *format, ...);
long change_arguments(long a, long b, long c, long d, long e, long f, long g, long h);
long change_by_value(struct words_25 by_value, long turns);
__attribute__((ms_abi)) long take_as_windows(long a, long b, long c, long d, long e, double f);

// frames
long use_alloca(long count);
long use_array(long count);
uintptr_t find_caller(void);
uintptr_t find_caller_of_frame(long count);
long jump_with_stack(long a, long b, long c, long d, long e, long f, long g, long h); // ends in take_eight
long jump_by_pointer(long (*function)(long), long x);				      // ends in *function
long call_leaf(long a, long b, long c, long d, long e, long f);			      // keeps scratch registers
long call_nested(long x);							      // r10
long return_again(long depth);							      // longjmp into it
long choose_by_table(unsigned long which, long x);
long choose_with_stack(unsigned long which, long b, long c, long d, long e, long f, long g);
long count_down(long n); // calls itself
#endif
