// SPDX-License-Identifier: Apache-2.0
// What compilers and programs do that a probe must not disturb: registers kept across local calls, results in
// every register, stack arguments, tail calls, jumps out of frames, changed stacks, ended threads. Each
// command checks its results and answers "right", or what was wrong.
#define _GNU_SOURCE
#include "commands.h"
#include <alloca.h>
#include <complex.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define EXPECT(condition)                                                                                            \
	if (!(condition))                                                                                            \
		return "wrong: " #condition

struct two {
	long a, b;
};
struct two_doubles {
	double a, b;
};
struct mixed {
	double a;
	long b;
};
struct large {
	long values[25]; // 200 bytes
};

// ---- registers across local calls: gcc knows which ones a static function leaves alone (-fipa-ra)

static NOINLINE long leaf(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x * 3 + 1;
}

static NOINLINE long keep_registers(long a, long b, long c, long d, long e, long f)
{
	long sum = 0;
	for (long i = 0; i < 4; i++)
		sum += leaf(i) * (a ^ (b + i)) + leaf(sum) * (c ^ (d - i)) + leaf(sum) * (e ^ (f * i));
	return sum;
}

// ---- results

static NOINLINE struct two return_two(long x)
{
	return (struct two){x + 1, x * 2};
}
static NOINLINE struct two_doubles return_two_doubles(double x)
{
	return (struct two_doubles){x + 1, x * 2};
}
static NOINLINE struct mixed return_mixed(long x)
{
	return (struct mixed){(double)x / 2, x - 5};
}
static NOINLINE struct large return_large(long x)
{
	struct large result;
	for (int i = 0; i < 25; i++)
		result.values[i] = x + i;
	return result;
}
static NOINLINE long double return_long_double(double x)
{
	return (long double)x / 3;
}
static NOINLINE _Complex long double return_complex(double x)
{
	return (long double)x + 2.0L * I;
}
static NOINLINE __int128 return_128(unsigned long x)
{
	return (__int128)x << 70 | x;
}

// ---- arguments

static NOINLINE double sum_variable(int count, ...)
{
	double sum = 0;
	va_list list;
	va_start(list, count);
	for (int i = 0; i < count; i++)
		sum += va_arg(list, double);
	va_end(list);
	return sum;
}

int count_vectors(int first, ...); // the number of vector registers, which AL holds
__asm__(".text\n.globl count_vectors\n.type count_vectors, @function\ncount_vectors:\n.cfi_startproc\n"
	"nopl 0(%rax,%rax)\nmovzbl %al, %eax\nret\n.cfi_endproc\n.size count_vectors, . - count_vectors\n");

static NOINLINE long seven(long a, long b, long c, long d, long e, long f, long g)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g;
}
static NOINLINE long sum_large(struct large by_value)
{
	long sum = 0;
	for (int i = 0; i < 25; i++)
		sum += by_value.values[i] * (i + 1);
	return sum;
}
static NOINLINE long use_alloca(long count)
{
	long *values = alloca((size_t)count * sizeof(long)), sum = 0;
	for (long i = 0; i < count; i++)
		values[i] = i;
	__asm__ volatile("" ::"r"(values) : "memory");
	for (long i = 0; i < count; i++)
		sum += values[i];
	return sum;
}
static NOINLINE uintptr_t find_caller(void)
{
	return (uintptr_t)__builtin_return_address(0);
}

static const char *run_calls(long count)
{
	for (long i = 0; i < count; i++) {
		long x = i * 1000003 + 7;
		struct two two = return_two(x);
		EXPECT(two.a == x + 1 && two.b == x * 2);
		struct two_doubles doubles = return_two_doubles((double)x);
		EXPECT(doubles.a == (double)x + 1 && doubles.b == (double)x * 2);
		struct mixed mixed = return_mixed(x);
		EXPECT(mixed.a == (double)x / 2 && mixed.b == x - 5);
		struct large large = return_large(x);
		EXPECT(large.values[0] == x && large.values[24] == x + 24);
		EXPECT(return_long_double((double)x) == (long double)(double)x / 3);
		_Complex long double number = return_complex((double)x);
		EXPECT(creall(number) == (long double)(double)x && cimagl(number) == 2.0L);
		EXPECT(return_128((unsigned long)x) == ((__int128)(unsigned long)x << 70 | (unsigned long)x));
		EXPECT(sum_variable(10, 1., 2., 3., 4., 5., 6., 7., 8., 9., 10.) == 55);
		EXPECT(count_vectors(1) == 0 && count_vectors(1, 2.0) == 1 && count_vectors(1, 1.0, 2.0, 3.0) == 3);
		EXPECT(seven(1, 2, 3, 4, 5, 6, x) == 91 + 7 * x);
		EXPECT(sum_large(large) == 325 * x + 5200);
		EXPECT(use_alloca(100 + i % 50) == (100 + i % 50) * (99 + i % 50) / 2);
		uintptr_t caller = find_caller();
		EXPECT(caller > (uintptr_t)run_calls && caller < (uintptr_t)run_calls + 4096);
	}
	return "right";
}

static const char *run_registers(long count)
{
	static long reference[64];
	for (long i = 0; i < count; i++) {
		long x = i % 64 * 1000003 + 7;
		long sum = keep_registers(x, x + 1, x + 2, x + 3, x + 4, x + 5);
		if (reference[i % 64] == 0)
			reference[i % 64] = sum; // the first command comes before the probes
		EXPECT(sum == reference[i % 64]);
	}
	return "right";
}

