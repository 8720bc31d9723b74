// SPDX-License-Identifier: Apache-2.0
// Marks packets whose id or content was seen before (repeats.h). A set is a table of bare ids (table.h), which is emptied when
// its window is over.
#include "repeats.h"
#include "table.h"
#include "abi/record.h"
#include <stdlib.h>
#include <string.h>

enum { SLOTS_FIRST = 4096 };

struct set {
	struct nfp_table ids; // 0: free
	uint64_t window;
	uint8_t incomplete; // ids were left out
};

struct seen {
	struct set sets[2]; // of a window and the one before it, at window % 2
};

struct nfp_repeats {
	struct seen ids;
	struct seen contents; // empty without `correlates`
	uint64_t window_ns;
	uint32_t ids_max; // of one set
	int correlates;
	struct nfp_repeats_counts counts;
};

static void seen_init(struct seen *seen)
{
	seen->sets[1].window = 1;
	nfp_hash_init(&seen->sets[0].ids.hash);
	seen->sets[1].ids.hash = seen->sets[0].ids.hash;
}

static void seen_deinit(struct seen *seen)
{
	nfp_table_deinit(&seen->sets[0].ids);
	nfp_table_deinit(&seen->sets[1].ids);
}

struct nfp_repeats *nfp_repeats_create(uint64_t window_ns, uint32_t ids_max, int correlates)
{
	struct nfp_repeats *repeats = calloc(1, sizeof(*repeats));
	if (!repeats)
		return NULL;
	repeats->window_ns = window_ns ? window_ns : 1;
	repeats->ids_max = ids_max;
	repeats->correlates = correlates;
	seen_init(&repeats->ids);
	seen_init(&repeats->contents);
	return repeats;
}

void nfp_repeats_destroy(struct nfp_repeats *repeats)
{
	if (!repeats)
		return;
	seen_deinit(&repeats->ids);
	seen_deinit(&repeats->contents);
	free(repeats);
}

static int is_free(const void *row)
{
	return !*(const uint64_t *)row;
}

static const struct nfp_rows id_rows = {.bytes = sizeof(uint64_t), .first = SLOTS_FIRST, .is_free = is_free};

static int has(const struct set *set, uint64_t id)
{
	return set->ids.count && *(uint64_t *)nfp_table_find(&set->ids, &id_rows, id);
}

static void add(struct set *set, uint64_t id, uint32_t ids_max)
{
	if (set->ids.count >= ids_max || !nfp_table_make_room(&set->ids, &id_rows)) {
		set->incomplete = 1;
		return;
	}
	*(uint64_t *)nfp_table_find(&set->ids, &id_rows, id) = id;
	set->ids.count++;
}

// The table of an earlier window serves a new one; one that was hardly used is given back.
static void begin_window(struct set *set, uint64_t window)
{
	struct nfp_table *ids = &set->ids;
	if (ids->count < ids->capacity / 8)
		nfp_table_deinit(ids);
	else if (ids->capacity)
		memset(ids->rows, 0, ids->capacity * sizeof(uint64_t));
	ids->count = 0;
	set->window = window;
	set->incomplete = 0;
}

static uint8_t look(const struct nfp_repeats *repeats, struct seen *seen, uint64_t id, uint64_t unix_ns)
{
	uint64_t window = unix_ns / repeats->window_ns;
	struct set *own = &seen->sets[window & 1], *other = &seen->sets[~window & 1];
	if (!id) // not described
		return 0;
	if (own->window < window)
		begin_window(own, window);
	else if (own->window > window) // too late: its window is forgotten
		return NFP_SEEN_PERHAPS;
	int adjacent = other->window + 1 == window || other->window == window + 1;
	if (has(own, id) || (adjacent && has(other, id)))
		return NFP_SEEN_BEFORE;
	int unsure = own->incomplete || (other->window + 1 == window && other->incomplete);
	add(own, id, repeats->ids_max);
	return unsure || own->incomplete ? NFP_SEEN_PERHAPS : 0;
}

static void count(struct nfp_repeats_counts *counts, uint8_t seen, uint32_t flags)
{
	counts->packets++;
	counts->repeated += seen == NFP_SEEN_BEFORE;
	counts->unsure += seen == NFP_SEEN_PERHAPS;
	counts->fragments += !!(flags & NFP_PACKET_FRAGMENT);
	counts->cut += !!(flags & NFP_PACKET_CUT);
	counts->malformed += !!(flags & NFP_PACKET_MALFORMED);
	counts->inner += !!(flags & NFP_PACKET_INNER);
}

static void mark(struct nfp_repeats *repeats, struct nfp_packet *packet, uint64_t unix_ns)
{
	uint8_t seen = look(repeats, &repeats->ids, packet->id, unix_ns);
	if (seen == NFP_SEEN_BEFORE)
		packet->flags |= NFP_PACKET_REPEATED;
	if (repeats->correlates && look(repeats, &repeats->contents, packet->digest, unix_ns))
		packet->flags |= NFP_PACKET_AMBIGUOUS;
	count(&repeats->counts, seen, packet->flags);
}

void nfp_repeats_mark(struct nfp_repeats *repeats, struct nfp_packet *packets, uint64_t packet_count,
                      const struct nfp_anchor *anchors, uint64_t anchor_count)
{
	struct nfp_clock_cursor clock = {anchors, anchor_count, 0};
	for (uint64_t i = 0; i < packet_count; i++) {
		uint64_t unix_ns = nfp_clock_unix_ns(&clock, packets[i].receive_ticks);
		if (packets[i].ip_version != NFP_VERSION_MESSAGE) // its content is its topic
			mark(repeats, &packets[i], unix_ns);
	}
}

void nfp_repeats_look(struct nfp_repeats *repeats, const uint64_t *ids, const uint64_t *unix_ns,
                      uint64_t id_count, uint8_t *seen)
{
	for (uint64_t i = 0; i < id_count; i++) {
		seen[i] = look(repeats, &repeats->ids, ids[i], unix_ns[i]);
		count(&repeats->counts, seen[i], 0);
	}
}

void nfp_repeats_count(const struct nfp_repeats *repeats, struct nfp_repeats_counts *counts)
{
	*counts = repeats->counts;
}
