// SPDX-License-Identifier: Apache-2.0
#include "inspect.h"
#include "patch_process.h"
#include "ptrace.h"
#include <errno.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

#ifndef PTRACE_SECCOMP_GET_FILTER
#define PTRACE_SECCOMP_GET_FILTER 0x420c
#endif
#define PATIENCE_NS 10000000000ull
#define INSTRUCTIONS_MAX 32768 // the kernel's limit for all filters of a thread
#define FILTERS_MAX 1024

struct look {
	int32_t tid;
	int wants_filters;
	uint64_t base;
	uint32_t lengths[FILTERS_MAX];
	struct nfp_instruction programs[INSTRUCTIONS_MAX];
};

static int read_filters(struct look *look)
{
	uint32_t used = 0;
	for (int index = 0; index < FILTERS_MAX; index++) {
		long count = ptrace(PTRACE_SECCOMP_GET_FILTER, look->tid, (long)index, 0);
		if (count < 0)
			return errno == ENOENT || errno == EINVAL ? index : -errno;
		if ((unsigned long)count > INSTRUCTIONS_MAX - used)
			return -E2BIG;
		count = ptrace(PTRACE_SECCOMP_GET_FILTER, look->tid, (long)index, look->programs + used);
		if (count < 0)
			return -errno;
		look->lengths[index] = (uint32_t)count;
		used += (uint32_t)count;
	}
	return -E2BIG;
}

static int look_here(void *shared)
{
	struct look *look = shared;
	struct nfp_seized thread;
	int result = nfp_seize(look->tid, &thread);
	if (result)
		return result;
	result = nfp_interrupt(&thread);
	if (!result)
		result = nfp_wait_interrupted(&thread, nfp_now_ns() + PATIENCE_NS);
	if (!result) {
		look->base = nfp_registers_base(&thread.registers);
		if (look->wants_filters)
			result = read_filters(look);
	}
	nfp_release(&thread);
	return result;
}

// Copies what was read, if there is room for it.
static int hand_over(const struct look *look, int count, struct nfp_instruction *programs, uint32_t room,
                     uint32_t *lengths, uint32_t lengths_room)
{
	uint32_t used = 0;
	for (int i = 0; i < count; i++)
		used += look->lengths[i];
	if (used > room || (uint32_t)count > lengths_room)
		return -E2BIG;
	memcpy(programs, look->programs, used * sizeof(*programs));
	memcpy(lengths, look->lengths, (size_t)count * sizeof(*lengths));
	return count;
}

int nfp_read_filters(int32_t tid, struct nfp_instruction *programs, uint32_t room, uint32_t *lengths,
                     uint32_t lengths_room)
{
	struct look *look = calloc(1, sizeof(*look));
	if (!look)
		return -ENOMEM;
	look->tid = tid;
	look->wants_filters = 1;
	int result = nfp_patch_process(look_here, look);
	if (result > 0)
		result = hand_over(look, result, programs, room, lengths, lengths_room);
	free(look);
	return result;
}

int nfp_read_thread_base(int32_t tid, uint64_t *base)
{
	struct look *look = calloc(1, sizeof(*look));
	if (!look)
		return -ENOMEM;
	look->tid = tid;
	int result = nfp_patch_process(look_here, look);
	*base = look->base;
	free(look);
	return result;
}
