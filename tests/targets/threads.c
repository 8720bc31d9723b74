// SPDX-License-Identifier: Apache-2.0
// Many threads, short threads, signals at 10 kHz and child processes, all calling the same small functions. It
// counts its own calls: `calls` answers how many there were since it was asked last.
#define _GNU_SOURCE
#include "commands.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define ALARM_US 100
#define PAUSE_TURNS 2000
#define CHILD_CALLS 1000

static long made;
static volatile sig_atomic_t handled;

static NOINLINE long step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static NOINLINE long two_steps(long x)
{
	x = step(x);
	__asm__ volatile("" : "+r"(x));
	x = step(x);
	__asm__ volatile("" : "+r"(x));
	return x;
}

static void *work(void *argument)
{
	long count = (long)argument, x = 0;
	for (long i = 0; i < count; i++)
		x = two_steps(x);
	__atomic_fetch_add(&made, count, __ATOMIC_RELAXED);
	return (void *)(intptr_t)(x == 2 * count);
}

static const char *run_many(long count) // 64 threads at once
{
	pthread_t threads[64];
	void *is_right;
	for (int i = 0; i < 64; i++)
		pthread_create(&threads[i], NULL, work, (void *)count);
	for (int i = 0; i < 64; i++) {
		pthread_join(threads[i], &is_right);
		if (!is_right)
			return "wrong";
	}
	return "right";
}

static const char *run_storm(long count) // short threads, one after the other, some side by side
{
	for (long i = 0; i < count; i += 4) {
		pthread_t threads[4];
		for (int j = 0; j < 4; j++)
			if (pthread_create(&threads[j], NULL, work, (void *)3) != 0)
				return "pthread_create failed";
		for (int j = 0; j < 4; j++)
			pthread_join(threads[j], NULL);
	}
	return "right";
}

static void on_alarm(int signal)
{
	(void)signal;
	two_steps(handled++);
	made++;
}

static const char *run_signals(long count)
{
	struct sigaction action = {.sa_handler = on_alarm};
	struct itimerval fast = {{0, ALARM_US}, {0, ALARM_US}}, off = {{0, 0}, {0, 0}};
	sigaction(SIGALRM, &action, NULL);
	// The thread's first record gives it a ring; a handler that interrupts just that loses its own records,
	// counted. One call before the alarms, so that what follows is exact.
	long own = two_steps(0) == 2;
	handled = 0;
	setitimer(ITIMER_REAL, &fast, NULL);
	for (; handled < count; own++) {
		if (two_steps(own) != own + 2)
			return "wrong";
		for (volatile int pause = 0; pause < PAUSE_TURNS; pause++)
			; // slow enough for a monitor that waits for a processor
	}
	setitimer(ITIMER_REAL, &off, NULL);
	made += own;
	return "right";
}

static void call_in_child(void)
{
	for (long i = 0; i < CHILD_CALLS; i++)
		if (two_steps(i) != i + 2)
			_exit(1);
}

static void *child_thread(void *argument)
{
	call_in_child();
	return argument;
}

// The child goes on inside the function that forked it, makes a thread of its own, and ends.
static NOINLINE int fork_inside(void)
{
	pid_t child = fork();
	if (child == 0) {
		pthread_t thread;
		call_in_child();
		if (pthread_create(&thread, NULL, child_thread, NULL) != 0 || pthread_join(thread, NULL) != 0)
			_exit(2);
		call_in_child();
		return -1;
	}
	int status;
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
}

static const char *run_forks(long count)
{
	for (long i = 0; i < count; i++) {
		int status = fork_inside();
		if (status < 0)
			_exit(0); // the child, back from the probed function
		if (status != 0)
			return "the child failed";
		two_steps(i);
		made++;
	}
	return "right";
}

// The fresh thread's very first probed call is made by a vfork child.
static void *vfork_first(void *argument)
{
	pid_t child = vfork();
	if (child == 0) {
		two_steps(1);
		_exit(two_steps(7) == 9 ? 0 : 1);
	}
	int status;
	waitpid(child, &status, 0);
	two_steps(1);
	__atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
	return status == 0 ? argument : NULL;
}

static NOINLINE int run_true(void)
{
	pid_t child = vfork();
	if (child == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	int status;
	waitpid(child, &status, 0);
	return status;
}

static const char *run_vforks(long count)
{
	for (long i = 0; i < count; i++) {
		pthread_t thread;
		void *result;
		pthread_create(&thread, NULL, vfork_first, &made);
		pthread_join(thread, &result);
		if (!result)
			return "the child failed";
		if (run_true() != 0 || system("exit 7") != 7 << 8)
			return "exec failed";
	}
	return "right";
}

// A child that goes on calling until it is told to stop by the end of its parent's pipe; it answers "done".
static int leash[2];
static const char *run_child(long count)
{
	static char answer[32];
	if (count == 0) {
		close(leash[1]);
		return "let go";
	}
	if (pipe(leash) != 0)
		return "no pipe";
	pid_t child = fork();
	if (child == 0) {
		char byte;
		close(leash[1]);
		call_in_child();
		while (read(leash[0], &byte, 1) > 0)
			;
		call_in_child();
		dprintf(1, "child done\n");
		_exit(0);
	}
	close(leash[0]);
	snprintf(answer, sizeof(answer), "%d", child);
	return answer;
}

static const char *run_calls(long count)
{
	static char answer[32];
	(void)count;
	snprintf(answer, sizeof(answer), "%ld", made);
	made = 0;
	return answer;
}

int main(void)
{
	static const struct command commands[] = {
		{"many", run_many},   {"storm", run_storm},   {"signals", run_signals}, {"forks", run_forks},
		{"calls", run_calls}, {"vforks", run_vforks}, {"child", run_child},	{NULL, NULL}};
	return obey(commands);
}
