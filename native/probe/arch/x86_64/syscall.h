// SPDX-License-Identifier: Apache-2.0
// Raw system calls: no libc call is allowed on the threads of the target (errno, locks, cancellation points).
#ifndef NFPROBE_SYSCALL_H
#define NFPROBE_SYSCALL_H
#include <stdint.h>

static inline long nfp_syscall6(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return result;
}

static inline long nfp_syscall3(long number, long a, long b, long c)
{
	return nfp_syscall6(number, a, b, c, 0, 0, 0);
}

static inline uint64_t nfp_ticks(void)
{
	uint32_t low, high;
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (uint64_t)high << 32 | low;
}

// Adds to *word in one instruction, which a signal handler of this thread cannot tear, and returns the
// value before. No lock prefix: no other thread writes it.
static inline uint64_t nfp_fetch_add_local(uint64_t *word, uint64_t value)
{
	__asm__ volatile("xaddq %0, %1" : "+r"(value), "+m"(*word)::"memory", "cc");
	return value;
}

// Stores `value` where `expected` stands, in one instruction as above. Returns whether it stood there.
static inline int nfp_replace_local(uint64_t *word, uint64_t expected, uint64_t value)
{
	uint8_t equal;
	__asm__ volatile("cmpxchgq %3, %1\n\tsete %0"
	                 : "=q"(equal), "+m"(*word), "+a"(expected)
	                 : "r"(value)
	                 : "memory", "cc");
	return equal;
}

// The address that %fs:0 holds: the thread control block.
static inline uintptr_t nfp_thread_base(void)
{
	uintptr_t base;
	__asm__("mov %%fs:0, %0" : "=r"(base));
	return base;
}
#endif
