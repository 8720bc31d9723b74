// SPDX-License-Identifier: Apache-2.0
// Random records, from pure noise to nearly legal ones, through drain, pipeline and statistics: never a
// crash, and what comes out obeys the rules of columns.h. Run under AddressSanitizer and UBSan. Every kind of record is
// made, alone and in the sequences in which probes write them. An argument: so many seconds instead of some seeds.
#include "check.h"
#include "counters.h"
#include "drain.h"
#include "pipeline.h"
#include "stamps.h"
#include "statistics.h"
#include "abi/ring.h"
#include "abi/session.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { FUNCTIONS = 21, THREADS = 3, CHUNK = 700, ROUNDS = 60, SEEDS = 45 };

static const uint8_t roles[FUNCTIONS] = {0,  1, 2, 3, 15, 16, 0, 1,  2,  3, 200,
                                         12, 4, 5, 6, 7,  8,  9, 10, 13, 14};

// Few values of everything, so that entries meet their exits and packets their buffers.
static struct nfp_record likely_record(unsigned long *state, uint64_t *ticks)
{
	static const uint32_t kinds[] = {0,  0,  0,  0,  1,  1,  1,  1,  2,  3,  3,  4,  4,  5,  6,
	                                 8,  8,  8,  8,  9,  10, 11, 12, 13, 14, 15, 16, 24, 25, 27,
	                                 28, 23, 29, 30, 30, 32, 32, 32, 33, 34, 16, 7,  7,  31, 17};
	static uint64_t polled; // when the last receive call was entered
	unsigned long random = next_random(state);
	uint32_t kind = kinds[random % (sizeof(kinds) / sizeof(kinds[0]))];
	struct nfp_record record = {.tag = kind << NFP_KIND_SHIFT | (random >> 8) % (FUNCTIONS + 1),
	                            .sp = 0x70000000u - (random >> 16) % 6 * 16};
	*ticks += (random >> 24) % 50;
	record.value = kind == NFP_POLL_ENTRY ? *ticks - (random >> 32) % 100 : *ticks;
	if (kind == NFP_POLL_ENTRY)
		polled = record.value;
	if (kind == NFP_PACKET_ORIGIN)
		record = (struct nfp_record){polled, record.tag, (uint32_t)((random >> 32) % 5)};
	if (kind == NFP_POLL_EXIT)
		record.sp = (uint32_t)((random >> 32) % 5 | 4 << 16);
	if (kind == NFP_PACKET) {
		record.value = 0x1000 + (random >> 32) % 9 * 64;
		record.sp = 60 | (uint32_t)((random >> 40) % 4) << 16;
	}
	if (kind == NFP_VALUE)
		record.value =
		    (random >> 40) & 1 ? (0x1000 + (random >> 41) % 9 * 64) << 16 : (random >> 32) % 5;
	if (kind == NFP_PACKET_NEXT)
		record.value = 0x1000 + (random >> 32) % 9 * 64;
	if (kind == NFP_PACKET_TAKEN || kind == NFP_PACKET_VIA)
		record = (struct nfp_record){polled << 16 | (random >> 36) % 3, record.tag,
		                             (uint32_t)((random >> 32) % 5)};
	if (kind == NFP_PACKET_TOPIC)
		record.sp = (uint32_t)((random >> 32) % 2000);
	if (kind == NFP_LOST)
		record.sp = (random >> 32) % 5 == 4 ? NFP_LOST_MISTIMED : (random >> 32) % 5;
	if (kind == NFP_BATCH_NOTE)
		record.sp = (random >> 32) % 4;
	if (kind >= NFP_COUNTERS) // of few counters that change seldom
		record.tag = kind << NFP_KIND_SHIFT | ((random >> 40) % 9 == 0 ? 3 : 2) |
		             ((random >> 44) % 9 == 0) << NFP_COUNTERS_CHANGE_SHIFT;
	return record;
}

