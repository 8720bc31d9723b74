// SPDX-License-Identifier: Apache-2.0
// The packets that are received and not done, by the addresses of their buffers. Used by match.c, which asks for one at
// each event of a packet. Never in cffi.
#ifndef NFPROBE_BUFFERS_H
#define NFPROBE_BUFFERS_H
#include "columns.h"
#include "hash.h"
#include <stdlib.h>
#include <string.h>

// Buffer address -> packet, for all packets that are received and not done. Linear probing, at most half
// full, deletion by moving back. The factors are secret: a target that knew them could have all its buffers belong
// into one place.
struct nfp_buffer_entry {
	uint64_t buffer;
	uint32_t slot; // NFP_NONE: free; NFP_SLOT_LATE: of a message that has been delivered
	uint32_t index; // late: whether it was sent
};
#define NFP_SLOT_LATE (NFP_NONE - 1)

struct nfp_buffers {
	struct nfp_buffer_entry *items;
	uint32_t count;
	uint32_t capacity; // power of two, or 0
	struct nfp_hash hash;
};

static inline uint32_t nfp_buffers_home(const struct nfp_buffers *buffers, uint64_t buffer)
{
	return nfp_hash_of(&buffers->hash, buffer) & (buffers->capacity - 1);
}

// The entry of the buffer, or the free one where it belongs.
static inline struct nfp_buffer_entry *nfp_buffers_find(const struct nfp_buffers *buffers, uint64_t buffer)
{
	uint32_t i = nfp_buffers_home(buffers, buffer);
	while (buffers->items[i].slot != NFP_NONE && buffers->items[i].buffer != buffer)
		i = (i + 1) & (buffers->capacity - 1);
	return &buffers->items[i];
}

static inline void nfp_buffers_remove(struct nfp_buffers *buffers, struct nfp_buffer_entry *entry)
{
	uint32_t mask = buffers->capacity - 1, gap = (uint32_t)(entry - buffers->items);
	for (uint32_t i = (gap + 1) & mask; buffers->items[i].slot != NFP_NONE; i = (i + 1) & mask) {
		uint32_t home = nfp_buffers_home(buffers, buffers->items[i].buffer);
		if (((i - home) & mask) < ((i - gap) & mask))
			continue; // would move before its home
		buffers->items[gap] = buffers->items[i];
		gap = i;
	}
	buffers->items[gap].slot = NFP_NONE;
	buffers->count--;
}

static inline int nfp_buffers_make_room(struct nfp_buffers *buffers)
{
	if (buffers->capacity && buffers->count < buffers->capacity / 2)
		return 1;
	struct nfp_buffers larger = {.capacity = buffers->capacity ? buffers->capacity * 2 : 4096,
	                             .hash = buffers->hash};
	larger.items = malloc(larger.capacity * sizeof(*larger.items));
	if (!larger.items)
		return 0;
	memset(larger.items, 0xff, larger.capacity * sizeof(*larger.items));
	for (uint32_t i = 0; i < buffers->capacity; i++)
		if (buffers->items[i].slot != NFP_NONE)
			*nfp_buffers_find(&larger, buffers->items[i].buffer) = buffers->items[i];
	larger.count = buffers->count;
	free(buffers->items);
	*buffers = larger;
	return 1;
}
#endif
