// SPDX-License-Identifier: Apache-2.0
// See statistics.h. A histogram is a table of blocks, one per power of two, made when a value falls into it.
#include "statistics.h"
#include "abi/record.h"
#include "array.h"
#include "arrival.h"
#include "calltree.h"
#include <stdlib.h>
#include <string.h>

enum { SUB_BITS = 5, SUBS = 1 << SUB_BITS, BLOCKS = 64 - SUB_BITS + 1, OTHERS = 4 };

struct histogram {
	struct nfp_summary summary;
	uint64_t *blocks[BLOCKS];
};

struct function {
	struct histogram ticks; // without the cost of probes, as far as that is known
	struct histogram self;
	struct nfp_summary raw; // as measured
	uint64_t self_cost_ticks; // in the sum of `self`: own probes inside, callees' probes outside
};

struct nfp_statistics {
	struct nfp_costs costs;
	struct function **items; // by function id; NULL: never called
	uint32_t count;
	uint32_t capacity;
	struct histogram others[OTHERS]; // NFP_BATCH_SIZE and after
	uint64_t *sizes; // of batches
	uint64_t origins[NFP_ORIGINS]; // of NFP_PACKET_TICKS
	struct nfp_prior prior;
	struct {
		uint16_t *items; // of a batch's calls: the roles of those around it
		uint32_t capacity;
	} around;
};

// How many batches had how many packets: a count for each size up to NFP_SIZES_EXACT - 1, and none beyond, where the
// buckets tell. Made when the first batch is counted.

// 0, or -1 when there is no memory.
static int put_size(uint64_t **sizes, uint64_t size, uint64_t count)
{
	if (!*sizes)
		*sizes = calloc(NFP_SIZES_EXACT, sizeof(**sizes));
	if (!*sizes)
		return -1;
	if (size < NFP_SIZES_EXACT)
		(*sizes)[size] += count;
	return 0;
}

static int merge_sizes(uint64_t **sizes, const uint64_t *other)
{
	int result = 0;
	for (uint32_t size = 0; other && size < NFP_SIZES_EXACT; size++)
		if (other[size])
			result |= put_size(sizes, size, other[size]);
	return result;
}

// The sizes that occur, as buckets of one value each; returns their number, at most `room`.
static uint32_t list_sizes(const uint64_t *sizes, struct nfp_bucket *buckets, uint32_t room)
{
	uint32_t found = 0;
	for (uint32_t size = 0; sizes && size < NFP_SIZES_EXACT && found < room; size++)
		if (sizes[size])
			buckets[found++] = (struct nfp_bucket){size, sizes[size]};
	return found;
}

// Values below 32 have their own bucket; block b > 0 holds 2^(b+4) <= value < 2^(b+5).
static uint32_t block_of(uint64_t value)
{
	return value < SUBS ? 0 : 64 - (uint32_t)__builtin_clzll(value) - SUB_BITS;
}

static uint32_t sub_of(uint64_t value, uint32_t block)
{
	return (uint32_t)(value >> (block ? block - 1 : 0)) & (SUBS - 1);
}

static uint64_t lowest_of(uint32_t block, uint32_t sub)
{
	return block ? (uint64_t)(SUBS + sub) << (block - 1) : sub;
}

static uint64_t width_of(uint32_t block)
{
	return block ? (uint64_t)1 << (block - 1) : 1;
}

static void summary_put(struct nfp_summary *summary, uint64_t value)
{
	if (!summary->count++ || value < summary->min)
		summary->min = value;
	if (value > summary->max)
		summary->max = value;
	summary->total += value;
}

static void summary_merge(struct nfp_summary *to, const struct nfp_summary *from)
{
	if (from->count && (!to->count || from->min < to->min))
		to->min = from->min;
	if (from->max > to->max)
		to->max = from->max;
	to->count += from->count;
	to->clipped += from->clipped;
	to->total += from->total;
}

static int histogram_put(struct histogram *histogram, uint64_t value)
{
	uint32_t block = block_of(value);
	if (!histogram->blocks[block]) {
		histogram->blocks[block] = calloc(SUBS, sizeof(uint64_t));
		if (!histogram->blocks[block])
			return -1;
	}
	histogram->blocks[block][sub_of(value, block)]++;
	summary_put(&histogram->summary, value);
	return 0;
}

static int histogram_put_many(struct histogram *histogram, uint64_t value, uint64_t count)
{
	if (!count)
		return 0;
	if (histogram_put(histogram, value))
		return -1;
	uint32_t block = block_of(value);
	histogram->blocks[block][sub_of(value, block)] += count - 1;
	histogram->summary.count += count - 1;
	histogram->summary.total += value * (count - 1);
	return 0;
}

