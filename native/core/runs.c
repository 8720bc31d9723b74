// SPDX-License-Identifier: Apache-2.0
// Everything is allocated and laid out before the stop; between the reads and the writes only memory is copied.
#include "runs.h"
#include "patch_process.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PAGE_SHIFT 12

static int is_in_page(const struct nfp_run *run, const struct nfp_span *span)
{
	return run->address >> PAGE_SHIFT == (span->address + span->bytes - 1) >> PAGE_SHIFT;
}

int nfp_runs_make(struct nfp_runs *runs, const struct nfp_plan *plan)
{
	*runs = (struct nfp_runs){.plan = plan};
	runs->runs = nfp_patch_process_memory((plan->span_count + 1) * sizeof(*runs->runs));
	if (!runs->runs)
		return -ENOMEM;
	struct nfp_run *run = NULL;
	for (uint32_t i = 0; i < plan->span_count; i++) {
		const struct nfp_span *span = &plan->spans[i];
		if (!run || !is_in_page(run, span)) {
			run = &runs->runs[runs->count++];
			*run = (struct nfp_run){.address = span->address, .first_span = i};
		}
		run->bytes = (uint32_t)(span->address + span->bytes - run->address);
		run->spans++;
	}
	uint32_t total = 0;
	for (uint32_t i = 0; i < runs->count; i++) {
		runs->runs[i].offset = total;
		total += runs->runs[i].bytes;
	}
	runs->found = nfp_patch_process_memory(total + 1);
	runs->wanted = nfp_patch_process_memory(total + 1);
	if (!runs->found || !runs->wanted)
		return -ENOMEM;
	memset(runs->found, 0, total + 1); // no page faults later
	memset(runs->wanted, 0, total + 1);
	return 0;
}

void nfp_runs_touch(const struct nfp_runs *runs, int memory)
{
	uint8_t byte;
	for (uint32_t i = 0; i < runs->count; i++) {
		off_t address = (off_t)runs->runs[i].address;
		if (pread(memory, &byte, 1, address) == 1)
			(void)!pwrite(memory, &byte, 1, address);
	}
}

static int read_run(const struct nfp_run *run, int memory, uint8_t *buffer)
{
	return pread(memory, buffer + run->offset, run->bytes, (off_t)run->address) == (ssize_t)run->bytes;
}

static int write_run(const struct nfp_run *run, int memory, const uint8_t *buffer)
{
	ssize_t bytes = pwrite(memory, buffer + run->offset, run->bytes, (off_t)run->address);
	return bytes == (ssize_t)run->bytes ? 0 : bytes < 0 ? -errno : -EIO;
}

// Marks the changes of one run whose bytes, at `buffer`, are not those wanted by `is_after`.
static void check_run(struct nfp_runs *runs, const struct nfp_run *run, const uint8_t *buffer, int is_after)
{
	for (uint32_t i = run->first_span; i < run->first_span + run->spans; i++) {
		const struct nfp_span *span = &runs->plan->spans[i];
		struct nfp_change *change = &runs->plan->changes[span->change];
		const uint8_t *bytes = buffer + run->offset + (span->address - run->address);
		if (!change->failed &&
		    memcmp(bytes, is_after ? span->replacement : span->expected, span->bytes) != 0)
			change->failed = is_after ? NFP_CHANGE_UNREAD : NFP_CHANGE_UNEXPECTED;
	}
}

static void fail_run(struct nfp_runs *runs, const struct nfp_run *run)
{
	for (uint32_t i = run->first_span; i < run->first_span + run->spans; i++)
		runs->plan->changes[runs->plan->spans[i].change].failed = NFP_CHANGE_UNEXPECTED;
}

// Returns whether anything in the run changes.
static int compose_run(struct nfp_runs *runs, const struct nfp_run *run)
{
	int changes = 0;
	memcpy(runs->wanted + run->offset, runs->found + run->offset, run->bytes);
	for (uint32_t i = run->first_span; i < run->first_span + run->spans; i++) {
		const struct nfp_span *span = &runs->plan->spans[i];
		if (runs->plan->changes[span->change].failed)
			continue;
		memcpy(runs->wanted + run->offset + (span->address - run->address), span->replacement,
		       span->bytes);
		changes = 1;
	}
	return changes;
}

int nfp_runs_write(struct nfp_runs *runs, int memory)
{
	for (uint32_t i = 0; i < runs->count; i++) {
		const struct nfp_run *run = &runs->runs[i];
		if (read_run(run, memory, runs->found))
			check_run(runs, run, runs->found, 0);
		else
			fail_run(runs, run);
	}
	for (uint32_t i = 0; i < runs->count; i++) {
		if (!compose_run(runs, &runs->runs[i]))
			continue;
		int error = write_run(&runs->runs[i], memory, runs->wanted);
		if (!error)
			continue;
		for (uint32_t j = 0; j <= i; j++) // as it was: the target must not be left half changed
			if (compose_run(runs, &runs->runs[j]))
				write_run(&runs->runs[j], memory, runs->found);
		return error;
	}
	return 0;
}

void nfp_runs_verify(struct nfp_runs *runs, int memory)
{
	for (uint32_t i = 0; i < runs->count; i++) {
		const struct nfp_run *run = &runs->runs[i];
		if (!read_run(run, memory, runs->found))
			memset(runs->found + run->offset, 0, run->bytes);
		check_run(runs, run, runs->found, 1);
	}
}
