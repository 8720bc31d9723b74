// SPDX-License-Identifier: Apache-2.0
// x86-64. Stores are not reordered with each other; the red zone is 128 bytes.
#ifndef NFPROBE_PROBE_ARCH_X86_64_H
#define NFPROBE_PROBE_ARCH_X86_64_H
#include "abi/ring.h"
#include <stddef.h>
#include <sys/syscall.h>

#define NFP_UNWINDER_SYMBOLS "_ULx86_64_"

// As template_packets.S writes it.
struct nfp_frame {
	uint64_t r11, rcx, rdx, rax; // what the function left there; at its entry only some of them
	uint64_t arguments[NFP_REGISTER_ARGUMENTS];
	uint64_t ticks;
	uint64_t return_address;
};
_Static_assert(sizeof(struct nfp_frame) == 96 &&
                   offsetof(struct nfp_frame, return_address) == NFP_FRAME_RETURN,
               "template_packets.S: SAVED is 32, FRAME 56, the return address above it");

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

static inline long nfp_read_link(const char *link, char *to, long room)
{
	return nfp_syscall3(SYS_readlink, (long)link, (long)to, room);
}

static inline uint64_t nfp_fetch_add_local(uint64_t *word, uint64_t value)
{
	__asm__ volatile("xaddq %0, %1" : "+r"(value), "+m"(*word)::"memory", "cc"); // no lock prefix
	return value;
}

static inline int nfp_replace_local(uint64_t *word, uint64_t expected, uint64_t value)
{
	uint8_t equal;
	__asm__ volatile("cmpxchgq %3, %1\n\tsete %0"
	                 : "=q"(equal), "+m"(*word), "+a"(expected)
	                 : "r"(value)
	                 : "memory", "cc");
	return equal;
}

static inline void nfp_ring_ahead(uint64_t address)
{
	__asm__ volatile("prefetchw %c1(%0)" : : "r"(address), "i"(NFP_RING_AHEAD_BYTES));
}

static inline void nfp_call_any(uint64_t function)
{
	__asm__ volatile("call *%0" : : "r"(function) : "memory", "cc", "rax", "rcx", "rdx", "r11");
}

// The index has the bit of fixed counters; neither width nor sign matter to the low half.
static inline __attribute__((always_inline)) uint32_t nfp_counter_low(uint32_t index)
{
	uint32_t low, high;
	__asm__ volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(index) : "memory");
	return low;
}

static inline uint64_t nfp_frame_returned(const struct nfp_frame *frame)
{
	return frame->rax;
}

static inline uint64_t nfp_frame_stack_argument(const struct nfp_frame *frame)
{
	// NOLINTNEXTLINE(clang-analyzer-security.ArrayBound): it stands above the frame
	return *(&frame->return_address + 1);
}

static inline uint32_t nfp_low_sp(const struct nfp_frame *frame)
{
	return (uint32_t)(uintptr_t)&frame->return_address;
}
#endif
