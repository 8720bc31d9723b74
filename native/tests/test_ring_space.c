// SPDX-License-Identifier: Apache-2.0
// Signal handlers of the writing thread come between any two instructions of a record's way into the ring, near the end of
// a lap and of the room, and write records themselves: up to more than a lap. Every record arrives once, and nothing is
// written elsewhere. The thread steps through its instructions; its handler is the interrupting one. Argument: the number
// of trials.
#define _GNU_SOURCE
#include "check.h"
#include "counter.h"
#include "drain.h"
#include "ring_space.h"
#include "stepping.h"
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	RING_BYTES = NFP_RING_BYTES_MIN,
	LAP_RECORDS = RING_BYTES / NFP_RECORD_BYTES,
	USABLE = (RING_BYTES - NFP_RING_SLACK_BYTES) / NFP_RECORD_BYTES,
	ROOM = 512,
	STEPS_MAX = 600,
	WRITTEN_MAX = 32 << 20,
};

struct nfp_library nfp_library = {.session_fd = -1};
struct nfp_thread *nfp_counted_slow(struct nfp_thread *block, uint32_t loss,
                                    uint32_t sp); // counter.c, for thunk.S
static struct nfp_session_header header = {.ring_bytes = RING_BYTES, .ring_stride = RING_BYTES};
static struct nfp_thread_shared shared;
static struct nfp_thread thread;
static const volatile struct nfp_counter_page not_counting;
static struct nfp_counter_pages counters;
static uint8_t *ring, arrived[WRITTEN_MAX];
static uint64_t written, read_position, readings, lost;

// What the handler does: the trial's choices, and how far it is.
static struct {
	uint32_t step, at, records, run, drain_every;
} interruption;

struct nfp_thread *nfp_thread_slow(struct nfp_thread *block, uint32_t loss)
{
	return nfp_make_room(block, 1, loss) ? block : 0;
}

int nfp_make_room(struct nfp_thread *block, uint32_t count, uint32_t loss)
{
	(void)loss;
	int fits = nfp_ring_space_find(block, (uint64_t)count * NFP_RECORD_BYTES);
	nfp_fetch_add_local(&lost, fits ? 0 : count);
	return fits;
}

// As the monitor does.
static void drain(void)
{
	static struct nfp_record records[ROOM];
	struct nfp_drain_hole hole;
	uint64_t count, before;
	do {
		before = read_position;
		count = nfp_drain(ring, RING_BYTES, &read_position, 0, records, ROOM, &hole);
		CHECK(!hole.torn);
		for (uint64_t i = 0; i < count; i++) {
			uint32_t kind = nfp_record_kind(&records[i]);
			readings += kind >= NFP_COUNTERS;
			if (kind >= NFP_COUNTERS)
				continue;
			CHECK(kind == NFP_ENTRY && records[i].sp == 7);
			CHECK(records[i].value < written && written < WRITTEN_MAX);
			CHECK(!arrived[records[i].value]);
			arrived[records[i].value] = 1;
		}
		nfp_drain_publish(&shared, read_position);
	} while (read_position != before);
}

static struct nfp_record *put(struct nfp_record *slot)
{
	uint64_t offset = nfp_ring_space_offset(&thread, (uintptr_t)slot);
	CHECK((uintptr_t)slot - thread.base - offset == 0 ||
	      (uintptr_t)slot - thread.base - offset == NFP_RING_LAPS_APART);
	CHECK(offset + NFP_RECORD_BYTES <= RING_BYTES);
	return nfp_put(slot, nfp_fetch_add_local(&written, 1), 5, 7);
}

// As a template does.
static void probe(void)
{
	while (__atomic_load_n(&thread.cursor, __ATOMIC_RELAXED) >=
	       __atomic_load_n(&thread.limit, __ATOMIC_RELAXED))
		if (thread.counted ? !nfp_counted_slow(&thread, 0, 7) : !nfp_thread_slow(&thread, 0))
			return;
	put(nfp_take(&thread, 1));
}