static int histogram_merge(struct histogram *histogram, const struct histogram *other)
{
	for (uint32_t block = 0; block < BLOCKS; block++) {
		if (!other->blocks[block])
			continue;
		if (!histogram->blocks[block])
			histogram->blocks[block] = calloc(SUBS, sizeof(uint64_t));
		if (!histogram->blocks[block])
			return -1;
		for (uint32_t sub = 0; sub < SUBS; sub++)
			histogram->blocks[block][sub] += other->blocks[block][sub];
	}
	summary_merge(&histogram->summary, &other->summary);
	return 0;
}

static void histogram_deinit(struct histogram *histogram)
{
	for (uint32_t block = 0; block < BLOCKS; block++)
		free(histogram->blocks[block]);
}

struct nfp_statistics *nfp_statistics_create(void)
{
	return calloc(1, sizeof(struct nfp_statistics));
}

void nfp_statistics_destroy(struct nfp_statistics *statistics)
{
	if (!statistics)
		return;
	for (uint32_t i = 0; i < statistics->count; i++) {
		if (!statistics->items[i])
			continue;
		histogram_deinit(&statistics->items[i]->ticks);
		histogram_deinit(&statistics->items[i]->self);
		free(statistics->items[i]);
	}
	for (uint32_t i = 0; i < OTHERS; i++)
		histogram_deinit(&statistics->others[i]);
	free(statistics->sizes);
	free(statistics->around.items);
	free(statistics->costs.items);
	free(statistics->items);
	free(statistics);
}

static struct function *function_of(struct nfp_statistics *statistics, uint32_t id)
{
	if (id > NFP_FUNCTION_MASK || !NFP_ARRAY_RESERVE(statistics, id + 1))
		return NULL;
	if (id >= statistics->count) {
		memset(statistics->items + statistics->count, 0,
		       (id + 1 - statistics->count) * sizeof(*statistics->items));
		statistics->count = id + 1;
	}
	if (!statistics->items[id])
		statistics->items[id] = calloc(1, sizeof(struct function));
	return statistics->items[id];
}

// The rest of a call that was cut counts as time, and not as one call more.
static int continue_call(struct function *function, uint64_t ticks, uint64_t self_ticks)
{
	function->raw.total += ticks;
	function->ticks.summary.total += ticks;
	function->self.summary.total += self_ticks;
	return 0;
}

static int add_call(struct nfp_statistics *statistics, const struct nfp_call *call)
{
	struct function *function =
	    call->function < statistics->count ? statistics->items[call->function] : NULL;
	if (!function)
		function = function_of(statistics, call->function);
	if (!function)
		return call->function > NFP_FUNCTION_MASK ? 0 : -1;
	uint64_t raw = call->end_ticks - call->start_ticks;
	// A clipped call's cost is that of the whole call.
	uint64_t cost = call->flags & NFP_CALL_CLIPPED ? 0 : call->cost_ticks;
	function->ticks.summary.clipped += call->flags & NFP_CALL_CLIPPED ? 1 : 0;
	if (call->flags & NFP_CALL_CONTINUED)
		return continue_call(function, raw, call->self_ticks);
	summary_put(&function->raw, raw);
	return histogram_put(&function->ticks, raw > cost ? raw - cost : 0) |
	       histogram_put(&function->self, call->self_ticks);
}

static void charge_self(struct nfp_statistics *statistics, const struct nfp_columns *columns, uint64_t index)
{
	const struct nfp_call *call = &columns->calls[index];
	if (call->function >= statistics->costs.count || call->function >= statistics->count)
		return;
	const struct nfp_cost *cost = &statistics->costs.items[call->function];
	struct function *function = statistics->items[call->function];
	if (function)
		function->self_cost_ticks += cost->inside_ticks;
	if (call->parent >= index || columns->calls[call->parent].function >= statistics->count)
		return; // NFP_NONE among them; parents stand before their children
	function = statistics->items[columns->calls[call->parent].function];
	if (function && cost->whole_ticks > cost->inside_ticks)
		function->self_cost_ticks += cost->whole_ticks - (uint64_t)cost->inside_ticks;
}

int nfp_statistics_costs(struct nfp_statistics *statistics, const struct nfp_cost *costs, uint32_t functions)
{
	if (functions > NFP_FUNCTION_MASK + 1 || !NFP_ARRAY_RESERVE(&statistics->costs, functions + 1))
		return -1;
	memcpy(statistics->costs.items, costs, functions * sizeof(*costs));
	statistics->costs.count = functions;
	return 0;
}

uint64_t nfp_statistics_self_cost(const struct nfp_statistics *statistics, uint32_t function)
{
	return function < statistics->count && statistics->items[function]
	           ? statistics->items[function]->self_cost_ticks
		   : 0;
}

