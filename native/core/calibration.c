// SPDX-License-Identifier: Apache-2.0
// A trampoline around a function that only returns, writing into a small ring that nobody reads. Its memory
// is executable and not writable when it runs. Nothing of a target is touched.
#define _GNU_SOURCE
#include "calibration.h"
#include "abi/ring.h"
#include "abi/session.h"
#include "arch/arch.h"
#include "trampoline.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CODE_BYTES 4096
#define CALLS 400
#define ROUNDS 301

static __thread struct nfp_thread *thread_pointer __attribute__((tls_model("initial-exec")));
typedef void (*function)(void);

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

// The ring is not to end before the calls do.
static uint64_t median_ticks(function call, struct nfp_thread *thread)
{
	uint64_t ticks[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		thread->cursor = thread->base;
		uint64_t start = nfp_ticks();
		for (int i = 0; i < CALLS; i++)
			call();
		ticks[round] = nfp_ticks() - start;
	}
	qsort(ticks, ROUNDS, sizeof(ticks[0]), compare);
	return ticks[ROUNDS / 2];
}

// The bare function stands behind the trampoline, which calls a copy of it.
static double measure(uint8_t *code, uint8_t *ring)
{
	static struct nfp_thread_shared shared;
	struct nfp_thread thread = {.gate = NFP_GATE_OUTER,
	                            .limit = UINT64_MAX,
	                            .base = (uint64_t)(uintptr_t)ring,
	                            .ring_bytes = NFP_RING_BYTES_MIN,
	                            .shared = &shared};
	struct nfp_trampoline values = {
	    .tls_offset = (int32_t)((uint64_t)&thread_pointer - nfp_thread_base()), .gate = NFP_GATE_OUTER};
	uint32_t bytes = nfp_trampoline_write(NFP_SHAPE_CALL, &values, code, CODE_BYTES / 2);
	if (!bytes)
		return -ENOSYS;
	memcpy(code + bytes, NFP_RETURN, NFP_RETURN_BYTES);
	memcpy(code + CODE_BYTES / 2, NFP_RETURN, NFP_RETURN_BYTES);
	if (mprotect(code, CODE_BYTES, PROT_READ | PROT_EXEC) != 0)
		return -errno;
	thread_pointer = &thread;
	double best = 1e9;
	for (int repeat = 0; repeat < 5; repeat++) {
		uint64_t bare = median_ticks((function)(void *)(code + CODE_BYTES / 2), &thread);
		uint64_t probed = median_ticks((function)(void *)code, &thread);
		double added = probed > bare ? (double)(probed - bare) / CALLS : 0;
		best = added < best ? added : best;
	}
	thread_pointer = NULL;
	return best;
}

double nfp_calibrate_call(void)
{
	uint8_t *code = mmap(NULL, CODE_BYTES + NFP_RING_BYTES_MIN, PROT_READ | PROT_WRITE,
	                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		return -errno;
	double ticks = measure(code, code + CODE_BYTES);
	munmap(code, CODE_BYTES + NFP_RING_BYTES_MIN);
	return ticks;
}
