// SPDX-License-Identifier: Apache-2.0
// See worst.h: open calls that are many, deep, or on many stacks.
#include "worst.h"

// One doubtful call, and every entry looks at all.
static void doubtful_below(struct content *content)
{
	open_calls(content, DEEP, 16);
	put_now(content, NFP_EXIT, NFP_ROLE_CALL, TOP - (DEEP - 2) * 16);
	while (put_now(content, NFP_ENTRY, NFP_ROLE_CALL, TOP - DEEP * 16))
		put_now(content, NFP_EXIT, NFP_ROLE_CALL, TOP - DEEP * 16);
}

// All are doubtful at once.
static void all_doubtful(struct content *content)
{
	while (content->count < content->room) {
		open_calls(content, DEEP, 16);
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, TOP + 64);
		put_now(content, NFP_EXIT, NFP_ROLE_CALL, TOP + 64);
	}
}

static void exits_of_nothing(struct content *content)
{
	open_calls(content, DEEP, 16);
	while (put_now(content, NFP_EXIT, NFP_ROLE_LENGTH, 0x1000))
		;
}

static void values_of_nothing(struct content *content)
{
	open_calls(content, DEEP, 16);
	while (put(content, NFP_VALUE, NFP_ROLE_LENGTH, 1, 0x1000))
		;
}

// The outermost one ends, and all others stay.
static void outermost_ends(struct content *content)
{
	while (content->count < content->room) {
		for (uint32_t i = 0; i < DEEP; i++)
			put_now(content, NFP_ENTRY, NFP_ROLE_CALL, TOP - i * (STACK - 4096));
		for (uint32_t i = 0; i < DEEP; i++)
			put_now(content, NFP_EXIT, NFP_ROLE_CALL, TOP - i * (STACK - 4096));
	}
}

// The same, and each call is counted in the one around it that has not ended.
static void outermost_ends_counted(struct content *content)
{
	while (content->count < content->room) {
		for (uint32_t i = 0; i < DEEP; i++) {
			uint32_t sp = TOP - i * (STACK - 4096);
			put(content, NFP_COUNTERS, 2, 5, sp);
			put_now(content, NFP_ENTRY, NFP_ROLE_CALL, sp);
		}
		for (uint32_t i = 0; i < DEEP; i++)
			put_now(content, NFP_EXIT, NFP_ROLE_CALL, TOP - i * (STACK - 4096));
	}
}

static void many_stacks(struct content *content)
{
	for (uint32_t i = 0; i < DEEP; i++)
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, i % 32 * 2 * STACK + STACK - i * 16);
	for (uint32_t i = 0; content->count < content->room; i++) {
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, i % 32 * 2 * STACK + 4096);
		put_now(content, NFP_EXIT, NFP_ROLE_CALL, i % 32 * 2 * STACK + 4096);
	}
}

static void drops_of_nothing(struct content *content)
{
	open_calls(content, DEEP, 16);
	while (put(content, NFP_PACKET, NFP_ROLE_DROP, 0x1000, 64))
		;
}

static void transmits_deep(struct content *content)
{
	open_calls(content, DEEP - 1, 16);
	while (put_now(content, NFP_ENTRY, NFP_ROLE_TRANSMIT, TOP - DEEP * 16))
		put_now(content, NFP_EXIT, NFP_ROLE_TRANSMIT, TOP - DEEP * 16);
}

static void turns_deep(struct content *content)
{
	open_calls(content, DEEP - 1, 16);
	while (put_now(content, NFP_ENTRY, NFP_ROLE_LOOP_ITERATION, TOP - DEEP * 16))
		put_now(content, NFP_EXIT, NFP_ROLE_LOOP_ITERATION, TOP - DEEP * 16);
}

static void marks_deep(struct content *content)
{
	open_calls(content, DEEP - 1, 16);
	while (put_now(content, NFP_MARK, NFP_ROLE_CALL, TOP + 64))
		;
}

static void losses_deep(struct content *content)
{
	open_calls(content, DEEP, 16);
	while (put(content, NFP_LOST, 0, 1, NFP_LOST_POLL))
		;
}

// Every second one stays when a batch is not detailed.
static void undetailed(struct content *content)
{
	while (content->count < content->room) {
		for (uint32_t i = 0; i < DEEP; i++)
			put_now(content, NFP_ENTRY, i & 1 ? NFP_ROLE_LENGTH : NFP_ROLE_CALL, TOP - i * 16);
		put(content, NFP_POLL_ENTRY, NFP_ROLE_RECEIVE, content->ticks, 0x1000);
		put(content, NFP_POLL_QUEUE, NFP_ROLE_RECEIVE, content->ticks, NFP_QUEUE_UNDETAILED);
		put_now(content, NFP_POLL_EXIT, NFP_ROLE_RECEIVE, 1);
	}
}

#define NAMED(name) {#name, name}
const struct named_content nfp_call_attacks[] = {NAMED(doubtful_below),   NAMED(all_doubtful),
                                                 NAMED(exits_of_nothing), NAMED(values_of_nothing),
                                                 NAMED(outermost_ends),   NAMED(outermost_ends_counted),
                                                 NAMED(many_stacks),      NAMED(drops_of_nothing),
                                                 NAMED(transmits_deep),   NAMED(turns_deep),
                                                 NAMED(marks_deep),       NAMED(losses_deep),
                                                 NAMED(undetailed),       {0}};