// ---- recursion and tail calls

static NOINLINE long fibonacci(long n)
{
	if (n < 2)
		return n;
	long before = fibonacci(n - 1);
	__asm__ volatile("" : "+r"(before));
	long last = fibonacci(n - 2);
	__asm__ volatile("" : "+r"(last));
	return before + last;
}

static long is_odd(unsigned long n);
static NOINLINE long is_even(unsigned long n)
{
	__asm__ volatile("");
	return n == 0 ? 1 : is_odd(n - 1);
}
static NOINLINE long is_odd(unsigned long n)
{
	__asm__ volatile("");
	return n == 0 ? 0 : is_even(n - 1);
}

static NOINLINE long tail_end(long n)
{
	__asm__ volatile("" : "+r"(n));
	return n + 1;
}
static NOINLINE long tail_middle(long n)
{
	__asm__ volatile("" : "+r"(n));
	return tail_end(n * 2);
}
static NOINLINE long tail_start(long n)
{
	__asm__ volatile("" : "+r"(n));
	return n & 1 ? tail_middle(n + 1) : tail_end(n);
}

static const char *run_tails(long count)
{
	for (long i = 0; i < count; i++) {
		EXPECT(fibonacci(10) == 55);
		EXPECT(tail_start(2) == 3 && tail_start(3) == 9);
	}
	EXPECT(is_even(700000) == 1 && is_odd(700001) == 1); // needs no stack: by calls it would be more than 8 MiB
	return "right";
}

// ---- jumps out

static jmp_buf back;

static NOINLINE void jump_out(long depth)
{
	__asm__ volatile("" : "+r"(depth));
	if (depth == 0)
		longjmp(back, 1);
	if (depth > 0) // always
		jump_out(depth - 1);
	__asm__ volatile("");
}

static NOINLINE long with_setjmp(long depth)
{
	volatile long local = depth * 7;
	if (setjmp(back) == 0) {
		jump_out(depth);
		return -1;
	}
	return local;
}

static const char *run_jumps(long count)
{
	for (long i = 0; i < count; i++)
		EXPECT(with_setjmp(i % 3 + 2) == (i % 3 + 2) * 7);
	return "right";
}

// ---- changed stacks: two coroutines, each suspended inside a probed function

static ucontext_t scheduler, routines[2];
static long trace[8], traced;

static NOINLINE void suspend(long id, long step)
{
	if (traced < 8)
		trace[traced++] = id * 10 + step;
	swapcontext(&routines[id], &scheduler);
	if (traced < 8)
		trace[traced++] = id * 10 + step + 5;
}

static void routine(int id)
{
	suspend(id, 1);
	suspend(id, 2);
}

static const char *alternate(void)
{
	static char stacks[2][64 << 10];
	static const long expected[8] = {1, 11, 6, 2, 16, 12, 7, 17};
	traced = 0;
	for (int id = 0; id < 2; id++) {
		getcontext(&routines[id]);
		routines[id].uc_stack.ss_sp = stacks[id];
		routines[id].uc_stack.ss_size = sizeof(stacks[id]);
		routines[id].uc_link = &scheduler;
		makecontext(&routines[id], (void (*)(void))routine, 1, id);
	}
	for (int turn = 0; turn < 3; turn++)
		for (int id = 0; id < 2; id++)
			swapcontext(&scheduler, &routines[id]);
	EXPECT(memcmp(trace, expected, sizeof(trace)) == 0);
	return NULL;
}

static const char *run_coroutines(long count)
{
	while (count-- > 0) {
		const char *trouble = alternate();
		if (trouble)
			return trouble;
	}
	return "right";
}

// ---- ended threads

static int cleaned, reached;

static void clean(void *argument)
{
	cleaned += *(int *)argument;
}
static NOINLINE void wait_for_cancel(int *weight)
{
	pthread_cleanup_push(clean, weight);
	__atomic_store_n(&reached, 1, __ATOMIC_SEQ_CST);
	while (*weight) // always
		pause();
	pthread_cleanup_pop(0);
}
static NOINLINE void exit_thread(int *weight)
{
	pthread_cleanup_push(clean, weight);
	if (*weight) // always
		pthread_exit(weight);
	pthread_cleanup_pop(0);
}
static void *cancelled(void *argument)
{
	wait_for_cancel(argument);
	return NULL;
}
static void *exits(void *argument)
{
	exit_thread(argument);
	return NULL;
}

static const char *run_ends(long count)
{
	int one = 1, hundred = 100;
	for (long i = 0; i < count; i++) {
		pthread_t thread;
		void *result;
		cleaned = reached = 0;
		pthread_create(&thread, NULL, cancelled, &one);
		while (!__atomic_load_n(&reached, __ATOMIC_SEQ_CST))
			;
		pthread_cancel(thread);
		pthread_join(thread, &result);
		EXPECT(result == PTHREAD_CANCELED && cleaned == 1);
		pthread_create(&thread, NULL, exits, &hundred);
		pthread_join(thread, &result);
		EXPECT(result == &hundred && cleaned == 101);
	}
	return "right";
}

int main(void)
{
	static const struct command commands[] = {
		{"calls", run_calls}, {"registers", run_registers},   {"tails", run_tails}, {"jumps", run_jumps},
		{"ends", run_ends},   {"coroutines", run_coroutines}, {NULL, NULL}};
	return obey(commands);
}
