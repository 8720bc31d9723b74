// SPDX-License-Identifier: Apache-2.0
// The kernel's list of threads leaves living ones out while others end: a threads without one of them is known not to be whole.
#define _GNU_SOURCE
#include "check.h"
#include "thread_set.h"
#include "patch_process.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 40 };

static int ready[2];

static void *stay(void *unused)
{
	CHECK(write(ready[1], "x", 1) == 1);
	pause();
	return unused;
}

// The child's first thread ends where `leads` is 0, and stays in the list.
static pid_t make_target(int leads)
{
	CHECK(pipe(ready) == 0);
	pid_t child = fork();
	if (child == 0) {
		pthread_t thread;
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_create(&thread, NULL, stay, NULL) == 0);
		if (!leads)
			syscall(SYS_exit, 0);
		pause();
	}
	char byte;
	for (int i = 0; i < THREADS; i++)
		CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	return child;
}

static int look(void *shared)
{
	int leads = *(int *)shared;
	struct nfp_thread_set threads;
	pid_t target = make_target(leads);
	CHECK(nfp_thread_set_make(&threads, target, 0) == 0);
	CHECK(!nfp_thread_set_is_whole(&threads));
	while (nfp_thread_set_seize_new(&threads) != 0)
		; // the first thread may be on its way out
	CHECK(threads.count >= THREADS);
	for (int i = 0; !leads && i < 1000 && !nfp_thread_set_is_whole(&threads); i++) {
		int status;
		if (waitpid(target, &status, __WALL | WNOHANG) == target)
			nfp_thread_set_find(&threads, target)->gone = 1;
		usleep(1000);
	}
	CHECK(nfp_thread_set_is_whole(&threads));
	struct nfp_seized left_out = threads.items[--threads.count];
	CHECK(!nfp_thread_set_is_whole(&threads));
	threads.items[threads.count++] = left_out;
	CHECK(nfp_thread_set_is_whole(&threads));
	kill(target, SIGKILL);
	return 0;
}

int main(void)
{
	for (int leads = 0; leads < 2; leads++)
		CHECK(nfp_patch_process(look, &leads) == 0);
	printf("threads: threads that the list leaves out are missed\n");
	return 0;
}
