// SPDX-License-Identifier: Apache-2.0
// Counters: judges the readings of a call's entry and exit, and gives each call what was counted in it and what in it
// alone, without what the probes count by themselves. Pure.
//
// A row of a log that was counted has the number of its reading, from 1, in `thread`, which has no meaning before
// delivery. The numbers go on for ever; a reading's memory is used again once its call was delivered. There is as much as
// calls are open or undelivered at a time, up to NFP_COUNTED_CALLS: of more than these the oldest are not counted.
#ifndef NFPROBE_COUNTERS_H
#define NFPROBE_COUNTERS_H
#include "abi/record.h"
#include "array.h"
#include "calltree.h"
#include "columns.h"

// cdef begin
enum {
	NFP_COUNTED_CALLS = 1 << 18, // counted calls that may be open or undelivered
	// No counter rises more often than this in a tick, so that a call of up to
	// 2^32 / NFP_COUNTS_PER_TICK ticks has a difference below 2^32.
	NFP_COUNTS_PER_TICK = 32,
};

// The readings before one record.
struct nfp_readings {
	uint32_t low[NFP_COUNTER_SLOTS]; // low halves
	uint32_t check[NFP_COUNTER_PAIRS]; // sum of the locks of each pair; its lowest bit: not counting
	uint32_t pairs;
	uint32_t sp; // of the entry or exit that they belong to
	uint32_t change; // which counters they are, of the last NFP_COUNTERS_CHANGES
};

// What was counted between two readings, `ticks` apart. Returns 1, or 0: they cannot be compared, as the counters were
// not counting, have been changed, or may have wrapped.
int nfp_readings_judge(const struct nfp_readings *entry, const struct nfp_readings *exit, uint64_t ticks,
                       uint32_t *differences);
// cdef end

struct nfp_counted {
	struct nfp_readings entry;
	uint32_t number;
	uint32_t flags; // enum nfp_counters_flags, once the call has ended
	uint32_t inside;
	uint32_t set;
	uint32_t torn; // a call inside it was not counted
	uint64_t inclusive[NFP_COUNTER_SLOTS]; // without its probe and those inside it
	uint64_t inner[NFP_COUNTER_SLOTS]; // the same of the calls directly inside it
	int64_t probes[NFP_COUNTER_SLOTS]; // of all calls inside it, counted by their probes
};

struct nfp_counted_calls {
	struct nfp_counted *items; // by number, in a ring of `capacity`; NULL: nothing was ever counted
	uint32_t capacity; // a power of two
	uint32_t last; // number given out
	uint32_t
	    set; // how often the counters were changed; readings of others than the present ones are left out
	struct {
		struct nfp_counter_cost *items; // by function id
		uint32_t count;
		uint32_t capacity;
	} costs;
	struct {
		struct nfp_call_counters *items;
		uint32_t count;
		uint32_t capacity;
	} given;
};

// A record of kind NFP_COUNTERS and after.
void nfp_readings_take(struct nfp_readings *readings, const struct nfp_record *record);
// The call in `row` of the log begins at `sp`.
void nfp_counted_enter(struct nfp_counted_calls *calls, struct nfp_readings *readings, struct nfp_log *log,
                       uint32_t row, uint32_t sp);
// It has ended.
void nfp_counted_leave(struct nfp_counted_calls *calls, struct nfp_readings *readings, struct nfp_log *log,
                       uint32_t row, uint32_t sp);
// The open calls have no counts: what a probe inside them counted was lost.
void nfp_counted_spoil(struct nfp_counted_calls *calls, const struct nfp_calltree *tree,
                       const struct nfp_log *log);
// A receive call is in `row`; the calls inside it follow there, and have ended. With its readings at both ends.
void nfp_counted_receive(struct nfp_counted_calls *calls, struct nfp_readings *entry,
                         struct nfp_readings *exit, struct nfp_log *log, uint32_t row, uint32_t sp);
// It is a mark: only its entry was measured, and it has no counts.
void nfp_counted_mark(struct nfp_counted_calls *calls, struct nfp_log *log, uint32_t row);
// It becomes call `index` of the columns.
void nfp_counted_deliver(struct nfp_counted_calls *calls, const struct nfp_call *row, uint32_t index);
void nfp_counted_deinit(struct nfp_counted_calls *calls);
#endif
