// SPDX-License-Identifier: Apache-2.0
// A library whose constructor makes threads and installs a handler, before the first instruction of the
// program that is linked to it.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static void *sleep_for_ever(void *argument)
{
	for (;;)
		usleep(1000);
	return argument;
}

static void ignore(int number)
{
	(void)number;
}

__attribute__((constructor)) static void begin(void)
{
	pthread_t thread;
	signal(SIGUSR1, ignore);
	for (int i = 0; i < 3; i++)
		pthread_create(&thread, NULL, sleep_for_ever, NULL);
}