static void write_run(uint32_t count)
{
	struct nfp_record *slot = nfp_reserve(&thread, count, 0);
	for (uint32_t i = 0; slot && i < count; i++)
		slot = put(slot);
}

static void interrupt(void)
{
	for (uint32_t i = 0; i < interruption.records; i++) {
		if (interruption.run)
			write_run(interruption.run);
		else
			probe();
		if (interruption.drain_every && i % interruption.drain_every == 0)
			drain();
	}
}

static void stepped(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info;
	if (interruption.step++ == interruption.at)
		interrupt();
	if (interruption.step > interruption.at)
		step_off_in(context);
}

static unsigned long state = 20261122;
static uint32_t draw(uint32_t below)
{
	return (uint32_t)(next_random(&state) % below);
}

// Brings the thread near the end of its lap or, with `full`, of its room.
static void approach(int full)
{
	drain();
	uint32_t back = draw(6);
	if (full) {
		for (uint32_t i = 0; i + back < USABLE &&
		                     nfp_ring_space_left(&thread, thread.cursor, shared.tail) > back * 16;
		     i++)
			probe();
		return;
	}
	for (uint32_t i = 0; nfp_ring_space_in_lap(&thread, thread.cursor) > back * NFP_RECORD_BYTES; i++) {
		probe();
		if (i % 1024 == 0)
			drain();
	}
	if (draw(2))
		drain();
}

static void trial(int number)
{
	static const uint32_t records[] = {
	    0, 1, 20, LAP_RECORDS, LAP_RECORDS + 1, LAP_RECORDS + 3, LAP_RECORDS + 200, 2 * LAP_RECORDS + 7};
	if (draw(8) == 0) {
		thread.counted = !thread.counted;
		thread.limit = 1; // as nfp_counters_set
	}
	approach(draw(4) == 0);
	memset(&interruption, 0, sizeof(interruption));
	interruption.at = (uint32_t)number % STEPS_MAX;
	interruption.records = records[draw(8)];
	interruption.run = draw(3) ? 0 : 1 + draw(8);
	interruption.drain_every = draw(4) ? 0 : 1 + draw(300);
	uint32_t run = draw(3) ? 0 : 1 + draw(8);
	step_on();
	if (run)
		write_run(run);
	else
		probe();
	probe();
	step_off();
	drain();
	CHECK(read_position == nfp_ring_space_position(&thread, thread.cursor));
}

static void prepare(void)
{
	nfp_library.session_fd = memfd_create("room", 0);
	nfp_library.header = &header;
	CHECK(ftruncate(nfp_library.session_fd, NFP_RING_OFFSET + RING_BYTES) == 0);
	CHECK(nfp_ring_map(0) == 0 && nfp_library.rings[0] % (2 * NFP_RING_LAPS_APART) == NFP_RING_PLACE);
	ring = (uint8_t *)(uintptr_t)nfp_library.rings[0];
	thread = (struct nfp_thread){.shared = &shared,
	                             .base = nfp_library.rings[0],
	                             .cursor = nfp_library.rings[0],
	                             .ring_bytes = RING_BYTES,
	                             .counter_pages = &counters};
	for (int i = 0; i < NFP_COUNTER_SLOTS; i++)
		counters.pages[i] = &not_counting;
	nfp_counters_choose(&counters, 1);
	struct sigaction action = {.sa_sigaction = stepped, .sa_flags = SA_SIGINFO};
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
}

int main(int count, char **arguments)
{
	int trials = (int)searches(count, arguments, 6000);
	prepare();
	for (int i = 0; i < trials; i++)
		trial(i);
	for (uint64_t i = 0; i < written; i++)
		CHECK(arrived[i]);
	CHECK(readings > 1000 && lost > 100);
	printf("room: %lu records, interrupted anywhere, %lu laps\n", (unsigned long)written,
	       (unsigned long)(read_position / RING_BYTES));
	return 0;
}
