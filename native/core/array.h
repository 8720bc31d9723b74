// SPDX-License-Identifier: Apache-2.0
// Growing an array of plain structures by doubling. When memory is out the array stays as it is and the
// caller counts what it could not keep. Used by the data core only; no cffi declarations.
#ifndef NFPROBE_ARRAY_H
#define NFPROBE_ARRAY_H
#include <stdint.h>
#include <stdlib.h>

enum { NFP_ARRAY_FIRST = 2 }; // a ring may hold half a million batches, each of which has arrays of its own

// Returns the array, moved if need be, with room for `need` items; NULL when there is no memory.
static inline void *nfp_array_grow(void *items, uint32_t *capacity, uint32_t need, size_t item_bytes)
{
	if (need <= *capacity && items)
		return items;
	uint64_t room = *capacity ? *capacity : NFP_ARRAY_FIRST;
	while (room < need)
		room *= 2;
	if (room > UINT32_MAX)
		return NULL;
	void *grown = realloc(items, room * item_bytes);
	if (grown)
		*capacity = (uint32_t)room;
	return grown;
}

// Makes room for `need` items in `array`, a structure with the members items and capacity.
#define NFP_ARRAY_RESERVE(array, need)                                                                       \
	({                                                                                                   \
		void *nfp_grown =                                                                            \
		    nfp_array_grow((array)->items, &(array)->capacity, (need), sizeof(*(array)->items));     \
		if (nfp_grown)                                                                               \
			(array)->items = nfp_grown;                                                          \
		nfp_grown != NULL;                                                                           \
	})
#endif
