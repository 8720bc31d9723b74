// SPDX-License-Identifier: Apache-2.0
// Calls functions that touch nothing with known values in every general, vector, mask and x87 register, MXCSR
// and the stack above, and compares all of them afterwards; in the main thread, in fresh threads and in a
// signal handler. Flags are not compared: no caller keeps anything in them.
#define _GNU_SOURCE
#include "commands.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define PACKETS 4
#define ALARM_US 100

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

struct buffer {
	uint8_t *data;
	uint16_t data_offset;
	uint32_t length;
	uint16_t segment_length;
};

int has_avx512;
uint32_t rx_result, tx_result;
static struct buffer buffers[PACKETS];
static struct buffer *burst[PACKETS];
static uint8_t frame[64];
static volatile sig_atomic_t handled;
static const char *volatile trouble;

void touch_nothing(void);
void use_red_zone(void);
void rx_burst(void);
void tx_burst(void);
void drop_burst(void);
void call_with(const struct state *want, struct state *got, void (*function)(void));

__asm__(".text\n"
	".macro FUNCTION name\n"
	".p2align 4\n.globl \\name\n.type \\name, @function\n\\name:\n.cfi_startproc\n"
	".endm\n"
	".macro FUNCTION_END name\n"
	".cfi_endproc\n.size \\name, . - \\name\n"
	".endm\n"
	"FUNCTION touch_nothing\n nopl 0(%rax,%rax)\n ret\nFUNCTION_END touch_nothing\n"
	"FUNCTION rx_burst\n mov rx_result(%rip), %eax\n ret\nFUNCTION_END rx_burst\n"
	"FUNCTION tx_burst\n mov tx_result(%rip), %eax\n ret\nFUNCTION_END tx_burst\n"
	"FUNCTION drop_burst\n nopl 0(%rax,%rax)\n ret\nFUNCTION_END drop_burst\n"
	// A leaf that fills the red zone, gives signals time to arrive, and traps when a byte of it has changed.
	"FUNCTION use_red_zone\n"
	" push %rcx\n .cfi_def_cfa_offset 16\n push %rax\n .cfi_def_cfa_offset 24\n"
	" mov $-16, %rcx\n"
	"1: mov %rcx, (%rsp,%rcx,8)\n inc %rcx\n jnz 1b\n"
	" mov $2000, %ecx\n"
	"2: dec %rcx\n jnz 2b\n"
	" mov $-16, %rcx\n"
	"3: cmp %rcx, (%rsp,%rcx,8)\n jne 4f\n inc %rcx\n jnz 3b\n"
	" pop %rax\n .cfi_def_cfa_offset 16\n pop %rcx\n .cfi_def_cfa_offset 8\n ret\n"
	"4: ud2\n"
	"FUNCTION_END use_red_zone\n"
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

static void fill(struct state *state, uint64_t seed)
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
	state->general[RSI] = (uint64_t)burst;
	state->general[RDX] = PACKETS;
	state->general[RSP] = 0;
}

static const char *compare(struct state *want, struct state *got, int returns)
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

static const char *check(uint64_t seed)
{
	static const struct {
		void (*function)(void);
		int returns;
	} calls[] = {{touch_nothing, 0}, {rx_burst, 1}, {tx_burst, 1}, {drop_burst, 0}, {use_red_zone, 0}};
	struct state want, got;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		fill(&want, seed * 8 + i);
		memset(&got, 0, sizeof(got));
		call_with(&want, &got, calls[i].function);
		const char *difference = compare(&want, &got, calls[i].returns);
		if (difference) {
			static char text[96];
			snprintf(text, sizeof(text), "%s in call %zu of round %lu", difference, i, (unsigned long)seed);
			return text;
		}
	}
	return NULL;
}

static const char *run_main(long count)
{
	for (long i = 0; i < count; i++) {
		// Every other poll returns nothing; the transmit function takes all, some or none.
		rx_result = i & 1 ? PACKETS : 0;
		tx_result = (uint32_t)(i % (PACKETS + 1));
		const char *difference = check((uint64_t)i);
		if (difference)
			return difference;
	}
	return "equal";
}

static void *in_thread(void *argument)
{
	for (uint64_t i = 0; i < 3; i++) {
		const char *difference = check((uint64_t)argument + i);
		if (difference)
			trouble = difference;
	}
	return NULL;
}

static const char *run_threads(long count)
{
	for (long i = 0; i < count && !trouble; i++) {
		pthread_t thread;
		rx_result = i & 1 ? PACKETS : 0;
		if (pthread_create(&thread, NULL, in_thread, (void *)i) != 0)
			return "pthread_create failed";
		pthread_join(thread, NULL);
	}
	return trouble ? trouble : "equal";
}

static void on_alarm(int signal)
{
	(void)signal;
	const char *difference = check(1000 + (uint64_t)handled++);
	if (difference)
		trouble = difference;
}

static const char *run_signals(long count)
{
	struct sigaction action = {.sa_handler = on_alarm};
	struct itimerval fast = {{0, ALARM_US}, {0, ALARM_US}}, off = {{0, 0}, {0, 0}};
	sigaction(SIGALRM, &action, NULL);
	handled = 0;
	setitimer(ITIMER_REAL, &fast, NULL);
	const char *difference = NULL;
	for (uint64_t i = 0; handled < count && !trouble && !difference; i++) {
		rx_result = tx_result = i & 1 ? PACKETS : 0;
		difference = check(i);
	}
	setitimer(ITIMER_REAL, &off, NULL);
	return difference ? difference : trouble ? trouble : "equal";
}

int main(void)
{
	has_avx512 = __builtin_cpu_supports("avx512bw");
	memcpy(frame, "\2\0\0\0\0\1\2\0\0\0\0\2\x08\0\x45\0\0\x2e\0\1\0\0\x40\x11\0\0\x0a\0\0\1\x0a\0\0\2\4\0\5\0\0\x1a", 40);
	for (int i = 0; i < PACKETS; i++) {
		buffers[i] = (struct buffer){frame, 0, 60, 60};
		burst[i] = &buffers[i];
	}
	static const struct command commands[] = {
		{"main", run_main}, {"threads", run_threads}, {"signals", run_signals}, {NULL, NULL}};
	return obey(commands);
}
