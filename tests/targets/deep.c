// SPDX-License-Identifier: Apache-2.0
// The library of stacks.cpp: a chain of exported functions that call each other through their PLT, so that
// every strategy can be forced on them. The innermost calls back.
#define LINK __attribute__((noinline, noclone, visibility("default")))

typedef long work_function(long value);

LINK long deep_c(work_function *work, long value)
{
	long result = work(value);
	__asm__ volatile("" : "+r"(result));
	return result + 1;
}

// Two of its arguments are on the stack.
LINK long deep_b(work_function *work, long value, long c, long d, long e, long f, long g, long h)
{
	long result = deep_c(work, value);
	__asm__ volatile("" : "+r"(result));
	return result + c + d + e + f + g * 16 + h * 256;
}

// Keeps rbx, rbp and r12 across its call, so that an unwinder has registers to restore.
LINK long deep_a(work_function *work, long value)
{
	long a = value * 3, b = value * 5, c = value * 7;
	__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c));
	long result = deep_b(work, value, 1, 2, 3, 4, 5, 6);
	__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c));
	return result + a + b + c;
}
