// SPDX-License-Identifier: Apache-2.0
// A program whose only thread is busy and looks at epoll a hundred times a second, as VPP's main thread does.
// An epoll_wait that fails (EINTR included) is told: attaching must not make it fail.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

static long now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

int main(void)
{
	int epoll = epoll_create1(0);
	struct epoll_event event;
	long polled = now_ns();
	for (unsigned long turns = 0;; turns++) {
		volatile char *block = malloc(64 + turns % 4096);
		block[0] = 1;
		free((void *)block);
		if (now_ns() - polled < 10000000)
			continue;
		polled = now_ns();
		if (epoll_wait(epoll, &event, 1, 0) < 0) {
			printf("epoll_wait: %s\n", strerror(errno));
			fflush(stdout);
			return 1;
		}
	}
}
