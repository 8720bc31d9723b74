// SPDX-License-Identifier: Apache-2.0
// What both halves need of a processor. Each has a folder here with a header of the same name, which gives what is
// declared below and the constant
//   NFP_REGISTER_ARGUMENTS   so many of a function's first arguments are in registers
// native/core/arch/arch.h and native/probe/arch/arch.h say what either half needs besides.
#ifndef NFPROBE_ABI_ARCH_H
#define NFPROBE_ABI_ARCH_H
#ifndef __ASSEMBLER__
#include <stdint.h>

// Now, in ticks of the clock that is the same on all CPUs and can be read without a system call.
static inline uint64_t nfp_ticks(void);
// Where the calling thread's static thread-local storage is counted from.
static inline uintptr_t nfp_thread_base(void);
#endif

#if defined(__x86_64__)
#include "x86_64/arch.h"
#elif defined(__aarch64__)
#include "aarch64/arch.h"
#else
#error "this processor has no folder here"
#endif
#endif