// The four records of a counted receive call, sometimes with others between them.
static int likely_poll(unsigned long *state, uint64_t *ticks, struct nfp_record records[8])
{
	unsigned long random = next_random(state);
	uint32_t reading =
	    NFP_COUNTERS << NFP_KIND_SHIFT | 2 | (random >> 40 & 1) << NFP_COUNTERS_CHANGE_SHIFT;
	uint32_t sp = 0x70000000u - (random >> 16) % 6 * 16, function = 1 + (random >> 8) % 2 * 6;
	const struct nfp_record whole[] = {
	    {random, reading, sp},
	    {*ticks, NFP_POLL_ENTRY << NFP_KIND_SHIFT | function, sp},
	    {random + random % 5000, reading, sp},
	    {*ticks + 9, NFP_POLL_EXIT << NFP_KIND_SHIFT | function, 3 | 4 << 16}};
	int count = 0;
	*ticks += 10;
	for (int i = 0; i < 4; i++) {
		records[count++] = whole[i];
		if (next_random(state) % 20 == 0)
			records[count++] = likely_record(state, ticks);
	}
	return count;
}

struct sequence {
	struct nfp_record *records;
	unsigned long *state;
	uint64_t *ticks;
	int count;
};

// One record of a sequence, and sometimes another one between it and the next.
static void then(struct sequence *sequence, uint32_t kind, uint32_t function, uint64_t word, uint32_t sp)
{
	sequence->records[sequence->count++] =
	    (struct nfp_record){word, kind << NFP_KIND_SHIFT | function, sp};
	if (next_random(sequence->state) % 40 == 0)
		sequence->records[sequence->count++] = likely_record(sequence->state, sequence->ticks);
}

// A receive call whose packets are described late: some when they are handed on; some are taken over.
static int likely_late(unsigned long *state, uint64_t *ticks, struct nfp_record records[32])
{
	enum { RECEIVE = 1, TRANSMIT = 2, DROP = 3, DEQUEUE = 11 };
	struct sequence sequence = {records, state, ticks, 0};
	unsigned long random = next_random(state);
	uint64_t origin = *ticks += 5, buffer = 0x1000 + random % 9 * 64;
	uint32_t giver = random >> 20 & 1 ? DROP : TRANSMIT, sp = 0x70000000u - 160;
	then(&sequence, NFP_POLL_ENTRY, RECEIVE, origin, sp);
	then(&sequence, NFP_POLL_QUEUE, RECEIVE, origin - random % 64, (uint32_t)(random >> 32));
	if (random >> 12 & 1) // some are later than the poll
		then(&sequence, NFP_BATCH_ARRIVAL, RECEIVE, origin + 8 - random % 64, 0);
	then(&sequence, NFP_POLL_EXIT, RECEIVE, *ticks += 5, 2 | 4 << 16);
	then(&sequence, NFP_BATCH_NOTE, RECEIVE, 0, (uint32_t)(random >> 8) % 4);
	if (random >> 31 & 1) {
		then(&sequence, NFP_POLL_ENTRY, DEQUEUE, *ticks += 5, sp);
		then(&sequence, NFP_POLL_EXIT, DEQUEUE, *ticks += 5, 1 | 4 << 16);
		then(&sequence, NFP_PACKET, DEQUEUE, buffer, 0);
	}
	then(&sequence, NFP_ENTRY, giver, *ticks += 5, sp);
	then(&sequence, NFP_PACKET, giver, buffer, 60);
	then(&sequence, NFP_PACKET_ORIGIN, 0, random >> 33 & 7 ? origin : random,
	     (uint32_t)(random >> 36) % 3);
	if (random >> 38 & 1)
		then(&sequence, random >> 39 & 1 ? NFP_PACKET_VIA : NFP_PACKET_TAKEN, 0,
		     origin << 16 | (random >> 44) % 3, (uint32_t)(random >> 46) % 3);
	if (random >> 48 & 1)
		then(&sequence, NFP_PACKET_TAKEN, 0, (*ticks - (random >> 49 & 7)) << 16 | (random >> 52) % 3,
		     0);
	then(&sequence, NFP_PACKET_ID, 0, buffer * 3, 4 << 24);
	for (uint64_t i = 0; i < (random >> 40) % 4; i++)
		then(&sequence, NFP_SHARE, giver, (origin - (random >> 42) % 3 * 10) << 16 | (i + random % 3),
		     sp);
	then(&sequence, NFP_VALUE, giver, 1 | 1ull << 32, sp);
	then(&sequence, NFP_EXIT, giver, *ticks += 5, sp);
	return sequence.count;
}

