// SPDX-License-Identifier: Apache-2.0
// Changes as a hostile probe table may name them, written into a file that stands for the target's memory: duplicate,
// overlapping, adjacent, many, empty, too long, near the end of all addresses. Nothing is written but the bytes of
// sound changes, and no buffer is left (AddressSanitizer: each piece of the patch process's memory is an allocation of its own).
#define _GNU_SOURCE
#include "check.h"
#include "patch_process.h"
#include "runs.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORY_BYTES = 1 << 16, MANY = 262144, SEEDS = 3000, FEW = 24 };

static void *pieces[16];
static uint32_t piece_count;

void *nfp_patch_process_memory(size_t bytes)
{
	return pieces[piece_count++] = calloc(1, bytes);
}

static void release(void)
{
	while (piece_count)
		free(pieces[--piece_count]);
}

static int is_inside(const struct nfp_change *change, uint64_t address)
{
	return address - change->address < change->bytes ||
	       (change->island && address - change->island < NFP_ISLAND_BYTES);
}

static int overlap(const struct nfp_change *one, const struct nfp_change *other)
{
	for (uint32_t i = 0; i < one->bytes; i++)
		if (is_inside(other, one->address + i))
			return 1;
	for (uint32_t i = 0; one->island && i < NFP_ISLAND_BYTES; i++)
		if (is_inside(other, one->island + i))
			return 1;
	return 0;
}

// The bytes of a target of zeros become those of the changes that are made.
static void apply(int memory, struct nfp_change *changes, uint32_t count)
{
	struct nfp_plan plan;
	struct nfp_runs runs;
	CHECK(nfp_plan_make(&plan, changes, count, NULL) == 0);
	CHECK(nfp_runs_make(&runs, &plan) == 0);
	nfp_runs_touch(&runs, memory);
	CHECK(nfp_runs_write(&runs, memory) == 0);
	nfp_runs_verify(&runs, memory);
}

static void check_bytes(int memory, const struct nfp_change *changes, uint32_t count)
{
	static uint8_t found[MEMORY_BYTES], wanted[MEMORY_BYTES];
	memset(wanted, 0, sizeof(wanted));
	for (uint32_t i = 0; i < count; i++) {
		if (changes[i].failed)
			continue;
		memcpy(wanted + changes[i].address, changes[i].replacement, changes[i].bytes);
		if (changes[i].island)
			memcpy(wanted + changes[i].island, changes[i].island_replacement, NFP_ISLAND_BYTES);
	}
	CHECK(pread(memory, found, sizeof(found), 0) == sizeof(found));
	CHECK(memcmp(found, wanted, sizeof(found)) == 0);
}

static void fuzz(int memory, unsigned long seed)
{
	static const uint8_t zeros[MEMORY_BYTES];
	static struct nfp_change changes[FEW];
	unsigned long state = seed * 0x9e3779b97f4a7c15u + 1;
	uint32_t count = 1 + (uint32_t)(next_random(&state) % FEW),
	         span = 1u << (6 + next_random(&state) % 8);
	CHECK(pwrite(memory, zeros, sizeof(zeros), 0) == sizeof(zeros));
	for (uint32_t i = 0; i < count; i++) {
		unsigned long random = next_random(&state);
		changes[i] = (struct nfp_change){.address = 4096 - 40 + (random >> 8) % span,
		                                 .bytes = (uint32_t)(random >> 32) % 34};
		if (random % 16 == 0)
			changes[i].address = UINT64_MAX - (random >> 40) % 40;
		if (random % 8 == 1)
			changes[i].island = 4096 - 40 + (random >> 20) % span;
		memset(changes[i].replacement, 1 + (int)i, 32);
		memset(changes[i].island_replacement, 0x80 + (int)i, 8);
	}
	apply(memory, changes, count);
	for (uint32_t i = 0; i < count; i++) {
		int sound =
		    changes[i].bytes && changes[i].bytes <= 32 && changes[i].address < MEMORY_BYTES &&
		    !(changes[i].island && changes[i].island - changes[i].address < changes[i].bytes) &&
		    !(changes[i].island && changes[i].address - changes[i].island < NFP_ISLAND_BYTES);
		for (uint32_t j = 0; sound && j < count; j++) // one that is left out for itself is no matter
			if (i != j && changes[j].bytes <= 32 && changes[j].bytes &&
			    changes[j].address < MEMORY_BYTES)
				sound = !overlap(&changes[i], &changes[j]);
		CHECK((changes[i].failed == 0) == sound);
	}
	check_bytes(memory, changes, count);
	release();
}

// As many as a probe table has: all at one place, each overlapping the next, or side by side.
static void many(int memory, uint32_t apart, uint32_t made)
{
	struct nfp_change *changes = calloc(MANY, sizeof(*changes));
	uint32_t found = 0;
	CHECK(changes && ftruncate(memory, 0) == 0);
	CHECK(ftruncate(memory, (off_t)MANY * 8 + 64) == 0);
	for (uint32_t i = 0; i < MANY; i++) {
		changes[i] = (struct nfp_change){.address = (uint64_t)apart * (MANY - i), .bytes = 5};
		memset(changes[i].replacement, 0xa5, 5);
	}
	apply(memory, changes, MANY);
	for (uint32_t i = 0; i < MANY; i++)
		found += !changes[i].failed;
	CHECK(found == made);
	free(changes);
	release();
}

int main(void)
{
	int memory = memfd_create("target", 0);
	CHECK(memory >= 0 && ftruncate(memory, MEMORY_BYTES) == 0);
	for (unsigned long seed = 1; seed <= SEEDS; seed++)
		fuzz(memory, seed);
	many(memory, 0, 0);
	many(memory, 4, 0);
	many(memory, 5, MANY);
	many(memory, 8, MANY);
	printf("runs: %d plans of hostile changes, %d at once\n", SEEDS, MANY);
	return 0;
}
