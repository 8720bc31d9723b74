// SPDX-License-Identifier: Apache-2.0
// Blocks in a system call with known values in every general and vector register and a known signal mask;
// checks all of them, the result and how long the call took after it, again and again until its standard input ends.
// Ends with 1 at the first difference.
// Usage: blocked_registers epoll|poll|sleep
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 50

struct state {
	uint64_t general[15]; // rax rbx rcx rdx rsi rdi rbp r8..r15
	uint8_t vector[16][32];
};

static struct state want, got;

// Loads `want`, makes the system call, stores `got`. rcx and r11 belong to the system call instruction.
__attribute__((naked, noinline)) static void call_with_registers(void)
{
	__asm__ volatile("push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n\t"
			 "lea want+120(%rip), %rax\n\t"
			 "vmovdqu (%rax), %ymm0; vmovdqu 32(%rax), %ymm1; vmovdqu 64(%rax), %ymm2; vmovdqu 96(%rax), %ymm3\n\t"
			 "vmovdqu 128(%rax), %ymm4; vmovdqu 160(%rax), %ymm5; vmovdqu 192(%rax), %ymm6; vmovdqu 224(%rax), %ymm7\n\t"
			 "vmovdqu 256(%rax), %ymm8; vmovdqu 288(%rax), %ymm9; vmovdqu 320(%rax), %ymm10; vmovdqu 352(%rax), %ymm11\n\t"
			 "vmovdqu 384(%rax), %ymm12; vmovdqu 416(%rax), %ymm13; vmovdqu 448(%rax), %ymm14; vmovdqu 480(%rax), %ymm15\n\t"
			 "mov want+8(%rip), %rbx; mov want+24(%rip), %rdx; mov want+32(%rip), %rsi; mov want+40(%rip), %rdi\n\t"
			 "mov want+48(%rip), %rbp; mov want+56(%rip), %r8; mov want+64(%rip), %r9; mov want+72(%rip), %r10\n\t"
			 "mov want+88(%rip), %r12; mov want+96(%rip), %r13; mov want+104(%rip), %r14; mov want+112(%rip), %r15\n\t"
			 "mov want(%rip), %rax\n\t"
			 "syscall\n\t"
			 "mov %rax, got(%rip); mov %rbx, got+8(%rip); mov %rdx, got+24(%rip); mov %rsi, got+32(%rip)\n\t"
			 "mov %rdi, got+40(%rip); mov %rbp, got+48(%rip); mov %r8, got+56(%rip); mov %r9, got+64(%rip)\n\t"
			 "mov %r10, got+72(%rip); mov %r12, got+88(%rip); mov %r13, got+96(%rip); mov %r14, got+104(%rip)\n\t"
			 "mov %r15, got+112(%rip)\n\t"
			 "lea got+120(%rip), %rax\n\t"
			 "vmovdqu %ymm0, (%rax); vmovdqu %ymm1, 32(%rax); vmovdqu %ymm2, 64(%rax); vmovdqu %ymm3, 96(%rax)\n\t"
			 "vmovdqu %ymm4, 128(%rax); vmovdqu %ymm5, 160(%rax); vmovdqu %ymm6, 192(%rax); vmovdqu %ymm7, 224(%rax)\n\t"
			 "vmovdqu %ymm8, 256(%rax); vmovdqu %ymm9, 288(%rax); vmovdqu %ymm10, 320(%rax); vmovdqu %ymm11, 352(%rax)\n\t"
			 "vmovdqu %ymm12, 384(%rax); vmovdqu %ymm13, 416(%rax); vmovdqu %ymm14, 448(%rax); vmovdqu %ymm15, 480(%rax)\n\t"
			 "vzeroupper\n\t"
			 "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret");
}

static void fill(uint64_t round)
{
	for (int i = 0; i < 15; i++)
		want.general[i] = 0x1111111111111111u * (uint64_t)(i + 1) + round;
	for (int i = 0; i < 16; i++)
		memset(want.vector[i], (int)(round + (uint64_t)i * 7), sizeof(want.vector[i]));
}

static struct epoll_event event;
static struct pollfd none, input = {.fd = STDIN_FILENO};
static struct timespec wait_for = {0, WAIT_MS * 1000000};

static void set_call(const char *kind, int epoll)
{
	uint64_t *g = want.general; // rax 0, rdx 3, rsi 4, rdi 5, r10 9
	if (strcmp(kind, "epoll") == 0) {
		g[0] = SYS_epoll_wait, g[5] = (uint64_t)epoll, g[4] = (uint64_t)&event, g[3] = 1, g[9] = WAIT_MS;
	} else if (strcmp(kind, "poll") == 0) {
		g[0] = SYS_poll, g[5] = (uint64_t)&none, g[4] = 0, g[3] = WAIT_MS;
	} else {
		g[0] = SYS_nanosleep, g[5] = (uint64_t)&wait_for, g[4] = 0;
	}
}

static void fail(const char *what, uint64_t round, long result)
{
	printf("%s differs in round %lu, result %ld\n", what, round, result);
	exit(1);
}

int main(int count, char **words)
{
	if (count < 2)
		return 2;
	int epoll = epoll_create1(0);
	sigset_t mask, after;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	sigaddset(&mask, SIGRTMIN + 3);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	printf("ready\n");
	fflush(stdout);
	for (uint64_t round = 0; poll(&input, 1, 0) == 0; round++) {
		struct timespec start, end;
		fill(round);
		set_call(words[1], epoll);
		clock_gettime(CLOCK_MONOTONIC, &start);
		call_with_registers();
		clock_gettime(CLOCK_MONOTONIC, &end);
		long result = (long)got.general[0];
		want.general[0] = got.general[0] = 0;
		want.general[2] = got.general[2] = want.general[10] = got.general[10] = 0;
		sigprocmask(SIG_SETMASK, NULL, &after);
		if (result != 0)
			fail("the result", round, result);
		if (memcmp(want.general, got.general, sizeof(want.general)) != 0)
			fail("a general register", round, result);
		if (memcmp(want.vector, got.vector, sizeof(want.vector)) != 0)
			fail("a vector register", round, result);
		if (memcmp(&mask, &after, sizeof(uint64_t)) != 0)
			fail("the signal mask", round, result);
		if ((end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000 < WAIT_MS - 1)
			fail("the waiting time", round, result);
	}
	printf("equal\n");
	return 0;
}