// A message that is read, described with its topic, and sent.
static int likely_message(unsigned long *state, uint64_t *ticks, struct nfp_record records[32])
{
	enum { SCOPE = 12, MESSAGE = 13, SEND = 14 };
	struct sequence sequence = {records, state, ticks, 0};
	unsigned long random = next_random(state);
	uint64_t buffer = 0x1000 + random % 9 * 64;
	then(&sequence, NFP_ENTRY, SCOPE, *ticks += 5, 0x70000000u);
	then(&sequence, NFP_ENTRY, MESSAGE, *ticks += 5, 0x70000000u - 16);
	then(&sequence, NFP_PACKET, MESSAGE, buffer, 0);
	then(&sequence, NFP_PACKET_ID, 0, random % 200, (uint32_t)NFP_VERSION_MESSAGE << 24);
	then(&sequence, NFP_PACKET_TOPIC, 0, 0, (uint32_t)(random >> 32) % 13);
	then(&sequence, NFP_PACKET_TEXT, 0, random, (uint32_t)(random >> 16));
	then(&sequence, NFP_EXIT, MESSAGE, *ticks += 5, 0x70000000u - 16);
	then(&sequence, NFP_ENTRY, SEND, *ticks += 5, 0x70000000u - 16);
	then(&sequence, NFP_VALUE, SEND, buffer << 16, 0x70000000u - 16);
	then(&sequence, NFP_EXIT, SEND, *ticks += 5, 0x70000000u - 16);
	then(&sequence, NFP_EXIT, SCOPE, *ticks += 5, 0x70000000u);
	return sequence.count;
}

// Returns how many.
static int likely_records(unsigned long *state, uint64_t *ticks, struct nfp_record *records, int room)
{
	if (room >= 32 && next_random(state) % 48 == 0)
		return likely_late(state, ticks, records);
	if (room >= 32 && next_random(state) % 48 == 0)
		return likely_message(state, ticks, records);
	if (room >= 8 && next_random(state) % 32 == 0)
		return likely_poll(state, ticks, records);
	records[0] = likely_record(state, ticks);
	return 1;
}

static void check_columns(const struct nfp_columns *columns)
{
	for (uint64_t i = 0; i < columns->call_count; i++) {
		const struct nfp_call *call = &columns->calls[i];
		CHECK(call->start_ticks <= call->end_ticks && call->function < FUNCTIONS);
		CHECK(call->self_ticks <= call->end_ticks - call->start_ticks);
		CHECK(call->batch == NFP_NONE || call->batch < columns->batch_count);
		if (call->parent == NFP_NONE) {
			CHECK(call->depth == 0);
			continue;
		}
		const struct nfp_call *parent = &columns->calls[call->parent];
		CHECK(call->parent < i && parent->batch == call->batch && parent->thread == call->thread);
		CHECK(parent->start_ticks <= call->start_ticks && call->end_ticks <= parent->end_ticks);
		CHECK(call->depth == parent->depth + 1);
	}
	for (uint64_t i = 0; i < columns->batch_count; i++) {
		const struct nfp_batch *batch = &columns->batches[i];
		CHECK((uint64_t)batch->first_call + batch->calls <= columns->call_count);
		CHECK((uint64_t)batch->first_packet + batch->packets <= columns->packet_count);
		CHECK(batch->packets <= batch->size && batch->size > 0);
		for (uint32_t j = 0; j < batch->calls; j++)
			CHECK(columns->calls[batch->first_call + j].batch == i);
		for (uint32_t j = 1; j < batch->calls; j++)
			CHECK(columns->calls[batch->first_call + j - 1].start_ticks <=
			      columns->calls[batch->first_call + j].start_ticks);
		for (uint32_t j = 0; j < batch->packets; j++)
			CHECK(columns->packets[batch->first_packet + j].batch == i);
	}
}

