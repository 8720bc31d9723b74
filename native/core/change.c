// SPDX-License-Identifier: Apache-2.0
// Made before the target is stopped or watched: afterwards only binary searches are left.
#include "change.h"
#include "patch_process.h"
#include <errno.h>

// A heap sort: the C library's qsort allocates.
static void sink(struct nfp_span *spans, uint32_t from, uint32_t count)
{
	struct nfp_span span = spans[from];
	for (uint32_t child; (child = 2 * from + 1) < count; from = child) {
		if (child + 1 < count && spans[child + 1].address > spans[child].address)
			child++;
		if (spans[child].address <= span.address)
			break;
		spans[from] = spans[child];
	}
	spans[from] = span;
}

static void sort_spans(struct nfp_span *spans, uint32_t count)
{
	for (uint32_t i = count / 2; i-- > 0;)
		sink(spans, i, count);
	for (uint32_t last = count; last-- > 1;) {
		struct nfp_span largest = spans[0];
		spans[0] = spans[last];
		spans[last] = largest;
		sink(spans, 0, last);
	}
}

// Whether the bytes lie where a program's can: addresses are offsets in /proc/PID/mem, and those are signed.
static int is_place(uint64_t address, uint32_t bytes)
{
	return address <= (uint64_t)INT64_MAX - bytes;
}

static int is_sound(const struct nfp_change *change)
{
	return change->bytes && change->bytes <= sizeof(change->expected) &&
	       is_place(change->address, change->bytes) && is_place(change->island, NFP_ISLAND_BYTES);
}

// Two changes of the same bytes cannot both be meant: neither is made. The spans are sorted by address.
static void refuse_overlapping(struct nfp_plan *plan)
{
	const struct nfp_span *farthest = NULL; // of those before, the one that ends last
	for (uint32_t i = 0; i < plan->span_count; i++) {
		const struct nfp_span *span = &plan->spans[i];
		if (farthest && span->address < farthest->address + farthest->bytes) {
			plan->changes[span->change].failed = NFP_CHANGE_UNEXPECTED;
			plan->changes[farthest->change].failed = NFP_CHANGE_UNEXPECTED;
		}
		if (!farthest || span->address + span->bytes > farthest->address + farthest->bytes)
			farthest = span;
	}
	uint32_t kept = 0;
	for (uint32_t i = 0; i < plan->span_count; i++)
		if (!plan->changes[plan->spans[i].change].failed)
			plan->spans[kept++] = plan->spans[i];
	plan->span_count = kept;
}

int nfp_plan_make(struct nfp_plan *plan, struct nfp_change *changes, uint32_t count,
                  const struct nfp_move *moves)
{
	*plan = (struct nfp_plan){.changes = changes, .count = count, .moves = moves};
	plan->spans = nfp_patch_process_memory((2 * (size_t)count + 1) * sizeof(*plan->spans));
	if (!plan->spans)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_change *change = &changes[i];
		change->failed = is_sound(change) ? NFP_CHANGE_MADE : NFP_CHANGE_UNEXPECTED;
		if (change->failed)
			continue;
		plan->spans[plan->span_count++] = (struct nfp_span){change->address, change->bytes, i,
		                                                    change->expected, change->replacement};
		if (change->island)
			plan->spans[plan->span_count++] =
			    (struct nfp_span){change->island, NFP_ISLAND_BYTES, i, change->island_expected,
			                      change->island_replacement};
	}
	sort_spans(plan->spans, plan->span_count);
	refuse_overlapping(plan);
	return 0;
}

int nfp_plan_has(const struct nfp_plan *plan, uint32_t index)
{
	const struct nfp_span *span = nfp_plan_span(plan, plan->changes[index].address);
	return span && span->change == index;
}

const struct nfp_span *nfp_plan_span(const struct nfp_plan *plan, uint64_t address)
{
	uint32_t low = 0, high = plan->span_count;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (plan->spans[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return NULL;
	const struct nfp_span *span = &plan->spans[low - 1];
	return address < span->address + span->bytes ? span : NULL;
}

int nfp_plan_place(const struct nfp_plan *plan, uint64_t address, uint64_t *place)
{
	const struct nfp_span *span = nfp_plan_span(plan, address);
	if (!span)
		return 0;
	const struct nfp_change *change = &plan->changes[span->change];
	if (address == change->island) {
		*place = change->trampoline;
		return 1;
	}
	for (uint32_t i = change->first_move; i < change->first_move + change->moves; i++)
		if (plan->moves[i].from == address) {
			*place = plan->moves[i].to;
			return 1;
		}
	return address == change->address ? 0 : -EBUSY;
}
