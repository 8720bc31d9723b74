// SPDX-License-Identifier: Apache-2.0
// What a probe costs on this CPU, in this process: a function that does nothing is called through a real
// trampoline, by the helper thread, into a ring of its own that nobody reads. The time between the two stamps
// is what the function itself would be billed for; the rest of what is added is billed to its caller.
// Called by helper.c; otel_nfprobe/probes/calibration.py makes the code.
#include "calibrate.h"
#include <errno.h>

enum { RING_BYTES = 1 << 14, CALLS = 64, ROUNDS = 101, REPEATS = 5 };

static uint8_t ring[RING_BYTES] __attribute__((aligned(64)));
static struct nfp_thread_shared shared;
struct nfp_thread nfp_calibrated_thread = {.shared = &shared};

void nfp_calibration_prepare(void)
{
	struct nfp_thread *thread = &nfp_calibrated_thread;
	thread->gate = NFP_GATE_OUTER | NFP_GATE_INNER | (thread->counted ? NFP_GATE_COUNTED : 0);
	thread->limit = thread->room = UINT64_MAX;
	thread->base = thread->cursor = (uintptr_t)ring;
	thread->ring_bytes = RING_BYTES;
	thread->packets_entry = (void *)nfp_packets_entry_thunk;
	thread->packets_exit = (void *)nfp_packets_exit_thunk;
	thread->receive_exit = (void *)nfp_receive_exit_thunk;
	thread->counted_entry = (void *)nfp_counted_entry_thunk;
	thread->counted_exit = (void *)nfp_counted_exit_thunk;
}

static uint32_t calls_ticks(uint64_t function)
{
	uint64_t start = nfp_ticks();
	for (int i = 0; i < CALLS; i++)
		nfp_call_any(function);
	return (uint32_t)(nfp_ticks() - start);
}

struct nfp_record nfp_calibrated_record(const struct nfp_record *slot)
{
	struct nfp_record record = *slot;
	record.tag -= (uint32_t)(uintptr_t)slot; // as nfp_drain
	return record;
}

void nfp_calibration_rewind(void)
{
	nfp_calibrated_thread.cursor = (uintptr_t)ring;
}

// Ticks between the stamps of the calls made since then.
static uint32_t inside_ticks(void)
{
	uint64_t sum = 0, entry = 0;
	for (uint64_t at = (uintptr_t)ring; at < nfp_calibrated_thread.cursor; at += NFP_RECORD_BYTES) {
		struct nfp_record record = nfp_calibrated_record((const void *)(uintptr_t)at);
		uint32_t kind = nfp_record_kind(&record);
		if (kind == NFP_ENTRY)
			entry = record.value;
		else if (kind == NFP_EXIT)
			sum += record.value - entry;
	}
	return (uint32_t)sum;
}

uint64_t nfp_median(uint64_t *values, int count)
{
	for (int i = 1; i < count; i++) {
		uint64_t value = values[i];
		int at = i;
		for (; at > 0 && values[at - 1] > value; at--)
			values[at] = values[at - 1];
		values[at] = value;
	}
	return values[count / 2];
}

static void measure(uint64_t bare, uint64_t probed, uint32_t *inside, uint32_t *added)
{
	static uint64_t bare_ticks[ROUNDS], probed_ticks[ROUNDS], between[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		bare_ticks[round] = calls_ticks(bare);
		nfp_calibration_rewind();
		probed_ticks[round] = calls_ticks(probed);
		between[round] = inside_ticks();
	}
	uint32_t without = (uint32_t)nfp_median(bare_ticks, ROUNDS),
	         with = (uint32_t)nfp_median(probed_ticks, ROUNDS);
	*inside = (uint32_t)nfp_median(between, ROUNDS);
	*added = with > without ? with - without : 0;
}

long nfp_calibrate(uint64_t bare, uint64_t probed)
{
	struct nfp_session_header *header = nfp_library.header;
	struct nfp_thread **word = nfp_thread_word(), *before = *word;
	if (!bare || !probed)
		return -EINVAL;
	nfp_calibration_prepare();
	uint32_t best_inside = UINT32_MAX, best_added = UINT32_MAX;
	*word = &nfp_calibrated_thread;
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		uint32_t inside, added;
		measure(bare, probed, &inside, &added);
		// The least disturbed repeat; both figures are of the same one.
		if (added < best_added) {
			best_added = added;
			best_inside = inside;
		}
	}
	*word = before;
	header->calibrated_calls = CALLS;
	header->calibrated_inside_ticks = best_inside;
	header->calibrated_added_ticks = best_added;
	return 0;
}
