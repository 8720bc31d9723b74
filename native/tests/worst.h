// SPDX-License-Identifier: Apache-2.0
// The contents of rings that test_worst.c measures: good ones, and the worst that are known (attacks_*.c). Whoever finds
// another one adds a function, and its name to the table at the end of its file.
#ifndef NFPROBE_TESTS_WORST_H
#define NFPROBE_TESTS_WORST_H
#include "abi/ring.h"
#include "abi/session.h"

enum { RING_RECORDS = (16 << 20) / NFP_RECORD_BYTES };

// A function's id is its role.
enum { FUNCTIONS = NFP_ROLE_LAST + 1 };

// What is written, by how many threads: their records stand one behind the other, equally many of each.
struct content {
	struct nfp_record *records;
	uint32_t count, room;
	uint32_t threads;
	uint64_t ticks;
};

static inline int put(struct content *content, uint32_t kind, uint32_t function, uint64_t word, uint32_t sp)
{
	if (content->count == content->room)
		return 0;
	content->records[content->count++] = (struct nfp_record){word, kind << NFP_KIND_SHIFT | function, sp};
	return 1;
}

// A record with the next time stamp.
static inline int put_now(struct content *content, uint32_t kind, uint32_t function, uint32_t sp)
{
	content->ticks += 10;
	return put(content, kind, function, content->ticks, sp);
}

static inline int put_poll(struct content *content, uint32_t function, uint64_t start_ticks, uint32_t size)
{
	put(content, NFP_POLL_ENTRY, function, start_ticks, 0x1000);
	return put_now(content, NFP_POLL_EXIT, function, size | 32 << 16);
}

enum {
	DEEP = 16383, // open calls, one less than nfp_calltree_make_room leaves
	TOP = 0x70000000,
	STACK = 64 << 20, // NFP_STACK_SPAN: sp further apart is another stack
};

static inline void open_calls(struct content *content, uint32_t count, uint32_t step)
{
	for (uint32_t i = 0; i < count; i++)
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, TOP - i * step);
}

struct named_content {
	const char *name;
	void (*fill)(struct content *content); // until there is no more room
};

// Up to one without a name.
extern const struct named_content nfp_good[], nfp_call_attacks[], nfp_batch_attacks[], nfp_packet_attacks[];
#endif
