// SPDX-License-Identifier: Apache-2.0
// The clock: ticks (nfp_ticks) to Unix ns, by anchors. An anchor holds from its own ticks until
// the next anchor's, the first one also for all earlier ticks. Anchors never change once appended, so a
// recording converted later gives the same numbers as the live session. otel_nfprobe/base/clock.py makes the anchors.
#ifndef NFPROBE_CLOCK_H
#define NFPROBE_CLOCK_H
#include <stddef.h>
#include <stdint.h>

// cdef begin

struct nfp_anchor {
	uint64_t ticks;
	uint64_t unix_ns; // of `ticks`
	uint64_t ns_per_tick_q32; // ns per tick times 2^32
};

// One reading of both clocks at (nearly) the same moment.
struct nfp_clock_pair {
	uint64_t ticks;
	uint64_t unix_ns;
	uint64_t uncertainty_ticks; // the two readings are at most this far apart
};

// Reads both clocks a few times and keeps the tightest pair. Never fails.
void nfp_clock_sample(struct nfp_clock_pair *pair);

// Converts `count` tick values; anchor_count is at least 1 and anchors are ordered by their ticks.
void nfp_clock_convert(const struct nfp_anchor *anchors, size_t anchor_count, const uint64_t *ticks,
                       size_t count, uint64_t *unix_ns);

// cdef end

_Static_assert(sizeof(struct nfp_anchor) == 24, "clock.py has the same layout");

// Anchors of one conversion after another: `last` remembers where the previous one was found.
struct nfp_clock_cursor {
	const struct nfp_anchor *anchors;
	size_t count;
	size_t last;
};

// Index of the anchor that holds at `ticks`.
size_t nfp_clock_find(const struct nfp_anchor *anchors, size_t count, uint64_t ticks);

static inline const struct nfp_anchor *nfp_clock_anchor(struct nfp_clock_cursor *cursor, uint64_t ticks)
{
	size_t last = cursor->last;
	int begun = ticks >= cursor->anchors[last].ticks;
	int ended = last + 1 < cursor->count && ticks >= cursor->anchors[last + 1].ticks;
	if (!begun || ended)
		cursor->last = nfp_clock_find(cursor->anchors, cursor->count, ticks);
	return &cursor->anchors[cursor->last];
}

static inline uint64_t nfp_clock_unix_ns(struct nfp_clock_cursor *cursor, uint64_t ticks)
{
	const struct nfp_anchor *anchor = nfp_clock_anchor(cursor, ticks);
	// Both shifts round down, so the conversion never runs backwards, before the first anchor either.
	__int128 delta = (__int128)ticks - (__int128)anchor->ticks;
	return anchor->unix_ns + (uint64_t)(delta * (__int128)anchor->ns_per_tick_q32 >> 32);
}

// Length in ns of `ticks` ticks that passed near the moment `at`.
static inline uint64_t nfp_clock_length_ns(struct nfp_clock_cursor *cursor, uint64_t at, uint64_t ticks)
{
	return (uint64_t)((unsigned __int128)ticks * nfp_clock_anchor(cursor, at)->ns_per_tick_q32 >> 32);
}
#endif
