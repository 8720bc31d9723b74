// SPDX-License-Identifier: Apache-2.0
// Calls functions that touch nothing with known values in every general, vector, mask and x87 register, MXCSR
// and the stack above, and compares all of them afterwards; in the main thread, in fresh threads and in a
// signal handler. Flags are not compared: no caller keeps anything in them.
#define _GNU_SOURCE
#include "commands.h"
#include "register_state.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define PACKETS 4
#define ALARM_US 100

struct buffer {
	uint8_t *data;
	uint16_t data_offset;
	uint32_t length;
	uint16_t segment_length;
};

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

__asm__(".text\n"
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
	"FUNCTION_END use_red_zone\n");

static const char *check(uint64_t seed)
{
	static const struct {
		void (*function)(void);
		int returns;
	} calls[] = {{touch_nothing, 0}, {rx_burst, 1}, {tx_burst, 1}, {drop_burst, 0}, {use_red_zone, 0}};
	struct state want, got;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		fill(&want, seed * 8 + i);
		want.general[RSI] = (uint64_t)burst;
		want.general[RDX] = PACKETS;
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
	// The first call gives the thread its ring. A handler that interrupts just that loses its records, counted: the
	// alarms begin after it.
	const char *difference = check(0);
	handled = 0;
	setitimer(ITIMER_REAL, &fast, NULL);
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
