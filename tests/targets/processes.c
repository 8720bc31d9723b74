// SPDX-License-Identifier: Apache-2.0
// Other ways than fork to make a process or to leave a stack: posix_spawn, popen, clone on the parent's memory,
// exec of itself (from its main thread and from another one), and a switch of stacks without any library.
#define _GNU_SOURCE
#include "commands.h"
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define STACK_BYTES 65536

extern char **environ;
static char **arguments;

static NOINLINE long step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static int is_status(pid_t child, int expected)
{
	int status;
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == expected;
}

static NOINLINE const char *spawn_once(void)
{
	char *words[] = {"sh", "-c", "exit 5", NULL};
	pid_t child;
	if (posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ) != 0)
		return "posix_spawn failed";
	return is_status(child, 5) ? "right" : "wrong";
}

static NOINLINE const char *read_once(void)
{
	char line[16] = "";
	FILE *pipe = popen("echo said", "r");
	if (!pipe || !fgets(line, sizeof(line), pipe) || strcmp(line, "said\n") != 0)
		return "popen failed";
	return pclose(pipe) == 0 && system("exit 3") == 3 << 8 ? "right" : "wrong";
}

// Runs on its parent's memory and thread-local storage, on a stack of its own, while the parent waits.
static NOINLINE int run_child(void *argument)
{
	long *result = argument;
	*result = step(*result);
	return 9;
}

static NOINLINE const char *clone_once(void)
{
	static char stack[STACK_BYTES] __attribute__((aligned(16)));
	long result = step(0);
	pid_t child = clone(run_child, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, &result);
	return child > 0 && is_status(child, 9) && result == 2 ? "right" : "wrong";
}

static const char *repeat(const char *(*once)(void), long count)
{
	for (long i = 0; i < count; i++) {
		const char *answer = once();
		if (strcmp(answer, "right") != 0)
			return answer;
	}
	return "right";
}

static const char *run_spawns(long count)
{
	return repeat(spawn_once, count);
}

static const char *run_pipes(long count)
{
	return repeat(read_once, count);
}

static const char *run_clones(long count)
{
	return repeat(clone_once, count);
}

// ---- a switch of stacks: pushes what a callee must keep, changes rsp, pops the other's --------------------

__asm__(".text\n"
        ".type switch_stack, @function\n"
        "switch_stack:\n" // (where to keep this rsp, the other rsp)
        ".cfi_startproc\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size switch_stack, .-switch_stack\n");
void switch_stack(void **kept, void *other);

static void *own_stack, *other_stack;
static long switches;

static NOINLINE void leave(void)
{
	switch_stack(&other_stack, own_stack);
}

static NOINLINE void visit(void)
{
	switch_stack(&own_stack, other_stack);
}

static NOINLINE void live_there(void)
{
	for (;;) {
		switches = step(switches);
		leave();
	}
}

static const char *run_switches(long count)
{
	static uint64_t stack[STACK_BYTES / 8] __attribute__((aligned(16)));
	uint64_t *top = stack + STACK_BYTES / 8 - 8;
	if (!other_stack) {
		top[6] = (uint64_t)(uintptr_t)live_there;
		top[7] = 0;
		other_stack = top;
	}
	switches = 0;
	for (long i = 0; i < count; i++)
		visit();
	return switches == count ? "right" : "wrong";
}

// ---- exec ---------------------------------------------------------------------------------------------------

static NOINLINE void *become_new(void *argument)
{
	execv("/proc/self/exe", arguments);
	return argument;
}

static const char *run_exec(long from_thread)
{
	pthread_t thread;
	if (!from_thread)
		become_new(NULL);
	else if (pthread_create(&thread, NULL, become_new, NULL) == 0)
		pthread_join(thread, NULL);
	return "exec failed";
}

static const char *run_steps(long count)
{
	for (long i = 0; i < count; i++)
		if (step(i) != i + 1)
			return "wrong";
	return "right";
}

int main(int argc, char **argv)
{
	static const struct command commands[] = {{"spawns", run_spawns},
	                                          {"pipes", run_pipes},
	                                          {"clones", run_clones},
	                                          {"switches", run_switches},
	                                          {"exec", run_exec},
	                                          {"steps", run_steps},
	                                          {NULL, NULL}};
	(void)argc;
	arguments = argv;
	return obey(commands);
}
