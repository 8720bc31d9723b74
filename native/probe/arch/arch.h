// SPDX-License-Identifier: Apache-2.0
// What the probe library and the bootstrap need of a processor. Each has a folder here: arch.h, with what is declared
// below and
//   struct nfp_frame          what the templates of receive, transmit and drop functions keep of a call (frame.h): with
//                             `arguments`, those that came in registers, and `ticks`, the time of its entry
//   nfp_read_link             readlink, as nfp_syscall3 is
//   NFP_UNWINDER_SYMBOLS      what the names of libunwind's symbols begin with
// thunk.S, between a template and C, with the symbols that library.h names; word_musl.c; and flags.cmake, with what the
// compiler is told, so that code of a probe changes neither vector state nor what a leaf function keeps below its stack
// pointer. That a record's tag is stored last (nfp_put) is said to the compiler and the processor by a release store.
#ifndef NFPROBE_PROBE_ARCH_H
#define NFPROBE_PROBE_ARCH_H
#include "abi/arch/arch.h"
#include <stdint.h>

struct nfp_frame;

// Raw system calls: no libc call is allowed on the threads of the target (errno, locks, cancellation points).
static inline long nfp_syscall6(long number, long a, long b, long c, long d, long e, long f);
static inline long nfp_syscall3(long number, long a, long b, long c)
{
	return nfp_syscall6(number, a, b, c, 0, 0, 0);
}

// Adds to *word so that a signal handler of this thread cannot tear it, and returns the value before. No other thread
// writes it.
static inline uint64_t nfp_fetch_add_local(uint64_t *word, uint64_t value);
// Stores `value` where `expected` stands, the same way. Returns whether it stood there.
static inline int nfp_replace_local(uint64_t *word, uint64_t expected, uint64_t value);

// Asks for the cache line that will be written when the ring has come NFP_RING_AHEAD_BYTES further than this (ring.h).
static inline void nfp_ring_ahead(uint64_t address);

// Calls a function that has no arguments and may change any register that functions may change.
static inline void nfp_call_any(uint64_t function);

// The low half of a performance counter, by the number that the kernel gives it. Without a system call.
static inline uint32_t nfp_counter_low(uint32_t index);

// What the function returned; at its entry it means nothing.
static inline uint64_t nfp_frame_returned(const struct nfp_frame *frame);
// The function's first argument that is not in a register.
static inline uint64_t nfp_frame_stack_argument(const struct nfp_frame *frame);
// The low half of the stack pointer at the function's entry: the calls of a thread are told apart by it.
static inline uint32_t nfp_low_sp(const struct nfp_frame *frame);

#if defined(__x86_64__)
#include "x86_64/arch.h"
#elif defined(__aarch64__)
#include "aarch64/arch.h"
#endif
#endif
