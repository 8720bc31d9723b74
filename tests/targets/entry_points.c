// SPDX-License-Identifier: Apache-2.0
// Library functions that look at themselves: they store every register as they find it where rdi points (struct
// state of register_state.h) and change none. Its callers are in entries.c.
#include "register_state.h"

static __attribute__((constructor)) void look_at_cpu(void)
{
	has_avx512 = __builtin_cpu_supports("avx512bw");
}

void look_at_registers(void);
void look_at_arguments(void); // eight words of the caller's stack, too
void touch_nothing(void);
void jump_on(void); // ends in a jump to look_at_registers
void loop_in_red_zone(void);

__asm__(".macro LOOK name\n"
	" mov %rax, (%rdi)\n mov %rbx, 8(%rdi)\n mov %rcx, 16(%rdi)\n mov %rdx, 24(%rdi)\n mov %rsi, 32(%rdi)\n"
	" mov %rdi, 40(%rdi)\n mov %rbp, 48(%rdi)\n mov %rsp, 56(%rdi)\n mov %r8, 64(%rdi)\n mov %r9, 72(%rdi)\n"
	" mov %r10, 80(%rdi)\n mov %r11, 88(%rdi)\n mov %r12, 96(%rdi)\n mov %r13, 104(%rdi)\n mov %r14, 112(%rdi)\n"
	" mov %r15, 120(%rdi)\n"
	" fxsave64 128(%rdi)\n"
	" mov %rdi, %rax\n"
	" cmpl $0, has_avx512(%rip)\n je 1f\n EACH STORE, 32\n EACH MASK_STORE, 8\n jmp 2f\n"
	"1: EACH STORE_Y, 16\n"
	"2:\n"
	".endm\n"
	"FUNCTION look_at_registers\nlook_here:\n LOOK\n mov (%rdi), %rax\n ret\nFUNCTION_END look_at_registers\n"
	"FUNCTION look_at_arguments\n LOOK\n"
	".set i, 0\n.rept 8\n mov 32+8*i(%rsp), %rax\n mov %rax, 2752+8*i(%rdi)\n.set i, i+1\n.endr\n"
	" mov (%rdi), %rax\n ret\nFUNCTION_END look_at_arguments\n"
	"FUNCTION touch_nothing\n nopl 0(%rax,%rax)\n ret\nFUNCTION_END touch_nothing\n"
	"FUNCTION jump_on\n nopl 0(%rax,%rax)\n jmp look_here\nFUNCTION_END jump_on\n"
	// Fills the red zone, gives signals time to arrive, and traps when a byte of it has changed.
	"FUNCTION loop_in_red_zone\n"
	" mov %rcx, -8(%rsp)\n"
	" mov $-16, %rcx\n"
	"1: mov %rcx, -8(%rsp,%rcx,8)\n inc %rcx\n cmp $-1, %rcx\n jnz 1b\n"
	" mov $2000, %ecx\n"
	"2: dec %rcx\n jnz 2b\n"
	" mov $-15, %rcx\n"
	"3: cmp %rcx, -8(%rsp,%rcx,8)\n jne 4f\n inc %rcx\n cmp $-1, %rcx\n jnz 3b\n"
	" mov -8(%rsp), %rcx\n ret\n"
	"4: ud2\n"
	"FUNCTION_END loop_in_red_zone\n");