static int add_batch(struct nfp_statistics *statistics, const struct nfp_batch *batch)
{
	struct histogram *others = statistics->others;
	return put_size(&statistics->sizes, batch->size, 1) |
	       histogram_put(&others[NFP_BATCH_SIZE - NFP_BATCH_SIZE], batch->size) |
	       histogram_put(&others[NFP_BATCH_TICKS - NFP_BATCH_SIZE],
	                     batch->end_ticks - batch->start_ticks);
}

// Packets that can have waited since before the records began: what made them late is not in the records.
static void add_prior(struct nfp_statistics *statistics, uint64_t latency_ticks, uint64_t packets)
{
	statistics->prior.packets += packets;
	if (packets && statistics->prior.longest_ticks < latency_ticks)
		statistics->prior.longest_ticks = latency_ticks;
}

static int add_packet(struct nfp_statistics *statistics, const struct nfp_packet *packet,
                      const struct nfp_batch *batch)
{
	struct histogram *others = statistics->others;
	uint64_t start_ticks = batch->start_ticks;
	if (packet->disposition == NFP_UNKNOWN || packet->done_ticks < start_ticks)
		return 0;
	uint64_t latency_ticks = packet->done_ticks - nfp_life_start(packet, batch);
	if (batch->flags & NFP_BATCH_PRIOR && nfp_life_start(packet, batch) < start_ticks) {
		add_prior(statistics, latency_ticks, 1);
		return 0;
	}
	statistics->origins[nfp_life_origin(packet, batch)]++;
	return histogram_put(&others[NFP_PACKET_TICKS - NFP_BATCH_SIZE], latency_ticks) |
	       histogram_put(&others[NFP_PACKET_OWN_TICKS - NFP_BATCH_SIZE],
	                     packet->done_ticks - start_ticks);
}

// How many packets the call handed on; 0 as well when it is inside another one that did so, of the roles `around`.
static uint64_t handed_on(const struct nfp_call *call, uint16_t around)
{
	uint16_t role = call->flags & (NFP_CALL_TRANSMIT | NFP_CALL_DROP);
	return role && !(around & role) && call->flags & NFP_CALL_VALUE ? call->value & UINT32_MAX : 0;
}

// The packets of a chosen batch are not all described: they are as old as the calls that handed them on tell.
static int add_chosen(struct nfp_statistics *statistics, const struct nfp_columns *columns,
                      const struct nfp_batch *batch)
{
	struct histogram *others = statistics->others;
	const struct nfp_call *calls = columns->calls + batch->first_call;
	int result = NFP_ARRAY_RESERVE(&statistics->around, batch->calls + 1) ? 0 : -1;
	uint16_t *around = statistics->around.items;
	for (uint32_t i = 0; !result && i < batch->calls; i++) {
		const struct nfp_call *call = &calls[i];
		uint32_t parent = call->parent - batch->first_call; // parents stand before their children
		around[i] = parent < i ? (uint16_t)(around[parent] | calls[parent].flags) : 0;
		uint64_t packets = handed_on(call, around[i]), own = call->end_ticks - batch->start_ticks;
		if (call->end_ticks < batch->start_ticks)
			continue;
		uint64_t age = own + (batch->start_ticks - nfp_batch_age_start(batch));
		if (batch->flags & NFP_BATCH_TAKEN_OVER) // they were received elsewhere, and before
			own = age;
		if (batch->flags & NFP_BATCH_PRIOR && nfp_batch_age_start(batch) < batch->start_ticks) {
			add_prior(statistics, age, packets);
			continue;
		}
		statistics->origins[nfp_batch_age_origin(batch)] += packets;
		result |= histogram_put_many(&others[NFP_PACKET_TICKS - NFP_BATCH_SIZE], age, packets);
		result |= histogram_put_many(&others[NFP_PACKET_OWN_TICKS - NFP_BATCH_SIZE], own, packets);
	}
	return result;
}

int nfp_statistics_add(struct nfp_statistics *statistics, const struct nfp_columns *columns)
{
	int result = 0;
	for (uint64_t i = 0; i < columns->call_count; i++) {
		result |= add_call(statistics, &columns->calls[i]);
		charge_self(statistics, columns, i);
	}
	for (uint64_t i = 0; i < columns->batch_count; i++)
		result |= add_batch(statistics, &columns->batches[i]);
	for (uint64_t i = 0; i < columns->batch_count; i++)
		if (columns->batches[i].flags & NFP_BATCH_CHOSEN)
			result |= add_chosen(statistics, columns, &columns->batches[i]);
	for (uint64_t i = 0; i < columns->packet_count; i++) {
		const struct nfp_packet *packet = &columns->packets[i];
		if (packet->batch < columns->batch_count &&
		    !(columns->batches[packet->batch].flags & NFP_BATCH_CHOSEN))
			result |= add_packet(statistics, packet, &columns->batches[packet->batch]);
	}
	return result;
}

