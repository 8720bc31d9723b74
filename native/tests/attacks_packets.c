// SPDX-License-Identifier: Apache-2.0
// See worst.h: packets and messages.
#include "worst.h"

// Buffers whose products with the golden ratio have the same upper half.
static uint64_t colliding(uint64_t number)
{
	const uint64_t factor = 0x9e3779b97f4a7c15u;
	uint64_t inverse = factor;
	for (int i = 0; i < 6; i++)
		inverse *= 2 - factor * inverse;
	return number * inverse;
}

static void colliding_buffers(struct content *content)
{
	for (uint64_t number = 1; content->count < content->room;) {
		put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 60000);
		for (int i = 0; i < 60000; i++)
			put(content, NFP_PACKET, NFP_ROLE_RECEIVE, colliding(number++), 64);
	}
}

static void message(struct content *content, uint64_t digest)
{
	put_now(content, NFP_ENTRY, NFP_ROLE_MESSAGE, 0x700);
	put(content, NFP_PACKET, NFP_ROLE_MESSAGE, digest, 64);
	put(content, NFP_PACKET_ID, 0, digest, (uint32_t)NFP_VERSION_MESSAGE << 24);
	put(content, NFP_PACKET_TOPIC, 0, 0, 4);
	put(content, NFP_PACKET_TEXT, 0, 0x61616161, 0);
	put_now(content, NFP_EXIT, NFP_ROLE_MESSAGE, 0x700);
}

static void colliding_topics(struct content *content)
{
	put_now(content, NFP_ENTRY, NFP_ROLE_MESSAGE_SCOPE, 0x800);
	for (uint64_t i = 1; content->count < content->room; i++)
		message(content, i << 32 | i);
}

// Two calls that read messages by turns, each with many open calls inside.
static void arounds_by_turns(struct content *content)
{
	put_now(content, NFP_ENTRY, NFP_ROLE_MESSAGE_SCOPE, TOP + 64);
	open_calls(content, 8000, 16);
	put_now(content, NFP_ENTRY, NFP_ROLE_MESSAGE_SCOPE, TOP + 2 * STACK);
	for (uint32_t i = 0; i < 8000; i++)
		put_now(content, NFP_ENTRY, NFP_ROLE_CALL, TOP + 2 * STACK - 16 - i * 16);
	for (int i = 0; content->count < content->room; i++) {
		uint32_t sp = (i & 1 ? TOP : TOP + 2 * STACK) - 9000 * 16;
		put_now(content, NFP_ENTRY, NFP_ROLE_MESSAGE, sp);
		put(content, NFP_PACKET, NFP_ROLE_MESSAGE, (uint64_t)i, 64);
		put_now(content, NFP_EXIT, NFP_ROLE_MESSAGE, sp);
	}
}

// One packet goes through all batches, and the last one never ends.
static void taken_over_and_over(struct content *content)
{
	put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 1);
	put(content, NFP_PACKET, NFP_ROLE_RECEIVE, 7, 64);
	for (int i = 0; content->count < content->room; i++) {
		put_poll(content, NFP_ROLE_DEQUEUE, content->ticks, 60000);
		for (int j = 0; j < (i & 31 ? 1 : 200); j++)
			put(content, NFP_PACKET, NFP_ROLE_DEQUEUE, 7, 0);
	}
}

// The first thread's packets are taken over by the second one's batches, and it ends none.
static void takers_held(struct content *content)
{
	content->threads = 2;
	put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 60000);
	while (content->count < content->room / 2)
		put(content, NFP_PACKET, NFP_ROLE_RECEIVE, content->count % 60000, 64);
	open_calls(content, 64, 16);
	for (uint64_t i = 0; put_poll(content, NFP_ROLE_DEQUEUE, content->ticks, 1); i++)
		put(content, NFP_PACKET, NFP_ROLE_DEQUEUE, i % 50000, 0);
}

static void threads_by_turns(struct content *content)
{
	content->threads = NFP_THREAD_COUNT;
	for (uint32_t thread = 0; thread < NFP_THREAD_COUNT; thread++) {
		content->ticks = 1000 + thread;
		for (int i = 0; i < RING_RECORDS / NFP_THREAD_COUNT / 4; i++) {
			content->ticks += 20480;
			put_now(content, NFP_ENTRY, NFP_ROLE_DROP, 0x2000);
			put(content, NFP_PACKET, NFP_ROLE_DROP, (uint64_t)i, 64);
			put(content, NFP_PACKET, NFP_ROLE_DROP, (uint64_t)i, 64);
			put_now(content, NFP_EXIT, NFP_ROLE_DROP, 0x2000);
		}
	}
}

static void transmits_only(struct content *content)
{
	while (put_now(content, NFP_ENTRY, NFP_ROLE_TRANSMIT, 0x2000)) {
		for (uint32_t i = 0; i < 1000; i++)
			put(content, NFP_PACKET, NFP_ROLE_TRANSMIT, content->count * 64ull, 64 | i << 16);
		put(content, NFP_VALUE, NFP_ROLE_TRANSMIT, 1000, 0x2000);
		put_now(content, NFP_EXIT, NFP_ROLE_TRANSMIT, 0x2000);
	}
}

// Calls that hand on packets, deep inside others, in batches where their ages are counted.
static void chosen_deep(struct content *content)
{
	while (content->count < content->room) {
		put_poll(content, NFP_ROLE_RECEIVE, content->ticks, 1);
		put(content, NFP_BATCH_NOTE, NFP_ROLE_RECEIVE, 0, NFP_NOTE_LATE);
		open_calls(content, 8000, 16);
		for (int i = 0; i < 8000; i++) {
			put_now(content, NFP_ENTRY, NFP_ROLE_DROP, 0x3000);
			put(content, NFP_VALUE, NFP_ROLE_DROP, 1, 0x3000);
			put_now(content, NFP_EXIT, NFP_ROLE_DROP, 0x3000);
		}
		for (uint32_t i = 8000; i-- > 0;)
			put_now(content, NFP_EXIT, NFP_ROLE_CALL, TOP - i * 16);
	}
}

#define NAMED(name) {#name, name}
const struct named_content nfp_packet_attacks[] = {
    NAMED(colliding_buffers),   NAMED(colliding_topics), NAMED(arounds_by_turns),
    NAMED(taken_over_and_over), NAMED(takers_held),      NAMED(threads_by_turns),
    NAMED(transmits_only),      NAMED(chosen_deep),      {0}};
