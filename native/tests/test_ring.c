// SPDX-License-Identifier: Apache-2.0
// One thread writes records by the protocol of ring.h, another drains them with nfp_drain: every record that
// was not refused for want of room arrives once, in order and whole. Run under ThreadSanitizer and plain.
#include "check.h"
#include "drain.h"
#include "abi/ring.h"
#include <pthread.h>
#include <string.h>

enum { RING_BYTES = NFP_RING_BYTES_MIN, ROOM = 512 };

static _Alignas(64) uint8_t ring[RING_BYTES];
static struct nfp_thread_shared shared;
static uint64_t refused;
static int producer_done;
static uint64_t wanted;

// As the probe library does: compare with the limit, ask for tail only there, commit by the tag.
static int produce(uint64_t *position, uint64_t *limit, uint64_t number)
{
	if (*position >= *limit) {
		uint64_t tail = __atomic_load_n(&shared.tail, __ATOMIC_ACQUIRE);
		*limit = tail + RING_BYTES - NFP_RING_SLACK_BYTES;
		if (*position >= *limit)
			return 0;
	}
	struct nfp_record *slot = (struct nfp_record *)(ring + (*position & (RING_BYTES - 1)));
	slot->value = number;
	slot->sp = (uint32_t)(number * 2654435761u);
	uint32_t tag = (uint32_t)(number & NFP_FUNCTION_MASK) + nfp_ring_low(*position, RING_BYTES);
	__atomic_store_n(&slot->tag, tag, __ATOMIC_RELEASE);
	*position += NFP_RECORD_BYTES;
	return 1;
}

static void *producer(void *argument)
{
	uint64_t position = 0, limit = 0;
	for (uint64_t number = 0; number < wanted;) {
		if (produce(&position, &limit, number))
			number++;
		else
			refused++;
	}
	__atomic_store_n(&producer_done, 1, __ATOMIC_RELEASE);
	return argument;
}

static uint64_t consume(uint64_t *position, uint64_t expected)
{
	static struct nfp_record records[ROOM];
	struct nfp_drain_hole hole;
	uint64_t count = nfp_drain(ring, RING_BYTES, position, 0, records, ROOM, &hole);
	for (uint64_t i = 0; i < count; i++, expected++) {
		CHECK(records[i].value == expected);
		CHECK(records[i].tag == (expected & NFP_FUNCTION_MASK));
		CHECK(records[i].sp == (uint32_t)(expected * 2654435761u));
	}
	CHECK(!hole.torn && !hole.blocked);
	nfp_drain_publish(&shared, *position);
	return expected;
}

static void test_two_threads(void)
{
	pthread_t thread;
	uint64_t position = 0, expected = 0;
	CHECK(pthread_create(&thread, NULL, producer, NULL) == 0);
	while (!__atomic_load_n(&producer_done, __ATOMIC_ACQUIRE))
		expected = consume(&position, expected);
	for (uint64_t before = ~0ull; before != expected;) {
		before = expected;
		expected = consume(&position, expected);
	}
	pthread_join(thread, NULL);
	CHECK(expected == wanted);
	CHECK(position == wanted * NFP_RECORD_BYTES);
}

// A hole stops the drain, is said to block only when something is committed behind it, and is skipped when
// the caller says so.
static void test_holes(void)
{
	struct nfp_record records[ROOM];
	struct nfp_drain_hole hole;
	memset(ring, 0, sizeof(ring));
	uint64_t start = 5 * (uint64_t)RING_BYTES - 3 * NFP_RECORD_BYTES, position = start, end = start;
	for (int i = 0; i < RING_BYTES / NFP_RECORD_BYTES; i++) { // what the lap before left behind
		uint64_t at = start - RING_BYTES + (uint64_t)i * NFP_RECORD_BYTES;
		((struct nfp_record *)(ring + (at & (RING_BYTES - 1))))->tag = nfp_ring_low(at, RING_BYTES);
	}
	CHECK(nfp_drain(ring, RING_BYTES, &position, 1, records, ROOM, &hole) == 0);
	CHECK(position == start && !hole.blocked && !hole.torn);
	uint64_t limit = ~0ull;
	for (int i = 0; i < 8; i++) {
		if (i == 2 || i == 3)
			end += NFP_RECORD_BYTES;
		else
			CHECK(produce(&end, &limit, (uint64_t)i));
	}
	CHECK(nfp_drain(ring, RING_BYTES, &position, 0, records, ROOM, &hole) == 2);
	CHECK(hole.blocked && !hole.torn && records[1].value == 1);
	CHECK(nfp_drain(ring, RING_BYTES, &position, 0, records, ROOM, &hole) == 0);
	CHECK(hole.blocked && !hole.torn);
	CHECK(nfp_drain(ring, RING_BYTES, &position, 1, records, ROOM, &hole) == 4);
	CHECK(!hole.blocked && hole.torn == 2 && records[0].value == 4 && position == end);
}

int main(int count, char **arguments)
{
	wanted = searches(count, arguments, 2000000);
	test_two_threads();
	test_holes();
	printf("ring: %lu records through %d KiB, %lu times no room\n", (unsigned long)wanted,
	       RING_BYTES >> 10, (unsigned long)refused);
	return 0;
}
