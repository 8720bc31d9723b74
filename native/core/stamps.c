// SPDX-License-Identifier: Apache-2.0
// See stamps.h.
#include "stamps.h"

// Kinds whose word is the moment at which they were written, or their call was entered.
static const uint32_t stamped = 1u << NFP_ENTRY | 1u << NFP_EXIT | 1u << NFP_POLL_ENTRY |
                                1u << NFP_POLL_EXIT | 1u << NFP_UNWOUND | 1u << NFP_MARK;

static int is_older_fact(const struct nfp_record *record)
{
	uint32_t kind = nfp_record_kind(record);
	return kind == NFP_POLL_QUEUE || kind == NFP_BATCH_ARRIVAL ||
	       (kind == NFP_PACKET_ARRIVAL && record->sp == NFP_ARRIVAL_TICKS);
}

uint64_t nfp_stamps_bound(struct nfp_record *records, uint64_t count, uint64_t earliest_ticks,
                          uint64_t latest_ticks)
{
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < count; i++) {
		struct nfp_record *record = &records[i];
		if (__builtin_expect(record->value - earliest_ticks <= latest_ticks - earliest_ticks, 1))
			continue; // most words that are no stamps are not between the two
		uint32_t kind = nfp_record_kind(record);
		if (kind < 32 && stamped >> kind & 1) {
			*record = (struct nfp_record){1, NFP_LOST << NFP_KIND_SHIFT, NFP_LOST_MISTIMED};
			wrong++;
		} else if (record->value && record->value < earliest_ticks && is_older_fact(record)) {
			record->value = earliest_ticks;
		}
	}
	return wrong;
}