int nfp_statistics_merge(struct nfp_statistics *statistics, const struct nfp_statistics *other)
{
	int result = 0;
	for (uint32_t i = 0; i < other->count; i++) {
		if (!other->items[i])
			continue;
		struct function *function = function_of(statistics, i);
		if (!function)
			return -1;
		result |= histogram_merge(&function->ticks, &other->items[i]->ticks);
		result |= histogram_merge(&function->self, &other->items[i]->self);
		summary_merge(&function->raw, &other->items[i]->raw);
		function->self_cost_ticks += other->items[i]->self_cost_ticks;
	}
	for (uint32_t i = 0; i < OTHERS; i++)
		result |= histogram_merge(&statistics->others[i], &other->others[i]);
	result |= merge_sizes(&statistics->sizes, other->sizes);
	for (uint32_t i = 0; i < NFP_ORIGINS; i++)
		statistics->origins[i] += other->origins[i];
	add_prior(statistics, other->prior.longest_ticks, other->prior.packets);
	return result;
}

uint32_t nfp_statistics_functions(const struct nfp_statistics *statistics)
{
	return statistics->count;
}

void nfp_statistics_call_counts(const struct nfp_statistics *statistics, uint64_t *counts, uint32_t functions)
{
	for (uint32_t i = 0; i < functions; i++)
		counts[i] = i < statistics->count && statistics->items[i]
		                ? statistics->items[i]->ticks.summary.count
		                : 0;
}

static const struct histogram *find(const struct nfp_statistics *statistics, uint32_t distribution,
                                    uint32_t function)
{
	static const struct histogram empty;
	if (distribution >= NFP_BATCH_SIZE)
		return distribution - NFP_BATCH_SIZE < OTHERS
		           ? &statistics->others[distribution - NFP_BATCH_SIZE]
			   : &empty;
	if (function >= statistics->count || !statistics->items[function])
		return &empty;
	return distribution == NFP_CALL_TICKS ? &statistics->items[function]->ticks
	                                      : &statistics->items[function]->self;
}

void nfp_statistics_summary(const struct nfp_statistics *statistics, uint32_t distribution, uint32_t function,
                            struct nfp_summary *summary)
{
	static const struct nfp_summary empty;
	if (distribution != NFP_RAW_TICKS)
		*summary = find(statistics, distribution, function)->summary;
	else if (function < statistics->count && statistics->items[function])
		*summary = statistics->items[function]->raw;
	else
		*summary = empty;
}

static uint64_t within(const struct nfp_summary *summary, uint64_t value)
{
	if (value < summary->min)
		return summary->min;
	return value > summary->max ? summary->max : value;
}

uint64_t nfp_statistics_quantile(const struct nfp_statistics *statistics, uint32_t distribution,
                                 uint32_t function, double quantile)
{
	const struct histogram *histogram = find(statistics, distribution, function);
	const struct nfp_summary *summary = &histogram->summary;
	double exact = quantile > 0 ? quantile * (double)summary->count : 0;
	uint64_t rank = exact >= (double)summary->count ? summary->count : (uint64_t)exact;
	if ((double)rank < exact && rank < summary->count)
		rank++;
	if (rank <= 1)
		return summary->min;
	if (rank == summary->count)
		return summary->max;
	for (uint32_t block = 0; block < BLOCKS; block++) {
		for (uint32_t sub = 0; histogram->blocks[block] && sub < SUBS; sub++) {
			uint64_t count = histogram->blocks[block][sub];
			if (count >= rank)
				return within(summary, lowest_of(block, sub) + width_of(block) / 2);
			rank -= count;
		}
	}
	return summary->max;
}

struct nfp_prior nfp_statistics_prior(const struct nfp_statistics *statistics)
{
	return statistics->prior;
}

void nfp_statistics_origins(const struct nfp_statistics *statistics, uint64_t counts[NFP_ORIGINS])
{
	memcpy(counts, statistics->origins, sizeof(statistics->origins));
}

uint32_t nfp_statistics_histogram(const struct nfp_statistics *statistics, uint32_t distribution,
                                  uint32_t function, struct nfp_bucket *buckets, uint32_t room)
{
	const struct histogram *histogram = find(statistics, distribution, function);
	int exact = distribution == NFP_BATCH_SIZE;
	uint32_t found = exact ? list_sizes(statistics->sizes, buckets, room) : 0;
	for (uint32_t block = exact ? block_of(NFP_SIZES_EXACT) : 0; block < BLOCKS; block++)
		for (uint32_t sub = 0; histogram->blocks[block] && sub < SUBS && found < room; sub++)
			if (histogram->blocks[block][sub])
				buckets[found++] =
				    (struct nfp_bucket){lowest_of(block, sub) + width_of(block) - 1,
				                        histogram->blocks[block][sub]};
	return found;
}
