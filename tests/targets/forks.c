// SPDX-License-Identifier: Apache-2.0
// Forks children that live on, do what they are told, and end together.
//   fork N    the program forks N children; answers their process ids
//   grow      each child forks one itself; answers the process ids of the new ones
//   go K      child number i, from 1, calls getppid and step K + i times, and mixed K times in a thread of its own
//   short N   forks N children, one after the other, that call step once and end
//   exec N    forks N children that become another program at once; answers their process ids
//   wait      waits for a child that was killed
//   end       the children end; says whether each of them ended as it should
#define _GNU_SOURCE
#include "commands.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, used))
#define CHILDREN_MAX 256
#define PAUSE_US 2000
#define STATUS 3

// All processes share it.
static struct {
	volatile int born, done, ending; // children
	volatile int goes, growths; // how often they were told
	volatile long calls;
	volatile pid_t pids[CHILDREN_MAX];
} *all;
static char answer[CHILDREN_MAX * 12];
static pid_t other_programs[CHILDREN_MAX];
static int others;
static volatile long sink;

static NOINLINE long step(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static NOINLINE long mixed(long x)
{
	__asm__ volatile("" : "+r"(x));
	return x ^ 1;
}

static void *mix(void *unused)
{
	for (long i = 0; i < all->calls; i++)
		sink = mixed(i);
	return unused;
}

static void work(int number)
{
	pthread_t thread;
	for (long i = 0; i < all->calls + number; i++)
		sink = step(getppid());
	if (pthread_create(&thread, NULL, mix, NULL) != 0 || pthread_join(thread, NULL) != 0)
		_exit(9);
	__atomic_fetch_add(&all->done, 1, __ATOMIC_SEQ_CST);
}

static int is_right(pid_t child)
{
	int status;
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == STATUS;
}

static int be_born(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int index = __atomic_fetch_add(&all->born, 1, __ATOMIC_SEQ_CST);
	all->pids[index] = getpid();
	return index + 1;
}

static void live(void)
{
	int number = be_born(), goes = all->goes, growths = all->growths;
	pid_t child = 0;
	while (!all->ending) {
		if (all->goes > goes) {
			goes++;
			work(number);
		}
		if (all->growths > growths) {
			growths++;
			child = fork();
			if (child == 0)
				number = be_born();
		}
		usleep(PAUSE_US);
	}
	_exit(!child || is_right(child) ? STATUS : 9);
}

static const char *list_pids(int from, int to)
{
	int length = 0;
	while (all->born < to || !all->pids[to - 1])
		usleep(PAUSE_US);
	for (int i = from; i < to; i++)
		length += sprintf(answer + length, "%s%d", i > from ? " " : "", (int)all->pids[i]);
	return answer;
}

static const char *fork_children(long count)
{
	int before = all->born;
	for (long i = 0; i < count; i++)
		if (fork() == 0)
			live();
	return list_pids(before, before + (int)count);
}

static const char *grow(long unused)
{
	int before = all->born;
	(void)unused;
	all->growths++;
	return list_pids(before, 2 * before);
}

static const char *go(long calls)
{
	all->calls = calls;
	all->done = 0;
	all->goes++;
	while (all->done < all->born)
		usleep(PAUSE_US);
	return "right";
}

static const char *fork_short(long count)
{
	for (long i = 0; i < count; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit((int)step(STATUS - 1));
		if (!is_right(child))
			return "wrong";
	}
	return "right";
}

static const char *exec_children(long count)
{
	int length = 0;
	for (long i = 0; i < count && others < CHILDREN_MAX; i++) {
		pid_t child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			execlp("sleep", "sleep", "1000", NULL);
			_exit(9);
		}
		other_programs[others++] = child;
		length += sprintf(answer + length, "%s%d", i ? " " : "", (int)child);
	}
	return answer;
}

static const char *wait_for_killed(long unused)
{
	int status;
	(void)unused;
	all->born--;
	return wait(&status) > 0 && WIFSIGNALED(status) ? "right" : "wrong";
}

static const char *end(long unused)
{
	int wrong = 0, status;
	(void)unused;
	all->ending = 1;
	for (int i = 0; i < others; i++)
		kill(other_programs[i], SIGKILL);
	for (pid_t child; (child = wait(&status)) > 0;)
		wrong += !(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == STATUS));
	return wrong ? "wrong" : "right";
}

int main(void)
{
	static const struct command commands[] = {
	    {"fork", fork_children},
	    {"grow", grow},
	    {"go", go},
	    {"short", fork_short},
	    {"exec", exec_children},
	    {"wait", wait_for_killed},
	    {"end", end},
	    {NULL, NULL},
	};
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return all == MAP_FAILED ? 1 : obey(commands);
}
