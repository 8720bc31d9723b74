// SPDX-License-Identifier: Apache-2.0
// Stacks of a target as it may have written them, full of addresses in code that changes and of signal frames that are whole
// or not quite: only program counters in whole frames move, to where the plan says. Run under AddressSanitizer and UBSan.
// An argument: so many times as long.
#define _GNU_SOURCE
#include "check.h"
#include "arch/arch.h"
#include "change.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	STACK_BYTES = 160 << 10,
	SITES = 40,
	RESTORER = 8,
	FRAME_RIP = 176,
	FRAME_CS = 192,
	SITE = 0x10000,
	APART = 100,
	MOVED = 3,
	AWAY = 0x100000
};

void *nfp_patch_process_memory(size_t bytes)
{
	return calloc(1, bytes);
}

static void write_word(uint8_t *stack, uint64_t at, uint64_t word)
{
	if (at + 8 <= STACK_BYTES)
		memcpy(stack + at, &word, 8);
}

// Addresses of code everywhere, and frames that are whole or not quite.
static void write_stack(unsigned long *state, uint8_t *stack)
{
	static const uint8_t restorer[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
	for (uint64_t at = 0; at < STACK_BYTES; at += 8)
		write_word(stack, at,
		           next_random(state) % 8 ? SITE + next_random(state) % 4096 : next_random(state));
	for (int i = 0; i < 60; i++) {
		uint64_t at = next_random(state) % (STACK_BYTES / 8) * 8, damage = next_random(state) % 8;
		write_word(stack, at, damage ? RESTORER : next_random(state));
		uint64_t site = SITE + next_random(state) % SITES * APART;
		write_word(stack, at + FRAME_RIP, site + (next_random(state) % 256 ? MOVED : 1));
		write_word(stack, at + FRAME_CS, damage > 1 ? 0x33 : next_random(state));
	}
	memcpy(stack + RESTORER, restorer, sizeof(restorer));
}

// Only program counters in whole frames are changed, to where the plan says.
static void check_stack(const uint8_t *before, const uint8_t *after, int moved)
{
	int changed = 0;
	for (uint64_t at = 0; at < STACK_BYTES; at += 8) {
		uint64_t old, new, pretcode, segments;
		memcpy(&old, before + at, 8);
		memcpy(&new, after + at, 8);
		if (old == new)
			continue;
		CHECK(at >= FRAME_RIP && at + 24 <= STACK_BYTES && new == old + AWAY);
		memcpy(&pretcode, after + at - FRAME_RIP, 8);
		memcpy(&segments, after + at + FRAME_CS - FRAME_RIP, 8);
		CHECK(pretcode == RESTORER && (segments & 0xffff) == 0x33);
		changed++;
	}
	CHECK(moved < 0 || changed == moved);
}

// Places that are no stack, and those at the end of all addresses.
static uint64_t odd_pointer(unsigned long *state)
{
	unsigned long random = next_random(state);
	return random & 1 ? 0 - (random >> 8) % 300000 : random;
}

static int fuzz(unsigned long times)
{
	static struct nfp_change changes[SITES];
	static struct nfp_move moves[SITES];
	static uint8_t before[STACK_BYTES];
	unsigned long state = 77;
	int memory = memfd_create("target", 0), total = 0;
	CHECK(memory >= 0 && ftruncate(memory, STACK_BYTES) == 0);
	uint8_t *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	CHECK(stack != MAP_FAILED);
	for (unsigned long i = 0; i < times; i++) {
		struct nfp_plan plan;
		for (uint32_t j = 0; j < SITES; j++) {
			uint64_t site = SITE + APART * j;
			changes[j] =
			    (struct nfp_change){.address = site, .bytes = 8, .first_move = j, .moves = 1};
			moves[j] = (struct nfp_move){site + MOVED, site + MOVED + AWAY};
		}
		CHECK(nfp_plan_make(&plan, changes, SITES, moves) == 0);
		write_stack(&state, stack);
		memcpy(before, stack, STACK_BYTES);
		uint64_t pointer =
		    next_random(&state) % 4 ? next_random(&state) % STACK_BYTES : odd_pointer(&state);
		int moved = nfp_move_in_frames(memory, pointer, &plan);
		CHECK(moved >= 0 || moved == -EBUSY);
		check_stack(before, stack, moved);
		total += moved > 0 ? moved : 0;
		free(plan.spans);
	}
	munmap(stack, STACK_BYTES);
	close(memory);
	return total;
}

int main(int count, char **arguments)
{
	int moved = fuzz(60 * (count > 1 ? strtoul(arguments[1], NULL, 10) : 1));
	CHECK(moved > 100);
	printf("signal frames: %d program counters of hostile stacks\n", moved);
	return 0;
}
