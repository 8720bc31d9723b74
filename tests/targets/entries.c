// SPDX-License-Identifier: Apache-2.0
// Calls the functions of entry_points.c through GOT slots with known values in every register; compares what
// they found at their entry, and what came back. In the main thread, in fresh threads and in a signal handler.
#define _GNU_SOURCE
#include "commands.h"
#include "register_state.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

#define ALARM_US 100
#define STACK_WORDS 8

void through_slot_look_at_registers(void);
void through_slot_look_at_arguments(void);
void through_slot_touch_nothing(void);
void through_slot_jump_on(void);
void through_slot_loop_in_red_zone(void);

__asm__(".macro THROUGH_SLOT name\n"
	"FUNCTION through_slot_\\name\n jmp *\\name@GOTPCREL(%rip)\nFUNCTION_END through_slot_\\name\n"
	".endm\n"
	"THROUGH_SLOT look_at_registers\n"
	"THROUGH_SLOT look_at_arguments\n"
	"THROUGH_SLOT touch_nothing\n"
	"THROUGH_SLOT jump_on\n"
	"THROUGH_SLOT loop_in_red_zone\n");

static const struct {
	const char *name;
	void (*function)(void);
	int looks; // at the registers
	int words; // of the stack, too
} calls[] = {
	{"look_at_registers", through_slot_look_at_registers, 1, 0},
	{"look_at_arguments", through_slot_look_at_arguments, 1, STACK_WORDS},
	{"touch_nothing", through_slot_touch_nothing, 0, 0},
	{"jump_on", through_slot_jump_on, 1, 0},
	{"loop_in_red_zone", through_slot_loop_in_red_zone, 0, 0},
};

static volatile sig_atomic_t handled;
static const char *volatile trouble;
static char text[128];

static const char *check_one(size_t number, uint64_t seed)
{
	struct state want, got, seen;
	fill(&want, seed * 8 + number);
	memset(&got, 0, sizeof(got));
	memset(&seen, 0, sizeof(seen));
	want.general[RDI] = (uint64_t)&seen;
	call_with(&want, &got, calls[number].function);
	const char *difference = compare(&want, &got, 0);
	if (difference || !calls[number].looks)
		return difference;
	if (seen.general[RSP] % 16 != 8)
		return "the stack is not aligned at the entry";
	memcpy(seen.stack + calls[number].words, want.stack + calls[number].words,
	       sizeof(want.stack) - 8 * (size_t)calls[number].words);
	return compare(&want, &seen, 0);
}

static const char *check(uint64_t seed)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		const char *difference = check_one(i, seed);
		if (difference) {
			snprintf(text, sizeof(text), "%s: %s, round %lu", calls[i].name, difference, (unsigned long)seed);
			return text;
		}
	}
	return NULL;
}

static const char *run_main(long count)
{
	const char *difference = NULL;
	for (long i = 0; i < count && !difference; i++)
		difference = check((uint64_t)i);
	return difference ? difference : "equal";
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
	for (uint64_t i = 0; handled < count && !trouble && !difference; i++)
		difference = check(i);
	setitimer(ITIMER_REAL, &off, NULL);
	return difference ? difference : trouble ? trouble : "equal";
}

int main(void)
{
	has_avx512 = __builtin_cpu_supports("avx512bw");
	static const struct command commands[] = {
		{"main", run_main}, {"threads", run_threads}, {"signals", run_signals}, {NULL, NULL}};
	return obey(commands);
}
