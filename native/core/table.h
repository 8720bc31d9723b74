// SPDX-License-Identifier: Apache-2.0
// Hash tables by numbers that a target has chosen: where a number belongs is decided by factors that the target cannot know,
// so that it cannot choose numbers which all belong into one place. What is found does not depend on them. Linear probing,
// at most half full, deletion by moving back. A table is for rows of any structure that begins with its key; what kind they
// are is known to the compiler. Never in cffi.
#ifndef NFPROBE_TABLE_H
#define NFPROBE_TABLE_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct nfp_hash {
	uint64_t factors[2]; // odd
};

struct nfp_table {
	void *rows;
	uint32_t count; // in use
	uint32_t capacity; // power of two, or 0
	struct nfp_hash hash;
};

// A kind of rows; all that use it are inline, so that nothing of it is left when they are compiled.
struct nfp_rows {
	size_t bytes;
	uint32_t first; // capacity of a table that is not empty
	int free; // each byte of a row that is free
	int (*is_free)(const void *row);
};

#define NFP_TABLE_INLINE static inline __attribute__((always_inline))

// Draws the factors.
void nfp_hash_init(struct nfp_hash *hash);

// 32 bits, of which any may be used.
static inline uint32_t nfp_hash_of(const struct nfp_hash *hash, uint64_t number)
{
	uint64_t product = number * hash->factors[0];
	product = (product ^ product >> 32) * hash->factors[1];
	return (uint32_t)(product >> 32);
}

NFP_TABLE_INLINE void *nfp_table_at(const struct nfp_table *table, const struct nfp_rows *rows, uint32_t i)
{
	return (uint8_t *)table->rows + i * rows->bytes;
}

NFP_TABLE_INLINE uint32_t nfp_table_home(const struct nfp_table *table, uint64_t key)
{
	return nfp_hash_of(&table->hash, key) & (table->capacity - 1);
}

// The row of the key, or the free one where it belongs. The table is not empty.
NFP_TABLE_INLINE void *nfp_table_find(const struct nfp_table *table, const struct nfp_rows *rows,
                                      uint64_t key)
{
	uint32_t i = nfp_table_home(table, key);
	void *row = nfp_table_at(table, rows, i);
	while (!rows->is_free(row) && *(const uint64_t *)row != key) {
		i = (i + 1) & (table->capacity - 1);
		row = nfp_table_at(table, rows, i);
	}
	return row;
}

// Room for one more row. 0: no memory.
NFP_TABLE_INLINE int nfp_table_make_room(struct nfp_table *table, const struct nfp_rows *rows)
{
	if (table->capacity && table->count < table->capacity / 2)
		return 1;
	struct nfp_table larger = *table;
	larger.capacity = table->capacity ? 2 * table->capacity : rows->first;
	larger.rows =
	    rows->free ? malloc(larger.capacity * rows->bytes) : calloc(larger.capacity, rows->bytes);
	if (!larger.rows)
		return 0;
	if (rows->free)
		memset(larger.rows, rows->free, larger.capacity * rows->bytes);
	for (uint32_t i = 0; i < table->capacity; i++) {
		const void *row = nfp_table_at(table, rows, i);
		if (!rows->is_free(row))
			memcpy(nfp_table_find(&larger, rows, *(const uint64_t *)row), row, rows->bytes);
	}
	free(table->rows);
	*table = larger;
	return 1;
}

NFP_TABLE_INLINE void nfp_table_remove(struct nfp_table *table, const struct nfp_rows *rows, void *row)
{
	uint32_t mask = table->capacity - 1;
	uint32_t gap = (uint32_t)((size_t)((uint8_t *)row - (uint8_t *)table->rows) / rows->bytes);
	for (uint32_t i = (gap + 1) & mask; !rows->is_free(nfp_table_at(table, rows, i));
	     i = (i + 1) & mask) {
		const void *next = nfp_table_at(table, rows, i);
		uint32_t home = nfp_table_home(table, *(const uint64_t *)next);
		if (((i - home) & mask) < ((i - gap) & mask))
			continue; // would move before its home
		memcpy(nfp_table_at(table, rows, gap), next, rows->bytes);
		gap = i;
	}
	memset(nfp_table_at(table, rows, gap), rows->free, rows->bytes);
	table->count--;
}

static inline void nfp_table_deinit(struct nfp_table *table)
{
	free(table->rows);
	table->rows = NULL;
	table->count = table->capacity = 0;
}
#endif
