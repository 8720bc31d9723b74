// SPDX-License-Identifier: Apache-2.0
// arm64 is not supported yet: no template calls into the probe library, and counters are not read.
#ifndef NFPROBE_PROBE_ARCH_AARCH64_H
#define NFPROBE_PROBE_ARCH_AARCH64_H
#include "abi/ring.h"
#include <fcntl.h>
#include <sys/syscall.h>

#define NFP_UNWINDER_SYMBOLS "_ULaarch64_"

struct nfp_frame {
	uint64_t arguments[NFP_REGISTER_ARGUMENTS];
	uint64_t returned;
	uint64_t ticks;
};

static inline long nfp_syscall6(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0"
	                 : "+r"(x0)
	                 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
	                 : "memory", "cc");
	return x0;
}

static inline long nfp_read_link(const char *link, char *to, long room)
{
	return nfp_syscall6(SYS_readlinkat, AT_FDCWD, (long)link, (long)to, room, 0, 0);
}

static inline uint64_t nfp_fetch_add_local(uint64_t *word, uint64_t value)
{
	return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

static inline int nfp_replace_local(uint64_t *word, uint64_t expected, uint64_t value)
{
	return __atomic_compare_exchange_n(word, &expected, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static inline void nfp_ring_ahead(uint64_t address)
{
	__builtin_prefetch((const void *)(uintptr_t)(address + NFP_RING_AHEAD_BYTES), 1);
}

static inline void nfp_call_any(uint64_t function)
{
	((void (*)(void))(uintptr_t)function)();
}

static inline uint32_t nfp_counter_low(uint32_t index)
{
	(void)index;
	return 0;
}

static inline uint64_t nfp_frame_returned(const struct nfp_frame *frame)
{
	return frame->returned;
}

static inline uint64_t nfp_frame_stack_argument(const struct nfp_frame *frame)
{
	return *(const uint64_t *)(frame + 1);
}

static inline uint32_t nfp_low_sp(const struct nfp_frame *frame)
{
	return (uint32_t)(uintptr_t)(frame + 1);
}
#endif
