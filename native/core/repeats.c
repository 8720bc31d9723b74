// SPDX-License-Identifier: Apache-2.0
// Marks packets whose digest was seen before (repeats.h). A set is a table of bare digests (table.h), which is emptied when its
// window is over.
#include "repeats.h"
#include "table.h"
#include "abi/record.h"
#include <stdlib.h>
#include <string.h>

enum { SLOTS_FIRST = 4096 };

struct set {
	struct nfp_table digests; // 0: free
	uint64_t window;
	uint8_t incomplete; // digests were left out
};

struct nfp_repeats {
	struct set sets[2]; // of a window and the one before it, at window % 2
	uint64_t window_ns;
	uint32_t digests_max;
	struct nfp_repeats_counts counts;
};

struct nfp_repeats *nfp_repeats_create(uint64_t window_ns, uint32_t digests_max)
{
	struct nfp_repeats *repeats = calloc(1, sizeof(*repeats));
	if (!repeats)
		return NULL;
	repeats->window_ns = window_ns ? window_ns : 1;
	repeats->digests_max = digests_max;
	repeats->sets[1].window = 1;
	nfp_hash_init(&repeats->sets[0].digests.hash);
	repeats->sets[1].digests.hash = repeats->sets[0].digests.hash;
	return repeats;
}

void nfp_repeats_destroy(struct nfp_repeats *repeats)
{
	if (!repeats)
		return;
	nfp_table_deinit(&repeats->sets[0].digests);
	nfp_table_deinit(&repeats->sets[1].digests);
	free(repeats);
}

static int is_free(const void *row)
{
	return !*(const uint64_t *)row;
}

static const struct nfp_rows digest_rows = {
    .bytes = sizeof(uint64_t), .first = SLOTS_FIRST, .is_free = is_free};

static int has(const struct set *set, uint64_t digest)
{
	return set->digests.count && *(uint64_t *)nfp_table_find(&set->digests, &digest_rows, digest);
}

static void add(struct set *set, uint64_t digest, uint32_t digests_max)
{
	if (set->digests.count >= digests_max || !nfp_table_make_room(&set->digests, &digest_rows)) {
		set->incomplete = 1;
		return;
	}
	*(uint64_t *)nfp_table_find(&set->digests, &digest_rows, digest) = digest;
	set->digests.count++;
}

// The table of an earlier window serves a new one; one that was hardly used is given back.
static void begin_window(struct set *set, uint64_t window)
{
	struct nfp_table *digests = &set->digests;
	if (digests->count < digests->capacity / 8)
		nfp_table_deinit(digests);
	else if (digests->capacity)
		memset(digests->rows, 0, digests->capacity * sizeof(uint64_t));
	digests->count = 0;
	set->window = window;
	set->incomplete = 0;
}

static uint8_t look(struct nfp_repeats *repeats, uint64_t digest, uint64_t unix_ns)
{
	uint64_t window = unix_ns / repeats->window_ns;
	struct set *own = &repeats->sets[window & 1], *other = &repeats->sets[~window & 1];
	if (!digest) // not described
		return 0;
	if (own->window < window)
		begin_window(own, window);
	else if (own->window > window) // too late: its window is forgotten
		return NFP_PACKET_UNSURE;
	int adjacent = other->window + 1 == window || other->window == window + 1;
	if (has(own, digest) || (adjacent && has(other, digest)))
		return NFP_PACKET_REPEATED;
	int unsure = own->incomplete || (other->window + 1 == window && other->incomplete);
	add(own, digest, repeats->digests_max);
	return unsure || own->incomplete ? NFP_PACKET_UNSURE : 0;
}

static void count(struct nfp_repeats_counts *counts, uint32_t flags)
{
	counts->packets++;
	counts->repeated += !!(flags & NFP_PACKET_REPEATED);
	counts->unsure += !!(flags & NFP_PACKET_UNSURE);
	counts->fragments += !!(flags & NFP_PACKET_FRAGMENT);
	counts->cut += !!(flags & NFP_PACKET_CUT);
	counts->malformed += !!(flags & NFP_PACKET_MALFORMED);
	counts->inner += !!(flags & NFP_PACKET_INNER);
}

void nfp_repeats_mark(struct nfp_repeats *repeats, struct nfp_packet *packets, uint64_t packet_count,
                      const struct nfp_anchor *anchors, uint64_t anchor_count)
{
	struct nfp_clock_cursor clock = {anchors, anchor_count, 0};
	for (uint64_t i = 0; i < packet_count; i++) {
		uint64_t unix_ns = nfp_clock_unix_ns(&clock, packets[i].receive_ticks);
		if (packets[i].ip_version == NFP_VERSION_MESSAGE) // the digest is its topic's
			continue;
		packets[i].flags |= look(repeats, packets[i].digest, unix_ns);
		count(&repeats->counts, packets[i].flags);
	}
}

void nfp_repeats_look(struct nfp_repeats *repeats, const uint64_t *digests, const uint64_t *unix_ns,
                      uint64_t digest_count, uint8_t *marks)
{
	for (uint64_t i = 0; i < digest_count; i++) {
		marks[i] = look(repeats, digests[i], unix_ns[i]);
		count(&repeats->counts, marks[i]);
	}
}

void nfp_repeats_count(const struct nfp_repeats *repeats, struct nfp_repeats_counts *counts)
{
	*counts = repeats->counts;
}
