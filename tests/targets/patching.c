// SPDX-License-Identifier: Apache-2.0
// Functions whose first instruction stands at every offset 0..63 of a cache line, with ready-made trampolines,
// called without end by many threads that check every result.
//
//   long_K   first instruction of 7 bytes: room for a jump
//   short_K  first instruction of 3 bytes: room for a short jump to the padding behind the function
//
// Each function counts its calls, each trampoline those that came through it, each thread what it called.
#define _GNU_SOURCE
#include "commands.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define STRING(text) #text
#define NAMED(text) STRING(text)
#define COUNT 64
#define ADDED 1000
#define THREADS_MAX 256

long executed, through_trampoline;

// clang-format off
__asm__(
    ".pushsection .text.sites,\"ax\",@progbits\n"
    ".altmacro\n"
    ".macro one k\n"
    "	.p2align 6, 0xcc\n"
    "	.if \\k\n	.skip \\k, 0xcc\n	.endif\n"
    "	.globl long_\\k, short_\\k\n"
    "	.type long_\\k, @function\n"
    "long_\\k:\n"
    "	.cfi_startproc\n"
    "	leaq " NAMED(ADDED) "+\\k(%rdi), %rax\n"
    "	lock incq executed(%rip)\n"
    "	ret\n"
    "	.cfi_endproc\n"
    "	.size long_\\k, .-long_\\k\n"
    "	.p2align 6, 0xcc\n"
    "	.if \\k\n	.skip \\k, 0xcc\n	.endif\n"
    "	.type short_\\k, @function\n"
    "short_\\k:\n"
    "	.cfi_startproc\n"
    "	movq %rdi, %rax\n"
    "	addq $" NAMED(ADDED) "+\\k, %rax\n"
    "	lock incq executed(%rip)\n"
    "	ret\n"
    "	.cfi_endproc\n"
    "	.size short_\\k, .-short_\\k\n"
    "	.skip 5, 0xcc\n" // the island
    "	.pushsection .text.ways,\"ax\",@progbits\n"
    "	.globl way_long_\\k, way_short_\\k\n"
    "way_long_\\k:\n"
    "	lock incq through_trampoline(%rip)\n"
    "	leaq " NAMED(ADDED) "+\\k(%rdi), %rax\n"
    "	jmp long_\\k+7\n"
    "way_short_\\k:\n"
    "	lock incq through_trampoline(%rip)\n"
    "	movq %rdi, %rax\n"
    "	jmp short_\\k+3\n"
    "	.popsection\n"
    "	.pushsection .data.rel.table,\"aw\",@progbits\n"
    "	.quad long_\\k, short_\\k\n"
    "	.popsection\n"
    ".endm\n"
    ".pushsection .data.rel.table,\"aw\",@progbits\n"
    ".globl functions\n"
    "functions:\n"
    ".popsection\n"
    ".set i, 0\n"
    ".rept 64\n"
    "	one %i\n"
    "	.set i, i+1\n"
    ".endr\n"
    ".noaltmacro\n"
    ".popsection\n");
// clang-format on

extern long (*const functions[2 * COUNT])(long);
static volatile int running, wrong;
static long called;
static volatile long own_traps;
static pthread_t callers[THREADS_MAX];
static long caller_count;

// Calls every function once. The functions' own counter shows that each call ran its body once.
static long call_all(long x)
{
	for (long i = 0; i < 2 * COUNT; i++)
		if (functions[i](x) != x + ADDED + i / 2)
			wrong = 1;
	return 2 * COUNT;
}

static void *call_on(void *argument)
{
	long made = 0;
	(void)argument;
	while (running)
		made += call_all(made);
	__atomic_fetch_add(&called, made, __ATOMIC_RELAXED);
	return NULL;
}

static const char *verdict(void)
{
	return wrong ? "a result is wrong" : executed != called ? "calls are missing" : "right";
}

static const char *run_start(long count)
{
	running = 1;
	for (caller_count = 0; caller_count < count; caller_count++)
		if (pthread_create(&callers[caller_count], NULL, call_on, NULL) != 0)
			return "pthread_create failed";
	return "started";
}

static const char *run_stop(long count)
{
	(void)count;
	running = 0;
	for (long i = 0; i < caller_count; i++)
		pthread_join(callers[i], NULL);
	return verdict();
}

static const char *run_through(long count)
{
	static char text[32];
	(void)count;
	snprintf(text, sizeof(text), "%ld", through_trampoline);
	return text;
}

static void *call_once(void *argument)
{
	__atomic_fetch_add(&called, call_all(7), __ATOMIC_RELAXED);
	return argument;
}

// Threads are made and end without pause, each calls every function.
static void *make_threads(void *argument)
{
	while (running) {
		pthread_t threads[4];
		for (int i = 0; i < 4; i++)
			if (pthread_create(&threads[i], NULL, call_once, NULL) != 0)
				wrong = 1;
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
	}
	return argument;
}

static void call_in_child(void)
{
	for (long i = 0; i < 2 * COUNT; i++)
		if (functions[i](i) != i + ADDED + i / 2)
			_exit(1);
	_exit(0);
}

static pid_t make_forked(void)
{
	pid_t child = fork();
	if (child == 0)
		call_in_child();
	return child;
}

static pid_t make_sharing(void)
{
	pid_t child = vfork();
	if (child == 0)
		call_in_child();
	return child;
}