// In the order of the calls; what is valid is not more than could be counted. Returns receive calls that are.
static uint64_t check_counters(const struct nfp_columns *columns)
{
	uint64_t received = 0;
	for (uint64_t i = 0; i < columns->counters_count; i++) {
		const struct nfp_call_counters *row = &columns->counters[i];
		CHECK(row->call < columns->call_count && row->flags <= 3);
		CHECK(i == 0 || columns->counters[i - 1].call < row->call);
		CHECK(row->flags != NFP_COUNTERS_SELF_VALID);
		for (int j = 0; j < NFP_COUNTER_SLOTS; j++)
			CHECK(row->inclusive[j] <= UINT32_MAX && row->self[j] <= row->inclusive[j]);
		if (columns->calls[row->call].flags & NFP_CALL_RECEIVE)
			received += row->flags & NFP_COUNTERS_VALID;
	}
	return received;
}

static void give_costs(struct nfp_pipeline *pipeline, unsigned long *state)
{
	struct nfp_counter_cost costs[FUNCTIONS];
	for (int i = 0; i < FUNCTIONS; i++)
		for (int j = 0; j < NFP_COUNTER_SLOTS; j++) {
			costs[i].inside[j] = (int32_t)(next_random(state) % 100);
			costs[i].whole[j] = costs[i].inside[j] + (int32_t)(next_random(state) % 100);
		}
	CHECK(nfp_pipeline_counter_costs(pipeline, costs, FUNCTIONS) == 0);
}

static void fuzz(unsigned long seed, int noise, uint64_t counts_out[3])
{
	struct nfp_record records[CHUNK];
	struct nfp_columns columns;
	struct nfp_pipeline_counts counts;
	unsigned long state = seed * 0x9e3779b97f4a7c15u + 1;
	uint64_t ticks[THREADS] = {1000, 1000, 1000}, calls = 0, packets = 0, batches = 0, absorbed = 0;
	struct nfp_pipeline *pipeline = nfp_pipeline_create(roles, FUNCTIONS);
	struct nfp_statistics *statistics = nfp_statistics_create();
	CHECK(pipeline && statistics);
	give_costs(pipeline, &state);
	for (int round = 0; round <= ROUNDS; round++) {
		for (uint32_t thread = 0; round < ROUNDS && thread < THREADS; thread++) {
			for (int i = 0, last; i < CHUNK; i = last) {
				last = i + likely_records(&state, &ticks[thread], &records[i], CHUNK - i);
				if (noise && next_random(&state) % 8 < (unsigned)noise)
					((uint64_t *)&records[i])[next_random(&state) % 2] =
					    next_random(&state);
			}
			uint64_t count = next_random(&state) % CHUNK;
			if (seed % 5 == 0) // as in a session; else what a hostile recording holds
				nfp_stamps_bound(records, count, 900, ticks[thread] + 1000);
			CHECK(nfp_pipeline_feed(pipeline, thread, records, count) == 0);
		}
		if (round == ROUNDS / 2)
			nfp_pipeline_end_threads(pipeline, &(uint32_t){1}, 1);
		if (round == ROUNDS / 3)
			nfp_pipeline_count_anew(pipeline, (uint32_t)seed % 2);
		if (round == ROUNDS)
			nfp_pipeline_finish(pipeline);
		if (round < ROUNDS && next_random(&state) % 4 == 0)
			nfp_pipeline_take_part(pipeline, &columns);
		else
			nfp_pipeline_take(pipeline, &columns);
		check_columns(&columns);
		counts_out[2] += check_counters(&columns);
		CHECK(nfp_statistics_add(statistics, &columns) == 0);
		calls += columns.call_count;
		packets += columns.packet_count;
		batches += columns.batch_count;
		for (uint64_t i = 0; i < columns.packet_count; i++)
			absorbed += columns.packets[i].disposition == NFP_ABSORBED;
	}
	nfp_pipeline_count(pipeline, &counts);
	CHECK(counts.pending == 0 && counts.discarded == 0 && batches == counts.batches);
	CHECK(counts.absorbed == absorbed);
	counts_out[0] += calls;
	counts_out[1] += packets;
	CHECK(nfp_pipeline_feed(pipeline, NFP_THREAD_COUNT, records, 1) == -1);
	nfp_statistics_destroy(statistics);
	nfp_pipeline_destroy(pipeline);
}

