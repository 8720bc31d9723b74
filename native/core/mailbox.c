// SPDX-License-Identifier: Apache-2.0
// One command at a time, one monitor at a time (it holds the session's lock).
#define _GNU_SOURCE
#include "mailbox.h"
#include "address_space.h"
#include "ptrace.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint32_t post(struct nfp_session_header *header, uint32_t command)
{
	header->command = command;
	uint32_t request = header->request + 1;
	__atomic_store_n(&header->request, request, __ATOMIC_RELEASE); // partner: serve() in helper.c
	syscall(SYS_futex, &header->request, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return request;
}

uint32_t nfp_mailbox_post(struct nfp_session_header *header, uint32_t command, const uint64_t arguments[4])
{
	memcpy(header->argument, arguments, sizeof(header->argument));
	return post(header, command);
}

int nfp_mailbox_answered(struct nfp_session_header *header, uint32_t request, uint64_t pause_ns)
{
	uint32_t reply = __atomic_load_n(&header->reply, __ATOMIC_ACQUIRE); // partner: serve() in helper.c
	if (reply == request)
		return 1;
	struct timespec pause = {0, (long)pause_ns};
	syscall(SYS_futex, &header->reply, FUTEX_WAIT, reply, &pause, NULL, 0);
	return __atomic_load_n(&header->reply, __ATOMIC_ACQUIRE) == request;
}

int nfp_mailbox_ask(struct nfp_session_header *header, uint32_t command, const uint64_t arguments[4],
                    uint64_t patience_ns, int32_t memory_fd, int32_t *result)
{
	uint32_t request = nfp_mailbox_post(header, command, arguments);
	uint64_t deadline_ns = nfp_now_ns() + patience_ns;
	while (!nfp_mailbox_answered(header, request, 10000000))
		if (nfp_now_ns() > deadline_ns || nfp_memory_is_gone(memory_fd))
			return nfp_now_ns() > deadline_ns ? -ETIMEDOUT : -ESTALE;
	*result = header->result;
	return 0;
}

void nfp_mailbox_send(struct nfp_session_header *header, uint32_t command)
{
	post(header, command);
}

uint64_t nfp_ticks_now(void)
{
	return nfp_ticks();
}
