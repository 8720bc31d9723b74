// SPDX-License-Identifier: Apache-2.0
// How many batches had how many packets: a count for each size up to NFP_SIZES_EXACT - 1, and none beyond, where the
// buckets of statistics.c tell. Made when the first batch is counted.
#ifndef NFPROBE_CORE_SIZES_H
#define NFPROBE_CORE_SIZES_H
#include <stdlib.h>
#include "statistics.h"

// 0, or -1 when there is no memory.
static inline int nfp_sizes_put(uint64_t **sizes, uint64_t size, uint64_t count)
{
	if (!*sizes)
		*sizes = calloc(NFP_SIZES_EXACT, sizeof(**sizes));
	if (!*sizes)
		return -1;
	if (size < NFP_SIZES_EXACT)
		(*sizes)[size] += count;
	return 0;
}

static inline int nfp_sizes_merge(uint64_t **sizes, const uint64_t *other)
{
	int result = 0;
	for (uint32_t size = 0; other && size < NFP_SIZES_EXACT; size++)
		if (other[size])
			result |= nfp_sizes_put(sizes, size, other[size]);
	return result;
}

// The sizes that occur, as buckets of one value each; returns their number, at most `room`.
static inline uint32_t nfp_sizes_list(const uint64_t *sizes, struct nfp_bucket *buckets, uint32_t room)
{
	uint32_t found = 0;
	for (uint32_t size = 0; sizes && size < NFP_SIZES_EXACT && found < room; size++)
		if (sizes[size])
			buckets[found++] = (struct nfp_bucket){size, sizes[size]};
	return found;
}
#endif
