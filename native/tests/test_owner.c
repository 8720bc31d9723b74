// SPDX-License-Identifier: Apache-2.0
// Which batch a numbered buffer came with: handed on whole, in part, by another thread, and when nothing is known of it.
#include "check.h"
#include "late.h"

enum {
	ENTRIES = 64,
	SHIFT = 6,
	STEP = 1 << (10 - SHIFT),
	PACKETS = 8
}; // numbers of neighbours differ by STEP

struct nfp_library nfp_library = {.session_fd = -1};
static struct nfp_late late[2];
static struct nfp_thread threads[2] = {{.index = 0}, {.index = 1}};
static uint32_t owners[ENTRIES + 1];
static uint32_t checked;

// Batch of `count` buffers from `first` on. Returns its number.
static uint64_t receive(uint32_t thread, uint32_t first, uint32_t count)
{
	uint32_t numbers[ENTRIES];
	for (uint32_t i = 0; i < count; i++)
		numbers[i] = (first + i) * STEP;
	uint64_t number = late[thread].batches;
	*nfp_late_batch_at(&late[thread], number) = (struct nfp_late_batch){.count = count};
	nfp_owner_give(&threads[thread], number,
	               (struct nfp_burst){.count = count, .number_shift = SHIFT, .numbers = numbers});
	late[thread].batches++;
	return number;
}

static void hand_on(uint32_t thread, uint32_t first, uint32_t count)
{
	late[thread].count = count;
	late[thread].number_shift = SHIFT;
	for (uint32_t i = 0; i < count; i++)
		late[thread].handed[i] = (first + i) * STEP;
}

// The same, told by its numbers alone.
static struct nfp_late_batch *receive_untagged(uint32_t first, uint32_t count)
{
	static const struct nfp_program input = {.number_shift = SHIFT};
	struct nfp_late_batch *batch = nfp_late_batch_at(&late[0], late[0].batches++);
	*batch = (struct nfp_late_batch){.count = count};
	for (uint32_t i = 0; i < count; i++)
		late[0].numbers[i] = (first + i) * STEP;
	late[0].input = &input;
	late[0].is_untagged = 1;
	late[0].left = 0;
	return batch;
}

// A call hands on the next ones of the newest batch.
static int hand_on_next(uint32_t first, uint32_t count)
{
	hand_on(0, first, count);
	if (!nfp_owner_is_next(&late[0], late[0].handed, count))
		return 0;
	late[0].array = (uint64_t)(uintptr_t)late[0].handed;
	late[0].whole = late[0].batches;
	nfp_owner_leave(&late[0]);
	late[0].array = late[0].whole = 0;
	return 1;
}

static void check_owner(uint32_t thread, uint32_t packet, struct nfp_late_batch *batch, uint32_t place)
{
	uint32_t position;
	CHECK(nfp_owner_find(&late[thread], packet, &position) == batch);
	CHECK(!batch || position == place);
	checked++;
}

static void test_whole(void)
{
	struct nfp_late_batch *batch = nfp_late_batch_at(&late[0], receive(0, 0, PACKETS));
	hand_on(0, 0, PACKETS);
	CHECK(nfp_owner_of_all(&late[0]) == batch);
	for (uint32_t i = 0; i < PACKETS; i++)
		check_owner(0, i, batch, i);
	nfp_owner_leave(&late[0]);
	CHECK(batch->gone);
	check_owner(0, 0, NULL, 0); // made by the NF in a buffer that is free
	batch = nfp_late_batch_at(&late[0], receive(0, 0, PACKETS));
	check_owner(0, 3, batch, 3);
}

static void test_parts(void)
{
	struct nfp_late_batch *old = nfp_late_batch_at(&late[0], receive(0, 0, PACKETS));
	struct nfp_late_batch *new = nfp_late_batch_at(&late[0], receive(0, PACKETS, PACKETS));
	hand_on(0, 5, PACKETS); // three of the old batch, five of the new one
	CHECK(!nfp_owner_of_all(&late[0]));
	for (uint32_t i = 0; i < PACKETS; i++)
		check_owner(0, i, i < 3 ? old : new, i < 3 ? 5 + i : i - 3);
	nfp_owner_leave(&late[0]);
	for (uint32_t i = 0; i < PACKETS; i++)
		check_owner(0, i, NULL, 0);
	hand_on(1, 0, 5); // the rest, by another thread
	CHECK(nfp_owner_of_all(&late[1]) == old && !old->gone);
	nfp_owner_leave(&late[1]);
	CHECK(!old->gone); // three of its packets went before
	check_owner(1, 0, NULL, 0);
}

static void test_unknown(void)
{
	struct nfp_late_batch *batch = nfp_late_batch_at(&late[1], receive(1, 0, PACKETS));
	hand_on(0, 0, PACKETS);
	CHECK(nfp_owner_of_all(&late[0]) == batch);
	for (uint32_t i = 0; i < NFP_LATE_BATCHES; i++)
		receive(1, 2 * PACKETS, 1);
	check_owner(0, 0, NULL, 0); // too long ago
	receive(0, ENTRIES - 2, 4); // two of them lie behind the table
	hand_on(0, ENTRIES, 2);
	CHECK(!nfp_owner_of_all(&late[0]));
	check_owner(0, 0, NULL, 0);
	late[0].handed[0] = UINT32_MAX;
	check_owner(0, 0, NULL, 0);
	late[0].count = 0;
	CHECK(!nfp_owner_of_all(&late[0]));
	CHECK(!owners[ENTRIES]);
}

