// SPDX-License-Identifier: Apache-2.0
// A thread that steps through its instructions: SIGTRAP comes behind each.
#ifndef NFPROBE_STEPPING_H
#define NFPROBE_STEPPING_H
#include <ucontext.h>

enum { TRAP_FLAG = 0x100 };

static inline void step_on(void)
{
	__asm__ volatile("pushf\n\torq %0, (%%rsp)\n\tpopf" : : "i"(TRAP_FLAG) : "memory", "cc");
}

static inline void step_off(void)
{
	__asm__ volatile("pushf\n\tandq %0, (%%rsp)\n\tpopf" : : "i"(~TRAP_FLAG) : "memory", "cc");
}

// Of the thread that a handler of SIGTRAP returns to.
static inline void step_off_in(void *context)
{
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}
#endif
