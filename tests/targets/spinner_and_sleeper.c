// SPDX-License-Identifier: Apache-2.0
// A thread that makes no system call, and one that wakes up often to wait for the same CPU: it is blocked only now
// and then. What a forwarder with its control thread on one core looks like.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static void *sleep_on(void *nothing)
{
	for (;;)
		usleep(2000);
	return nothing;
}

int main(void)
{
	pthread_t sleeper;
	cpu_set_t first;
	CPU_ZERO(&first);
	for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&first); cpu++) {
		CPU_SET(cpu, &first);
		if (sched_setaffinity(0, sizeof(first), &first) != 0)
			CPU_ZERO(&first);
	}
	if (pthread_create(&sleeper, NULL, sleep_on, NULL) != 0)
		return 1;
	for (volatile unsigned long turns = 0;; turns++)
		;
}
