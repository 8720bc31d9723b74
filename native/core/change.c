// SPDX-License-Identifier: Apache-2.0
// Made before the target is stopped or watched: afterwards only binary searches are left.
#include "change.h"
#include <errno.h>
#include <stdlib.h>

static int compare_spans(const void *left, const void *right)
{
	uint64_t a = ((const struct nfp_span *)left)->address, b = ((const struct nfp_span *)right)->address;
	return a < b ? -1 : a > b;
}

int nfp_plan_make(struct nfp_plan *plan, struct nfp_change *changes, uint32_t count,
                  const struct nfp_move *moves)
{
	*plan = (struct nfp_plan){.changes = changes, .count = count, .moves = moves};
	plan->spans = calloc(2 * (size_t)count + 1, sizeof(*plan->spans));
	if (!plan->spans)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_change *change = &changes[i];
		plan->spans[plan->span_count++] = (struct nfp_span){change->address, change->bytes, i,
		                                                    change->expected, change->replacement};
		if (change->island)
			plan->spans[plan->span_count++] =
			    (struct nfp_span){change->island, NFP_ISLAND_BYTES, i, change->island_expected,
			                      change->island_replacement};
	}
	qsort(plan->spans, plan->span_count, sizeof(*plan->spans), compare_spans);
	return 0;
}

void nfp_plan_free(struct nfp_plan *plan)
{
	free(plan->spans);
	plan->spans = NULL;
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