// Children are forked and made by vfork without pause, and call every function.
static void *make_children(void *argument)
{
	long by_vfork = 0;
	while (running) {
		int status;
		by_vfork = !by_vfork;
		pid_t child = by_vfork ? make_sharing() : make_forked();
		if (by_vfork) // it counted in our memory
			__atomic_fetch_add(&called, 2 * COUNT, __ATOMIC_RELAXED);
		if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
			wrong = 1;
	}
	return argument;
}

static const char *start_one(void *(*work)(void *))
{
	running = 1;
	caller_count = 1;
	return pthread_create(&callers[0], NULL, work, NULL) == 0 ? "started" : "pthread_create failed";
}

static const char *run_storm(long count)
{
	(void)count;
	return start_one(make_threads);
}

static const char *run_children(long count)
{
	(void)count;
	return start_one(make_children);
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	(void)context;
	__atomic_fetch_add(&own_traps, 1, __ATOMIC_RELAXED);
}

// A handler of its own for SIGTRAP, with flags and a mask that can be compared.
static const char *run_handler(long count)
{
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_RESTART};
	(void)count;
	sigaddset(&action.sa_mask, SIGUSR2);
	return sigaction(SIGTRAP, &action, NULL) == 0 ? "installed" : "refused";
}

static const char *run_is_handled(long count)
{
	struct sigaction found;
	(void)count;
	sigaction(SIGTRAP, NULL, &found);
	return found.sa_sigaction == on_trap && (found.sa_flags & SA_RESTART) && sigismember(&found.sa_mask, SIGUSR2)
	           ? "mine"
	           : "not mine";
}

// Executes its own int3 and calls every function, in turn.
static void *trap_on(void *argument)
{
	long mine = 0;
	while (running) {
		__asm__ volatile("int3");
		mine++;
		__atomic_fetch_add(&called, call_all(mine), __ATOMIC_RELAXED);
	}
	if (mine != own_traps)
		wrong = 1;
	return argument;
}

static const char *run_traps(long count)
{
	(void)count;
	own_traps = 0;
	return start_one(trap_on);
}

// Calls every function with SIGTRAP blocked for a moment, as pthread_create blocks all signals.
static void *block_on(void *argument)
{
	sigset_t trap;
	sigemptyset(&trap);
	sigaddset(&trap, SIGTRAP);
	while (running) {
		pthread_sigmask(SIG_BLOCK, &trap, NULL);
		__atomic_fetch_add(&called, call_all(3), __ATOMIC_RELAXED);
		pthread_sigmask(SIG_UNBLOCK, &trap, NULL);
		__atomic_fetch_add(&called, call_all(3), __ATOMIC_RELAXED);
	}
	return argument;
}

static const char *run_moments(long count)
{
	(void)count;
	return start_one(block_on);
}

static const char *run_block(long count)
{
	sigset_t trap;
	sigemptyset(&trap);
	sigaddset(&trap, SIGTRAP);
	return pthread_sigmask(count ? SIG_BLOCK : SIG_UNBLOCK, &trap, NULL) == 0 ? "done" : "refused";
}

static const char *run_ignore(long count)
{
	(void)count;
	return signal(SIGTRAP, SIG_IGN) != SIG_ERR ? "done" : "refused";
}

// Signals of its own arrive at threads that call every function.
static volatile long handled;

static void on_usr1(int signal)
{
	(void)signal;
	__atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&called, call_all(11), __ATOMIC_RELAXED);
}

static void *send_on(void *argument)
{
	long sent = 0;
	pthread_t other = callers[1];
	while (running) {
		long before = handled;
		pthread_kill(other, SIGUSR1);
		sent++;
		while (handled == before && running)
			;
	}
	if (sent != handled && sent != handled + 1) // the last one may have met a thread that had ended
		wrong = 1;
	return argument;
}

static const char *run_signals(long count)
{
	struct sigaction action = {.sa_handler = on_usr1};
	(void)count;
	handled = 0;
	sigaction(SIGUSR1, &action, NULL);
	running = 1;
	caller_count = 2;
	return pthread_create(&callers[1], NULL, call_on, NULL) == 0 &&
	               pthread_create(&callers[0], NULL, send_on, NULL) == 0
	           ? "started"
	           : "pthread_create failed";
}

// A thread that sleeps inside a function until it is woken.
static sem_t bed;

static __attribute__((noinline, noclone, used)) long nap(long x)
{
	while (sem_wait(&bed) != 0)
		;
	return x + 1;
}

static void *sleep_once(void *argument)
{
	if (nap(41) != 42)
		wrong = 1;
	return argument;
}

static const char *run_nap(long count)
{
	(void)count;
	sem_init(&bed, 0, 0);
	return start_one(sleep_once);
}

static const char *run_wake(long count)
{
	(void)count;
	sem_post(&bed);
	return "woken";
}

int main(void)
{
	static const struct command commands[] = {
	    {"start", run_start},       {"stop", run_stop},       {"through", run_through}, {"storm", run_storm},
	    {"children", run_children}, {"handler", run_handler}, {"traps", run_traps},     {"moments", run_moments},
	    {"block", run_block},       {"ignore", run_ignore},   {"signals", run_signals}, {"handled", run_is_handled},
	    {"nap", run_nap},           {"wake", run_wake},       {NULL, NULL},
	};
	return obey(commands);
}
