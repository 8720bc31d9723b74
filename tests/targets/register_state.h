// SPDX-License-Identifier: Apache-2.0
// Every register of the CPU as one structure: call_with loads all of them, calls a function and stores all of
// them again. Flags are left out: no caller keeps anything in them. Used by registers.c and entries.c.
#ifndef NFPROBE_TEST_REGISTER_STATE_H
#define NFPROBE_TEST_REGISTER_STATE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct state {
	uint64_t general[16]; // rax rbx rcx rdx rsi rdi rbp rsp r8..r15
	uint8_t legacy[512];  // fxsave: x87, MXCSR, xmm
	uint8_t vector[32][64];
	uint64_t mask[8];
	uint64_t stack[32]; // what lies above the call's return address
} __attribute__((aligned(64)));
_Static_assert(__builtin_offsetof(struct state, legacy) == 128 && __builtin_offsetof(struct state, vector) == 640 &&
		       __builtin_offsetof(struct state, mask) == 2688 && __builtin_offsetof(struct state, stack) == 2752,
	       "call_with reads these offsets");

enum { RAX, RBX, RCX, RDX, RSI, RDI, RBP, RSP, R8 };

__attribute__((visibility("hidden"))) int has_avx512; // of this program or library
void call_with(const struct state *want, struct state *got, void (*function)(void));

__asm__(".text\n"
	".macro FUNCTION name\n"
	".p2align 4\n.globl \\name\n.type \\name, @function\n\\name:\n.cfi_startproc\n"
	".endm\n"
	".macro FUNCTION_END name\n"
	".cfi_endproc\n.size \\name, . - \\name\n"
	".endm\n"
	// rsp at the call: [0] function [8] got, then 32 known words.
	"FUNCTION call_with\n"
	" push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	" sub $256, %rsp\n"
	" xor %ecx, %ecx\n"
	"1: mov 2752(%rdi,%rcx,8), %rax\n mov %rax, (%rsp,%rcx,8)\n inc %ecx\n cmp $32, %ecx\n jb 1b\n"
	" sub $8, %rsp\n push %rsi\n push %rdx\n"
	" mov %rdi, %rax\n"
	" fxrstor64 128(%rax)\n"
	" cmpl $0, has_avx512(%rip)\n je 2f\n"
	".altmacro\n"
	".macro LOAD n\n vmovdqu64 640+64*\\n(%rax), %zmm\\n\n.endm\n"
	".macro STORE n\n vmovdqu64 %zmm\\n, 640+64*\\n(%rax)\n.endm\n"
	".macro LOAD_Y n\n vmovdqu 640+64*\\n(%rax), %ymm\\n\n.endm\n"
	".macro STORE_Y n\n vmovdqu %ymm\\n, 640+64*\\n(%rax)\n.endm\n"
	".macro MASK_LOAD n\n kmovq 2688+8*\\n(%rax), %k\\n\n.endm\n"
	".macro MASK_STORE n\n kmovq %k\\n, 2688+8*\\n(%rax)\n.endm\n"
	".macro EACH what, count\n .set i, 0\n .rept \\count\n \\what %i\n .set i, i+1\n .endr\n.endm\n"
	" EACH LOAD, 32\n EACH MASK_LOAD, 8\n jmp 3f\n"
	"2: EACH LOAD_Y, 16\n"
	"3: mov 8(%rax), %rbx\n mov 16(%rax), %rcx\n mov 24(%rax), %rdx\n mov 32(%rax), %rsi\n mov 40(%rax), %rdi\n"
	" mov 48(%rax), %rbp\n mov 64(%rax), %r8\n mov 72(%rax), %r9\n mov 80(%rax), %r10\n mov 88(%rax), %r11\n"
	" mov 96(%rax), %r12\n mov 104(%rax), %r13\n mov 112(%rax), %r14\n mov 120(%rax), %r15\n mov (%rax), %rax\n"
	" call *(%rsp)\n"
	" push %rax\n mov 16(%rsp), %rax\n popq (%rax)\n"
	" mov %rbx, 8(%rax)\n mov %rcx, 16(%rax)\n mov %rdx, 24(%rax)\n mov %rsi, 32(%rax)\n mov %rdi, 40(%rax)\n"
	" mov %rbp, 48(%rax)\n mov %r8, 64(%rax)\n mov %r9, 72(%rax)\n mov %r10, 80(%rax)\n mov %r11, 88(%rax)\n"
	" mov %r12, 96(%rax)\n mov %r13, 104(%rax)\n mov %r14, 112(%rax)\n mov %r15, 120(%rax)\n"
	" fxsave64 128(%rax)\n"
	" cmpl $0, has_avx512(%rip)\n je 4f\n"
	" EACH STORE, 32\n EACH MASK_STORE, 8\n jmp 5f\n"
	"4: EACH STORE_Y, 16\n"
	"5: vzeroupper\n fninit\n ldmxcsr default_mxcsr(%rip)\n"
	" add $24, %rsp\n"
	" xor %ecx, %ecx\n"
	"6: mov (%rsp,%rcx,8), %rdx\n mov %rdx, 2752(%rax,%rcx,8)\n inc %ecx\n cmp $32, %ecx\n jb 6b\n"
	" add $256, %rsp\n"
	" pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
	"FUNCTION_END call_with\n"
	"default_mxcsr: .long 0x1f80\n");

static inline void fill(struct state *state, uint64_t seed)
{
	uint8_t *byte = (uint8_t *)state;
	for (size_t i = 0; i < sizeof(*state); i++)
		byte[i] = (uint8_t)((seed + i) * 0x9e3779b97f4a7c15u >> 32 | 1);
	memset(state->legacy, 0, sizeof(state->legacy));
	*(uint16_t *)state->legacy = 0x0c7f;		       // rounds towards zero, exceptions masked
	state->legacy[4] = 0xff;			       // all eight x87 registers hold something
	*(uint32_t *)(state->legacy + 24) = 0x1f80 | 0x6000 | 0x8040; // MXCSR: rounding, flush to zero
	for (int i = 0; i < 8; i++) {
		*(uint64_t *)(state->legacy + 32 + 16 * i) = 1ull << 63 | seed * (uint64_t)(i + 3);
		*(uint16_t *)(state->legacy + 40 + 16 * i) = (uint16_t)(0x3fff + i);
	}
	state->general[RSP] = 0;
}

static inline const char *compare(struct state *want, struct state *got, int returns)
{
	if (returns) // the result
		want->general[RAX] = got->general[RAX];
	got->general[RSP] = want->general[RSP];
	if (memcmp(want->general, got->general, sizeof(want->general)) != 0)
		return "a general register differs";
	// The last x87 opcode and its addresses (6 to 23) tell of x87 instructions, not of state.
	if (memcmp(want->legacy, got->legacy, 5) != 0 || memcmp(want->legacy + 24, got->legacy + 24, 4) != 0)
		return "the x87 control word or MXCSR differs";
	for (int i = 0; i < 8; i++)
		if (memcmp(want->legacy + 32 + 16 * i, got->legacy + 32 + 16 * i, 10) != 0)
			return "an x87 register differs";
	for (int i = 0; i < (has_avx512 ? 32 : 16); i++)
		if (memcmp(want->vector[i], got->vector[i], has_avx512 ? 64 : 32) != 0)
			return "a vector register differs";
	if (has_avx512 && memcmp(want->mask, got->mask, sizeof(want->mask)) != 0)
		return "a mask register differs";
	if (memcmp(want->stack, got->stack, sizeof(want->stack)) != 0)
		return "the stack above the call differs";
	return NULL;
}
#endif
