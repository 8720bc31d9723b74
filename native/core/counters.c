// SPDX-License-Identifier: Apache-2.0
// See counters.h.
#include "counters.h"
#include <string.h>

enum { FIRST_CALLS = 1024, TRIES = 32 };

int nfp_readings_judge(const struct nfp_readings *entry, const struct nfp_readings *exit, uint64_t ticks,
                       uint32_t *differences)
{
	if (entry->pairs == 0 || entry->pairs != exit->pairs || ticks > UINT32_MAX / NFP_COUNTS_PER_TICK)
		return 0;
	for (uint32_t pair = 0; pair < entry->pairs; pair++)
		if (entry->check[pair] != exit->check[pair] || entry->check[pair] & NFP_COUNTERS_OFF)
			return 0;
	for (uint32_t i = 0; i < 2 * entry->pairs; i++)
		differences[i] = exit->low[i] - entry->low[i];
	return 1;
}

void nfp_readings_take(struct nfp_readings *readings, const struct nfp_record *record)
{
	uint32_t pair = nfp_record_kind(record) - NFP_COUNTERS;
	uint32_t change = nfp_record_function(record) >> NFP_COUNTERS_CHANGE_SHIFT;
	if (pair == 0)
		*readings = (struct nfp_readings){.sp = record->sp, .change = change};
	if (pair != readings->pairs || record->sp != readings->sp || change != readings->change) {
		readings->pairs =
		    0; // the first ones are missing, or belong to another record or other counters
		return;
	}
	readings->low[2 * pair] = (uint32_t)record->value;
	readings->low[2 * pair + 1] = (uint32_t)(record->value >> 32);
	readings->check[pair] = record->tag & NFP_FUNCTION_MASK;
	readings->pairs = pair + 1;
}

// Whether they are of the present counters. Before the first change nothing else can be.
static int are_present(const struct nfp_counted_calls *calls, const struct nfp_readings *readings)
{
	return !calls->set || readings->change == calls->set % NFP_COUNTERS_CHANGES;
}

static struct nfp_counted *find(const struct nfp_counted_calls *calls, uint32_t number)
{
	if (!number || !calls->items)
		return NULL;
	struct nfp_counted *counted = &calls->items[number % calls->capacity];
	return counted->number == number ? counted : NULL;
}

// Twice the room: what is in use stands where its number says. Returns 0 when there is no more.
static int grow(struct nfp_counted_calls *calls)
{
	uint32_t capacity = calls->capacity ? 2 * calls->capacity : FIRST_CALLS;
	struct nfp_counted *items = capacity <= NFP_COUNTED_CALLS ? calloc(capacity, sizeof(*items)) : NULL;
	if (!items)
		return 0;
	for (uint32_t i = 0; i < calls->capacity; i++)
		if (calls->items[i].number)
			items[calls->items[i].number % capacity] = calls->items[i];
	free(calls->items);
	calls->items = items;
	calls->capacity = capacity;
	return 1;
}

// The next number whose place is free. A few calls that stay open for long are stepped over; where many are in use there
// is more room, or, at the bound, the oldest one's. NULL: there is no memory.
static struct nfp_counted *give_place(struct nfp_counted_calls *calls)
{
	struct nfp_counted *place = NULL;
	do {
		for (uint32_t tries = 0; calls->capacity && tries < TRIES; tries++) {
			if (++calls->last == 0)
				calls->last = 1;
			place = &calls->items[calls->last % calls->capacity];
			if (!place->number)
				return place;
		}
	} while (grow(calls));
	return place;
}

void nfp_counted_enter(struct nfp_counted_calls *calls, struct nfp_readings *readings, struct nfp_log *log,
                       uint32_t row, uint32_t sp)
{
	int usable = row != NFP_NONE && readings->sp == sp && are_present(calls, readings);
	struct nfp_counted *counted = usable ? give_place(calls) : NULL;
	if (counted) {
		*counted = (struct nfp_counted){.entry = *readings, .number = calls->last, .set = calls->set};
		log->items[row].thread = calls->last;
	}
	readings->pairs = 0;
}

// The innermost call around `row` that has not ended.
static struct nfp_counted *around(const struct nfp_counted_calls *calls, const struct nfp_log *log,
                                  uint32_t row)
{
	uint32_t parent = log->items[row].parent;
	while (parent != NFP_NONE && log->items[parent].end_ticks)
		parent = log->items[parent].parent;
	return parent == NFP_NONE ? NULL : find(calls, log->items[parent].thread);
}

static const struct nfp_counter_cost *cost_of(const struct nfp_counted_calls *calls, uint32_t function)
{
	static const struct nfp_counter_cost unknown;
	return function < calls->costs.count ? &calls->costs.items[function] : &unknown;
}

