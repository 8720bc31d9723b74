// SPDX-License-Identifier: Apache-2.0
// Reads the ticks together with CLOCK_REALTIME, and converts ticks to Unix ns (clock.h).
// Fits nothing and remembers nothing: otel_nfprobe/base/clock.py does.
#include "clock.h"
#include "arch/arch.h"
#include <time.h>

enum { READINGS = 16 };

void nfp_clock_sample(struct nfp_clock_pair *pair)
{
	uint64_t tightest = UINT64_MAX;
	for (int i = 0; i < READINGS; i++) {
		struct timespec now;
		uint64_t before = nfp_ticks_in_order();
		clock_gettime(CLOCK_REALTIME, &now);
		uint64_t width = nfp_ticks_in_order() - before;
		if (width >= tightest)
			continue;
		tightest = width;
		pair->ticks = before + width / 2;
		pair->unix_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
		pair->uncertainty_ticks = width - width / 2;
	}
}

size_t nfp_clock_find(const struct nfp_anchor *anchors, size_t count, uint64_t ticks)
{
	size_t low = 0, high = count;
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;
		if (anchors[middle].ticks <= ticks)
			low = middle;
		else
			high = middle;
	}
	return low;
}

void nfp_clock_convert(const struct nfp_anchor *anchors, size_t anchor_count, const uint64_t *ticks,
                       size_t count, uint64_t *unix_ns)
{
	struct nfp_clock_cursor cursor = {anchors, anchor_count, 0};
	for (size_t i = 0; i < count; i++)
		unix_ns[i] = nfp_clock_unix_ns(&cursor, ticks[i]);
}
