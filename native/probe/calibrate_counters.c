// SPDX-License-Identifier: Apache-2.0
// What a probe counts by itself: calls a function from the helper thread while that thread has the counters of the
// session, its probe writing into the ring of calibrate.c. Of a probed function and of functions without probe
// otel_nfprobe/counters/compensation.py makes what is taken off.
//
// One round is a reading, some calls, a reading. What lies between the readings but not in the calls is the same for
// every function, so that differences between functions are exact. A round in which the kernel changed anything about
// the counters is left out.
#include "calibrate.h"
#include "counter.h"
#include <errno.h>

enum { CALLS = 16, ROUNDS_MAX = 32 };

struct reading {
	uint32_t low[NFP_COUNTER_SLOTS];
	uint32_t check[NFP_COUNTER_PAIRS]; // as in counter.c
};
struct round {
	uint64_t in_all[NFP_COUNTER_SLOTS];
	uint64_t between[NFP_COUNTER_SLOTS]; // readings of entries and of their exits
};

static void take(struct reading *reading, const struct nfp_record *record)
{
	uint32_t pair = nfp_record_kind(record) - NFP_COUNTERS;
	reading->low[2 * pair] = (uint32_t)record->value;
	reading->low[2 * pair + 1] = (uint32_t)(record->value >> 32);
	reading->check[pair] = record->tag & NFP_FUNCTION_MASK;
}

static int is_comparable(const struct reading *first, const struct reading *second)
{
	for (int pair = 0; pair < NFP_COUNTER_PAIRS; pair++)
		if (first->check[pair] != second->check[pair] || first->check[pair] & NFP_COUNTERS_OFF)
			return 0;
	return 1;
}

static void add(uint64_t *sums, const struct reading *first, const struct reading *second)
{
	for (int i = 0; i < NFP_COUNTER_SLOTS; i++)
		sums[i] += (uint32_t)(second->low[i] - first->low[i]);
}

// What the records of a round say. Returns 0 when they cannot be compared.
static int sum_up(const struct nfp_thread *thread, struct round *round)
{
	struct reading first = {{0}, {0}}, entry = first, now = first;
	int readings = 0;
	*round = (struct round){{0}, {0}};
	for (uint64_t at = thread->base; at < thread->cursor; at += NFP_RECORD_BYTES) {
		struct nfp_record record = nfp_calibrated_record((const void *)(uintptr_t)at);
		uint32_t kind = nfp_record_kind(&record);
		if (kind >= NFP_COUNTERS && kind < NFP_COUNTERS + NFP_COUNTER_PAIRS) {
			take(&now, &record);
			readings++;
		} else if (readings && !is_comparable(&first, &now)) {
			return 0;
		} else if (kind == NFP_ENTRY || kind == NFP_POLL_ENTRY) {
			entry = now;
		} else if (kind == NFP_EXIT || kind == NFP_POLL_EXIT) {
			add(round->between, &entry, &now);
		}
		if (readings == ((int)thread->counted + 1) / 2)
			first = now;
	}
	add(round->in_all, &first, &now);
	return is_comparable(&first, &now);
}

static int run(struct nfp_thread *thread, uint64_t function, struct round *round)
{
	struct nfp_counter_pages *counters = thread->counter_pages;
	nfp_calibration_rewind();
	counters->write(thread, 0);
	for (int i = 0; i < CALLS; i++)
		nfp_call_any(function);
	counters->write(thread, 0);
	return sum_up(thread, round);
}

long nfp_calibrate_counters(uint64_t function, uint64_t wanted)
{
	static struct round rounds[ROUNDS_MAX];
	struct nfp_session_header *header = nfp_library.header;
	struct nfp_thread **word = nfp_thread_word(), *before = *word, *thread = &nfp_calibrated_thread;
	uint64_t values[ROUNDS_MAX];
	int valid = 0;
	if (!function || !thread->counted)
		return -EINVAL;
	nfp_calibration_prepare();
	__atomic_store_n(&thread->limit, 1, __ATOMIC_SEQ_CST); // as nfp_counters_set
	*word = thread;
	for (uint64_t i = 0; i < wanted && i < ROUNDS_MAX; i++)
		valid += run(thread, function, &rounds[valid]);
	*word = before;
	if (!valid)
		return -EAGAIN;
	header->counted_calls = CALLS;
	for (int counter = 0; counter < NFP_COUNTER_SLOTS; counter++) {
		for (int i = 0; i < valid; i++)
			values[i] = rounds[i].in_all[counter];
		header->counted_in_all[counter] = nfp_median(values, valid);
		for (int i = 0; i < valid; i++)
			values[i] = rounds[i].between[counter];
		header->counted_between[counter] = nfp_median(values, valid);
	}
	return 0;
}
