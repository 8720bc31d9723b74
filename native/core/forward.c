// SPDX-License-Identifier: Apache-2.0
// The handler is C because it needs the sender: Python's handlers are not told. It calls kill only.
#define _GNU_SOURCE
#include "forward.h"
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

static const int forwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
#define COUNT (sizeof(forwarded) / sizeof(forwarded[0]))

static volatile pid_t program;
static struct sigaction before[COUNT];

static void forward(int number, siginfo_t *info, void *context)
{
	int saved = errno;
	pid_t pid = program;
	(void)context;
	int from_process = info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
	// A program that signals its whole group has got its own signal.
	if (pid > 0 && from_process && info->si_pid != pid)
		kill(pid, number);
	errno = saved;
}

void nfp_forward_begin(int32_t pid)
{
	struct sigaction action = {.sa_sigaction = forward, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigemptyset(&action.sa_mask);
	program = pid;
	for (size_t i = 0; i < COUNT; i++) {
		sigaction(forwarded[i], NULL, &before[i]);
		if (before[i].sa_handler != SIG_IGN)
			sigaction(forwarded[i], &action, NULL);
	}
}

void nfp_forward_end(void)
{
	program = 0;
	for (size_t i = 0; i < COUNT; i++)
		sigaction(forwarded[i], &before[i], NULL);
}
