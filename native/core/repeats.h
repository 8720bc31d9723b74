// SPDX-License-Identifier: Apache-2.0
// Repeats: which packets have an id that was seen before in the same window of time, or in the one before it, and, where
// trace ids are made from it, whose content was. Two sets, one for each of two windows; memory is bounded by ids_max.
// What does not fit is as good as seen, so that an unmarked content is the only one of its window.
#ifndef NFPROBE_REPEATS_H
#define NFPROBE_REPEATS_H
#include "clock.h"
#include "columns.h"

// cdef begin
struct nfp_repeats;

// How many packets, and how many of them carry which mark (enum nfp_packet_flags).
struct nfp_repeats_counts {
	uint64_t packets;
	uint64_t repeated;
	uint64_t unsure;
	uint64_t fragments;
	uint64_t cut;
	uint64_t malformed;
	uint64_t inner;
};

enum nfp_seen {
	NFP_SEEN_BEFORE = 1,
	NFP_SEEN_PERHAPS = 2, // too many to know, or too late
};

// window_ns > 0: windows begin at multiples of it, in Unix ns. correlates: contents are looked at as well, which takes
// as much memory once more. NULL when there is no memory.
struct nfp_repeats *nfp_repeats_create(uint64_t window_ns, uint32_t ids_max, int correlates);
void nfp_repeats_destroy(struct nfp_repeats *repeats);

// Sets NFP_PACKET_REPEATED and NFP_PACKET_AMBIGUOUS; packets are looked at in the order in which they stand.
void nfp_repeats_mark(struct nfp_repeats *repeats, struct nfp_packet *packets, uint64_t count,
                      const struct nfp_anchor *anchors, uint64_t anchor_count);

// The same for bare ids and their times; seen[i] are 0 or of enum nfp_seen.
void nfp_repeats_look(struct nfp_repeats *repeats, const uint64_t *ids, const uint64_t *unix_ns,
                      uint64_t count, uint8_t *seen);

void nfp_repeats_count(const struct nfp_repeats *repeats, struct nfp_repeats_counts *counts);
// cdef end
#endif
