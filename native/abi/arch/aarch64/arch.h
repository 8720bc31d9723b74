// SPDX-License-Identifier: Apache-2.0
// arm64 is not supported yet: what is one instruction is here, the rest says so (native/core/arch/aarch64).
// cdef: macros
#ifndef NFPROBE_ABI_ARCH_AARCH64_H
#define NFPROBE_ABI_ARCH_AARCH64_H
#define NFP_REGISTER_ARGUMENTS 8

#ifndef __ASSEMBLER__
#include <stdint.h>

static inline uint64_t nfp_ticks(void)
{
	uint64_t ticks;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
}

static inline uintptr_t nfp_thread_base(void)
{
	uintptr_t base;
	__asm__("mrs %0, tpidr_el0" : "=r"(base));
	return base;
}
#endif
#endif
