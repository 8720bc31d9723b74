// SPDX-License-Identifier: Apache-2.0
// A binary search tree whose insert, search and delete are timed: each round inserts all keys in a random order, finds
// each of them and deletes them all. Reads lines from standard input: each one, a number of rounds, is answered with the
// median ticks of a call of the three; `quit` ends.
// With -DRING the three write two records a call by hand into memory, with -DFILE_NAME=... into a file, each by a
// write(2) that returns when the kernel has it: what a probe costs with and without a place of its own for records.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEYS 1024
#define ROUNDS 201
#define PAUSE_TICKS 1000000

struct record {
	uint64_t tsc;
	uint64_t tag;
};

#if defined(FILE_NAME)
static int output = -1;
static inline __attribute__((always_inline)) void note(uint64_t tag)
{
	struct record record = {__builtin_ia32_rdtsc(), tag};
	if (write(output, &record, sizeof(record)) != sizeof(record))
		abort();
}
#elif defined(RING)
static struct record ring[16384];
static uint64_t position;
static inline __attribute__((always_inline)) void note(uint64_t tag)
{
	ring[position++ & 16383] = (struct record){__builtin_ia32_rdtsc(), tag};
}
#else
static inline void note(uint64_t tag)
{
	(void)tag;
}
#endif

struct node {
	uint32_t key;
	struct node *children[2];
};

static struct node nodes[KEYS], *root;

__attribute__((noinline)) struct node *insert_key(struct node *fresh, uint32_t key)
{
	note(1);
	struct node **place = &root;
	while (*place)
		place = &(*place)->children[key > (*place)->key];
	*fresh = (struct node){.key = key};
	*place = fresh;
	note(2);
	return fresh;
}

__attribute__((noinline)) const struct node *search_key(uint32_t key)
{
	note(3);
	const struct node *at = root;
	while (at && at->key != key)
		at = at->children[key > at->key];
	note(4);
	return at;
}

__attribute__((noinline)) int delete_key(uint32_t key)
{
	note(5);
	struct node **place = &root;
	while (*place && (*place)->key != key)
		place = &(*place)->children[key > (*place)->key];
	struct node *gone = *place;
	if (gone && gone->children[0] && gone->children[1]) {
		struct node **next = &gone->children[1];
		while ((*next)->children[0])
			next = &(*next)->children[0];
		gone->key = (*next)->key;
		*next = (*next)->children[1];
	} else if (gone) {
		*place = gone->children[0] ? gone->children[0] : gone->children[1];
	}
	note(6);
	return gone != NULL;
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

static void shuffle(uint32_t *keys)
{
	static uint64_t state = 88172645463325252u;
	for (int last = KEYS - 1; last > 0; last--) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		int other = (int)(state % (uint64_t)(last + 1));
		uint32_t key = keys[last];
		keys[last] = keys[other];
		keys[other] = key;
	}
}

static void run_round(uint32_t *keys, uint64_t ticks[3])
{
	shuffle(keys);
	uint64_t begun = __builtin_ia32_rdtsc();
	for (int key = 0; key < KEYS; key++)
		insert_key(&nodes[key], keys[key]);
	uint64_t inserted = __builtin_ia32_rdtsc();
	int found = 0;
	for (int key = 0; key < KEYS; key++)
		found += search_key(keys[key]) != NULL;
	uint64_t searched = __builtin_ia32_rdtsc();
	for (int key = 0; key < KEYS; key++)
		found += delete_key(keys[key]);
	uint64_t deleted = __builtin_ia32_rdtsc();
	if (found != 2 * KEYS || root)
		abort();
	ticks[0] = inserted - begun;
	ticks[1] = searched - inserted;
	ticks[2] = deleted - searched;
}

int main(void)
{
	static uint64_t ticks[3][ROUNDS];
	static uint32_t keys[KEYS];
	char line[64];
	for (uint32_t key = 0; key < KEYS; key++)
		keys[key] = key;
#ifdef FILE_NAME
	output = open(FILE_NAME, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (output < 0)
		return 3;
#endif
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) && strncmp(line, "quit", 4) != 0) {
		size_t rounds = strtoul(line, NULL, 10);
		if (rounds < 1 || rounds > ROUNDS)
			return 2;
		for (size_t round = 0; round < rounds; round++) {
			uint64_t took[3];
			run_round(keys, took);
			for (int kind = 0; kind < 3; kind++)
				ticks[kind][round] = took[kind];
			uint64_t end = __builtin_ia32_rdtsc();
			while (__builtin_ia32_rdtsc() - end < PAUSE_TICKS)
				; // the monitor drains what the round wrote: a full ring is not what is measured
		}
		for (int kind = 0; kind < 3; kind++) {
			qsort(ticks[kind], rounds, sizeof(uint64_t), compare);
			printf("%.3f%c", (double)ticks[kind][rounds / 2] / KEYS, kind < 2 ? ' ' : '\n');
		}
		fflush(stdout);
	}
	return 0;
}
