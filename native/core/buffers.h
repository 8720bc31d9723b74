// SPDX-License-Identifier: Apache-2.0
// The packets that are received and not done, by the addresses of their buffers. match.c asks for one at each event of a
// packet. Never in cffi.
#ifndef NFPROBE_BUFFERS_H
#define NFPROBE_BUFFERS_H
#include "columns.h"
#include "table.h"

struct nfp_buffer_entry {
	uint64_t buffer;
	uint32_t slot; // NFP_NONE: free; NFP_SLOT_LATE: of a message that has been delivered
	uint32_t index; // late: whether it was sent
};
#define NFP_SLOT_LATE (NFP_NONE - 1)

static inline int nfp_buffer_is_free(const void *row)
{
	return ((const struct nfp_buffer_entry *)row)->slot == NFP_NONE;
}

static const struct nfp_rows nfp_buffer_rows = {
    .bytes = sizeof(struct nfp_buffer_entry), .first = 4096, .free = 0xff, .is_free = nfp_buffer_is_free};

// The entry of the buffer, or the free one where it belongs.
static inline struct nfp_buffer_entry *nfp_buffers_find(const struct nfp_table *buffers, uint64_t buffer)
{
	return nfp_table_find(buffers, &nfp_buffer_rows, buffer);
}

// Asks for the memory where the buffer belongs.
static inline void nfp_buffers_fetch(const struct nfp_table *buffers, uint64_t buffer)
{
	__builtin_prefetch(nfp_table_at(buffers, &nfp_buffer_rows, nfp_table_home(buffers, buffer)));
}

static inline void nfp_buffers_remove(struct nfp_table *buffers, struct nfp_buffer_entry *entry)
{
	nfp_table_remove(buffers, &nfp_buffer_rows, entry);
}

static inline int nfp_buffers_make_room(struct nfp_table *buffers)
{
	return nfp_table_make_room(buffers, &nfp_buffer_rows);
}
#endif