// The probe of a call, and those of the calls inside it, count in the call around it.
static void charge(struct nfp_counted *outer, const struct nfp_counter_cost *cost,
                   const struct nfp_counted *counted)
{
	for (uint32_t i = 0; i < NFP_COUNTER_SLOTS; i++)
		outer->probes[i] += cost->whole[i] + (counted ? counted->probes[i] : 0);
}

void nfp_counted_mark(struct nfp_counted_calls *calls, struct nfp_log *log, uint32_t row)
{
	struct nfp_counted *counted = find(calls, log->items[row].thread), *outer = around(calls, log, row);
	if (counted)
		counted->number = 0;
	if (outer)
		charge(outer, cost_of(calls, log->items[row].function), NULL);
}

// The call has ended in the one around it; `counted` is NULL where it has no number.
static void contain(struct nfp_counted *outer, const struct nfp_counter_cost *cost,
                    const struct nfp_counted *counted)
{
	int valid = counted && counted->flags & NFP_COUNTERS_VALID;
	outer->torn |= !valid || counted->torn;
	outer->inside += 1 + (counted ? counted->inside : 0);
	charge(outer, cost, counted);
	for (uint32_t i = 0; valid && i < NFP_COUNTER_SLOTS; i++)
		outer->inner[i] += counted->inclusive[i];
}

void nfp_counted_leave(struct nfp_counted_calls *calls, struct nfp_readings *readings, struct nfp_log *log,
                       uint32_t row, uint32_t sp)
{
	const struct nfp_call *call = &log->items[row];
	struct nfp_counted *counted = find(calls, call->thread), *outer = around(calls, log, row);
	const struct nfp_counter_cost *cost = cost_of(calls, call->function);
	uint32_t difference[NFP_COUNTER_SLOTS] = {0};
	int valid =
	    counted && readings->sp == sp && are_present(calls, readings) && counted->set == calls->set &&
	    nfp_readings_judge(&counted->entry, readings, call->end_ticks - call->start_ticks, difference);
	readings->pairs = 0;
	if (valid)
		counted->flags = NFP_COUNTERS_VALID | (counted->torn ? 0 : NFP_COUNTERS_SELF_VALID);
	for (uint32_t i = 0; valid && i < NFP_COUNTER_SLOTS; i++) {
		int64_t net = (int64_t)difference[i] - cost->inside[i] - counted->probes[i];
		counted->inclusive[i] = net > 0 ? (uint64_t)net : 0;
	}
	if (outer)
		contain(outer, cost, counted);
}

void nfp_counted_spoil(struct nfp_counted_calls *calls, const struct nfp_calltree *tree,
                       const struct nfp_log *log)
{
	for (uint32_t i = 0; i < tree->count; i++) {
		uint32_t row = tree->items[i].row;
		struct nfp_counted *counted = row == NFP_NONE ? NULL : find(calls, log->items[row].thread);
		if (counted)
			counted->entry.pairs = 0;
	}
}

// What ended inside it before it was known was charged to the call around it, which the batch has cut.
void nfp_counted_receive(struct nfp_counted_calls *calls, struct nfp_readings *entry,
                         struct nfp_readings *exit, struct nfp_log *log, uint32_t row, uint32_t sp)
{
	nfp_counted_enter(calls, entry, log, row, sp);
	struct nfp_counted *counted = find(calls, log->items[row].thread);
	for (uint32_t i = row + 1; counted && i < log->count; i++) {
		const struct nfp_call *call = &log->items[i];
		if (call->parent != row)
			continue;
		if (call->function == NFP_NONE)
			counted->torn = 1;
		else if (call->flags & NFP_CALL_MARK)
			charge(counted, cost_of(calls, call->function), NULL);
		else
			contain(counted, cost_of(calls, call->function), find(calls, call->thread));
	}
	nfp_counted_leave(calls, exit, log, row, sp);
}

void nfp_counted_deliver(struct nfp_counted_calls *calls, const struct nfp_call *row, uint32_t index)
{
	struct nfp_counted *counted = find(calls, row->thread);
	if (!counted || !NFP_ARRAY_RESERVE(&calls->given, calls->given.count + 1))
		return;
	struct nfp_call_counters *given = &calls->given.items[calls->given.count++];
	*given = (struct nfp_call_counters){
	    .call = index, .flags = counted->flags, .inside = counted->inside, .set = counted->set};
	for (uint32_t i = 0; counted->flags && i < NFP_COUNTER_SLOTS; i++) {
		uint64_t whole = counted->inclusive[i], inner = counted->inner[i];
		given->inclusive[i] = whole;
		given->self[i] =
		    counted->flags & NFP_COUNTERS_SELF_VALID && whole > inner ? whole - inner : 0;
	}
	counted->number = 0;
}

void nfp_counted_deinit(struct nfp_counted_calls *calls)
{
	free(calls->items);
	free(calls->given.items);
	free(calls->costs.items);
	*calls = (struct nfp_counted_calls){0};
}