// Copies share the buffer that was received: the first one that leaves is its packet.
static void test_copies(void)
{
	struct nfp_late_batch *batch = nfp_late_batch_at(&late[0], receive(0, 0, PACKETS));
	hand_on(0, 20, 2);
	nfp_owner_inherit(&late[0], 0, 3 * STEP);
	nfp_owner_inherit(&late[0], 1, 3 * STEP);
	check_owner(0, 0, batch, 3);
	check_owner(0, 1, NULL, 0);
	hand_on(0, 2, 1); // one that was received itself, and goes on in another one
	nfp_owner_inherit(&late[0], 0, 4 * STEP);
	check_owner(0, 0, batch, 2);
	hand_on(0, 4, 1);
	check_owner(0, 0, batch, 4);
	nfp_owner_inherit(&late[0], 0, 4 * STEP); // its own next one
	check_owner(0, 0, batch, 4);
	hand_on(0, ENTRIES, 1);
	nfp_owner_inherit(&late[0], 0, 4 * STEP); // behind the table
	nfp_owner_inherit(&late[0], 0, UINT32_MAX);
	CHECK(!owners[ENTRIES]);
	uint32_t number = 4 * STEP;
	nfp_owner_forget(&threads[0],
	                 (struct nfp_burst){.count = 1, .number_shift = SHIFT, .numbers = &number});
	hand_on(0, 4, 1);
	check_owner(0, 0, NULL, 0);
}

// A call that has freed its packets ends when another thread has received into some of their buffers.
static void test_reused(void)
{
	receive(0, 0, PACKETS);
	hand_on(1, 0, PACKETS);
	late[1].entered_ticks = 100;
	struct nfp_late_batch *batch = nfp_late_batch_at(&late[0], receive(0, 2, 3));
	batch->start_ticks = 101;
	nfp_owner_leave(&late[1]);
	for (uint32_t i = 0; i < PACKETS; i++)
		check_owner(1, i, i >= 2 && i < 5 ? batch : NULL, i - 2);
}

// The newest batch is told by its numbers until somebody looks buffers up.
static void test_newest(void)
{
	struct nfp_late_batch *batch = receive_untagged(0, PACKETS);
	CHECK(hand_on_next(0, PACKETS) && batch->gone);
	nfp_owner_tag_newest(&threads[0]);
	hand_on(0, 0, PACKETS);
	CHECK(!late[0].is_untagged && !nfp_owner_of_all(&late[0]));
	batch = receive_untagged(0, PACKETS); // in two frames
	CHECK(hand_on_next(0, 3) && !batch->gone);
	CHECK(!hand_on_next(3, PACKETS)); // more than are left
	CHECK(!hand_on_next(4, 4)); // not the next ones
	CHECK(hand_on_next(3, PACKETS - 3) && batch->gone);
	batch = receive_untagged(0, PACKETS); // three leave, the others are looked up
	CHECK(hand_on_next(0, 3));
	nfp_owner_tag_newest(&threads[0]);
	CHECK(!hand_on_next(3, PACKETS - 3)); // it is tagged now
	hand_on(0, 0, PACKETS);
	for (uint32_t i = 0; i < PACKETS; i++)
		check_owner(0, i, i < 3 ? NULL : batch, i);
	receive_untagged(0, PACKETS);
	hand_on(0, 0, PACKETS);
	late[0].handed[PACKETS / 2] = 0; // the NF has put in something else
	CHECK(!nfp_owner_is_next(&late[0], late[0].handed, PACKETS));
	late[0].order = NFP_ORDER_NONE; // arrays do not last until the call's end
	CHECK(!hand_on_next(0, PACKETS));
	late[0].order = NFP_ORDER_KEPT;
	uint32_t number = 2 * STEP; // another packet will be in one of them
	nfp_owner_forget(&threads[0],
	                 (struct nfp_burst){.count = 1, .number_shift = SHIFT, .numbers = &number});
	batch = nfp_late_batch_at(&late[0], late[0].batches - 1);
	hand_on(0, 0, PACKETS);
	for (uint32_t i = 0; i < PACKETS; i++)
		check_owner(0, i, i == 2 ? NULL : batch, i);
	batch = receive_untagged(8, PACKETS); // another thread hands on what it finds
	nfp_owner_tag_newest(&threads[0]);
	hand_on(1, 8, PACKETS);
	CHECK(nfp_owner_of_all(&late[1]) == batch);
}

// Calls that take packets in are not looked at as those that hand them on: whose buffers they are is forgotten.
static void test_roles(void)
{
	static struct nfp_thread_shared shared = {.late = {.late_ticks = NFP_LATE_NEVER}};
	struct nfp_program program = {.pooled = 1, .number_shift = SHIFT};
	threads[0].shared = &shared;
	receive_untagged(0, 1);
	late[0].until_check = 9;
	for (uint32_t role = NFP_ROLE_RECEIVE; role <= NFP_ROLE_REPLACE; role++) {
		int is_looked_at =
		    role == NFP_ROLE_TRANSMIT || role == NFP_ROLE_DROP || role == NFP_ROLE_PUNT;
		if (!is_looked_at && role != NFP_ROLE_KEEP && role != NFP_ROLE_REPLACE)
			continue;
		program.role = (uint8_t)role;
		CHECK(nfp_late_enter_next(&threads[0], &program, late[0].numbers, 1, 64, 1) == is_looked_at);
		CHECK((threads[0].handing != 0) == is_looked_at);
		nfp_late_leave(&threads[0]);
	}
}

int main(void)
{
	nfp_library.late = late;
	nfp_library.owners = owners;
	nfp_library.owners_count = ENTRIES;
	test_whole();
	test_parts();
	test_unknown();
	test_reused();
	test_copies();
	test_newest();
	test_roles();
	printf("owner: %u buffers and their batches\n", checked);
}
