// SPDX-License-Identifier: Apache-2.0
// x86-64, with the System V calling convention: rdi, rsi, rdx, rcx, r8 and r9 hold the first arguments of a call, in this
// order.
// cdef: macros
#ifndef NFPROBE_ABI_ARCH_X86_64_H
#define NFPROBE_ABI_ARCH_X86_64_H
#define NFP_REGISTER_ARGUMENTS 6
// Offset in struct nfp_frame: above the registers and the frame of template_packets.S.
#define NFP_FRAME_RETURN 88

#ifndef __ASSEMBLER__
#include <stdint.h>

static inline uint64_t nfp_ticks(void)
{
	uint32_t low, high;
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (uint64_t)high << 32 | low;
}

// The address that %fs:0 holds: the thread control block.
static inline uintptr_t nfp_thread_base(void)
{
	uintptr_t base;
	__asm__("mov %%fs:0, %0" : "=r"(base));
	return base;
}
#endif
#endif
