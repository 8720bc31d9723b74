// SPDX-License-Identifier: Apache-2.0
// See worst.h: receive calls, the batches that they begin, and anything at all.
#include "worst.h"

static void empty_polls_of_old(struct content *content)
{
	for (int i = 0; i < 2000; i++) {
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, TOP);
		put_now(content, NFP_EXIT, NFP_ROLE_CALL, TOP);
	}
	while (put_poll(content, NFP_ROLE_RECEIVE, content->ticks / 2, 0))
		;
}

// The calls of one batch move to the next.
static void polls_of_old(struct content *content)
{
	while (content->count < content->room) {
		for (int i = 0; i < 16000; i++) {
			put_now(content, NFP_ENTRY, NFP_ROLE_CALL, 0x800);
			put_now(content, NFP_EXIT, NFP_ROLE_CALL, 0x800);
		}
		for (int i = 0; i < 16000; i++)
			put_poll(content, NFP_ROLE_RECEIVE, 1 + (uint64_t)content->count, i & 1);
	}
}

static void clipped(struct content *content)
{
	open_calls(content, 64, 16);
	while (put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 1))
		;
}

static void clipped_empty(struct content *content)
{
	open_calls(content, 64, 16);
	while (put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 0))
		;
}

static void clipped_turns(struct content *content)
{
	open_calls(content, 63, 16);
	while (put_now(content, NFP_ENTRY, NFP_ROLE_LOOP_ITERATION, TOP - 4096))
		put_now(content, NFP_EXIT, NFP_ROLE_LOOP_ITERATION, TOP - 4096);
}

static void polls_deep(struct content *content)
{
	open_calls(content, DEEP, 16);
	while (put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 1))
		;
}

// Batches that nothing ends, and packets that were received long before.
static void origins_of_old(struct content *content)
{
	put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 2);
	put(content, NFP_BATCH_NOTE, NFP_ROLE_RECEIVE, 0, NFP_NOTE_LATE);
	while (content->count < content->room / 2) {
		put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 2);
		put(content, NFP_PACKET, NFP_ROLE_RECEIVE, content->ticks, 64);
	}
	uint64_t last = content->ticks - 10;
	while (put_now(content, NFP_ENTRY, NFP_ROLE_DROP, 0x2000)) {
		for (int i = 0; i < 100; i++) {
			put(content, NFP_PACKET, NFP_ROLE_DROP, 1, 64);
			put(content, NFP_PACKET_ORIGIN, 0, i & 1 ? last : 5, 0);
		}
		put_now(content, NFP_EXIT, NFP_ROLE_DROP, 0x2000);
	}
}

// Batches whose packets may still leave, in one turn.
static void one_turn(struct content *content)
{
	put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 2);
	put(content, NFP_BATCH_NOTE, NFP_ROLE_RECEIVE, 0, NFP_NOTE_LATE);
	while (put_poll(content, NFP_ROLE_DEQUEUE, content->ticks, 1))
		;
}

// The same with batches that begin by themselves.
static void turns_in_one_turn(struct content *content)
{
	put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 2);
	put(content, NFP_BATCH_NOTE, NFP_ROLE_RECEIVE, 0, NFP_NOTE_LATE);
	while (put_now(content, NFP_ENTRY, NFP_ROLE_LOOP_ITERATION, TOP))
		put_now(content, NFP_EXIT, NFP_ROLE_LOOP_ITERATION, TOP);
}

static void chosen_without_end(struct content *content)
{
	while (put_now(content, NFP_ENTRY, NFP_ROLE_TRANSMIT, 0x2000)) {
		put(content, NFP_PACKET, NFP_ROLE_TRANSMIT, 1, 64);
		put(content, NFP_PACKET_ORIGIN, 0, 5, 0);
		put(content, NFP_LOST, 0, 1, NFP_LOST_CALL);
	}
}

static void readings_deep(struct content *content)
{
	for (uint32_t i = 0; i < DEEP; i++) {
		put(content, NFP_COUNTERS, 2, 5, TOP - i * 16);
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, TOP - i * 16);
	}
	while (put(content, NFP_COUNTERS, 2, 5, 0x1000)) {
		put(content, NFP_POLL_ENTRY, NFP_ROLE_RECEIVE, content->ticks / 2, 0x1000);
		put(content, NFP_COUNTERS, 2, 5, 0x1000);
		put_now(content, NFP_POLL_EXIT, NFP_ROLE_RECEIVE, 0);
	}
}

static void times_up_and_down(struct content *content)
{
	for (uint64_t i = 0; content->count < content->room; i++) {
		put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 1);
		put(content, NFP_PACKET, NFP_ROLE_RECEIVE, i, 64);
		put(content, NFP_ENTRY, NFP_ROLE_CALL, UINT64_MAX - (i << 33), 0x2000);
		put(content, NFP_EXIT, NFP_ROLE_CALL, 1ull << 40, 0x2000);
	}
}

static void noise(struct content *content)
{
	uint64_t state = 7;
	while (content->count < content->room) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		put(content, (uint32_t)(state >> 40) % 40, (uint32_t)(state >> 48) % FUNCTIONS,
		    state & 7 ? content->ticks += 10 : state, (uint32_t)(state >> 20) % 64 * 16);
	}
}

#define NAMED(name) {#name, name}
const struct named_content nfp_batch_attacks[] = {NAMED(empty_polls_of_old),
                                                  NAMED(polls_of_old),
                                                  NAMED(clipped),
                                                  NAMED(clipped_empty),
                                                  NAMED(clipped_turns),
                                                  NAMED(polls_deep),
                                                  NAMED(origins_of_old),
                                                  NAMED(one_turn),
                                                  NAMED(turns_in_one_turn),
                                                  NAMED(chosen_without_end),
                                                  NAMED(readings_deep),
                                                  NAMED(times_up_and_down),
                                                  NAMED(noise),
                                                  {0}};