// A ring full of noise, drained from any position.
static void fuzz_drain(void)
{
	enum { RING_BYTES = NFP_RING_BYTES_MIN };
	static uint64_t ring[RING_BYTES / 8];
	static struct nfp_record records[RING_BYTES / 16 + 5];
	unsigned long state = 7;
	for (int i = 0; i < 20000; i++) {
		for (int j = 0; j < 8; j++)
			ring[next_random(&state) % (RING_BYTES / 8)] = next_random(&state);
		uint64_t position = next_random(&state), before = position & ~15ull;
		struct nfp_drain_hole hole;
		uint64_t room = next_random(&state) % (RING_BYTES / 16 + 5);
		uint64_t count =
		    nfp_drain((uint8_t *)ring, RING_BYTES, &position, i & 1, records, room, &hole);
		uint64_t passed = position - before;
		CHECK(count <= room && passed >= (count + hole.torn) * NFP_RECORD_BYTES); // and FILL records
		CHECK(passed <= (i & 1 ? 4 : 2) * RING_BYTES);
	}
}

static struct {
	uint64_t ring[NFP_RING_BYTES_MIN / 8];
	int ends;
} shared;

// A thread of the target: writes anything anywhere into its ring, much of it committed records.
static void *scribble(void *unused)
{
	unsigned long state = 11;
	uint64_t ticks = 1000, position = 0;
	(void)unused;
	while (!__atomic_load_n(&shared.ends, __ATOMIC_RELAXED)) {
		struct nfp_record record = likely_record(&state, &ticks);
		uint64_t at = next_random(&state) % 4 ? position : next_random(&state) % (1 << 20) * 16;
		uint64_t *slot = &shared.ring[at % NFP_RING_BYTES_MIN / 8];
		uint64_t tail =
		    (uint64_t)record.sp << 32 | (uint32_t)(record.tag + nfp_ring_low(at, NFP_RING_BYTES_MIN));
		__atomic_store_n(slot, record.value, __ATOMIC_RELAXED);
		__atomic_store_n(slot + 1, next_random(&state) % 64 ? tail : next_random(&state),
		                 __ATOMIC_RELAXED);
		position += NFP_RECORD_BYTES;
	}
	return NULL;
}

// The ring changes while it is drained: what comes out is bounded, and whatever it is, the pipeline takes it.
static uint64_t fuzz_changing_ring(uint64_t most)
{
	static struct nfp_record records[CHUNK];
	struct nfp_pipeline *pipeline = nfp_pipeline_create(roles, FUNCTIONS);
	struct nfp_drain_hole hole;
	struct nfp_columns columns;
	uint64_t position = 0, drained = 0;
	pthread_t thread;
	CHECK(pipeline && pthread_create(&thread, NULL, scribble, NULL) == 0);
	for (int i = 0; drained < most; i++) {
		uint64_t before = position;
		uint64_t count = nfp_drain((const uint8_t *)shared.ring, sizeof(shared.ring), &position,
		                           i & 1, records, CHUNK, &hole);
		CHECK(count <= CHUNK && position - before <= 4 * sizeof(shared.ring));
		nfp_stamps_bound(records, count, 900, UINT64_MAX / 2);
		CHECK(nfp_pipeline_feed(pipeline, 0, records, count) == 0);
		drained += count;
		if (!count)
			sched_yield(); // to the writer
		if (i % 16 == 0) {
			nfp_pipeline_take(pipeline, &columns);
			check_columns(&columns);
		}
	}
	__atomic_store_n(&shared.ends, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	nfp_pipeline_destroy(pipeline);
	return drained;
}

int main(int count, char **arguments)
{
	uint64_t counts[3] = {0, 0, 0};
	time_t end = count > 1 ? time(NULL) + atol(arguments[1]) : 0;
	for (unsigned long seed = 1; end ? time(NULL) < end : seed <= SEEDS; seed++)
		fuzz(seed, (int)(seed % 3) * 3, counts);
	CHECK(counts[0] > 10000 && counts[1] > 1000 && counts[2] > 100);
	fuzz_drain();
	uint64_t drained = fuzz_changing_ring(end ? 20000000 : 100000);
	printf("fuzz: %lu calls, %lu packets, %lu counted receive calls came out; %lu records of a changing "
	       "ring\n",
	       (unsigned long)counts[0], (unsigned long)counts[1], (unsigned long)counts[2],
	       (unsigned long)drained);
	return 0;
}
