// SPDX-License-Identifier: Apache-2.0
// Marks packets whose digest was seen before (repeats.h). A set is an open hash table of bare digests; it grows by doubling
// and is emptied when its window is over. A target can write any digests: where they belong is secret (hash.h).
#include "repeats.h"
#include "hash.h"
#include "abi/record.h"
#include <stdlib.h>
#include <string.h>

enum {
	SLOTS_FIRST = 4096,
	SPARE_SHARE = 2, // a table is at most half full
};

struct set {
	uint64_t *slots; // 0: free
	uint64_t window;
	uint32_t room; // slots, a power of two
	uint32_t used;
	uint8_t incomplete; // digests were left out
};

struct nfp_repeats {
	struct set sets[2]; // of a window and the one before it, at window % 2
	uint64_t window_ns;
	uint32_t digests_max;
	struct nfp_hash hash;
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
	nfp_hash_init(&repeats->hash);
	return repeats;
}

void nfp_repeats_destroy(struct nfp_repeats *repeats)
{
	if (!repeats)
		return;
	free(repeats->sets[0].slots);
	free(repeats->sets[1].slots);
	free(repeats);
}

// The slot that holds the digest, or the free one where it belongs.
static uint64_t *find(const struct set *set, const struct nfp_hash *hash, uint64_t digest)
{
	uint32_t i = nfp_hash_of(hash, digest) & (set->room - 1);
	while (set->slots[i] && set->slots[i] != digest)
		i = (i + 1) & (set->room - 1);
	return &set->slots[i];
}

static int has(const struct set *set, const struct nfp_hash *hash, uint64_t digest)
{
	return set->used && *find(set, hash, digest);
}

static int grow(struct set *set, const struct nfp_hash *hash)
{
	struct set larger = *set;
	larger.room = set->room ? 2 * set->room : SLOTS_FIRST;
	larger.slots = calloc(larger.room, sizeof(*larger.slots));
	if (!larger.slots)
		return 0;
	for (uint32_t i = 0; i < set->room; i++)
		if (set->slots[i])
			*find(&larger, hash, set->slots[i]) = set->slots[i];
	free(set->slots);
	*set = larger;
	return 1;
}

static void add(struct set *set, const struct nfp_hash *hash, uint64_t digest, uint32_t digests_max)
{
	int fits = set->used < digests_max;
	if (!fits || (set->used >= set->room / SPARE_SHARE && !grow(set, hash))) {
		set->incomplete = 1;
		return;
	}
	*find(set, hash, digest) = digest;
	set->used++;
}

// The table of an earlier window serves a new one; one that was hardly used is given back.
static void begin_window(struct set *set, uint64_t window)
{
	if (set->used < set->room / 8) {
		free(set->slots);
		set->slots = NULL;
		set->room = 0;
	} else {
		memset(set->slots, 0, set->room * sizeof(*set->slots));
	}
	set->window = window;
	set->used = 0;
	set->incomplete = 0;
}

static uint8_t look(struct nfp_repeats *repeats, uint64_t digest, uint64_t unix_ns)
{
	const struct nfp_hash *hash = &repeats->hash;
	uint64_t window = unix_ns / repeats->window_ns;
	struct set *own = &repeats->sets[window & 1], *other = &repeats->sets[~window & 1];
	if (!digest) // not described
		return 0;
	if (own->window < window)
		begin_window(own, window);
	else if (own->window > window) // too late: its window is forgotten
		return NFP_PACKET_UNSURE;
	int adjacent = other->window + 1 == window || other->window == window + 1;
	if (has(own, hash, digest) || (adjacent && has(other, hash, digest)))
		return NFP_PACKET_REPEATED;
	int unsure = own->incomplete || (other->window + 1 == window && other->incomplete);
	add(own, hash, digest, repeats->digests_max);
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
