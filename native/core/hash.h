// SPDX-License-Identifier: Apache-2.0
// Where a number that a target has chosen belongs in a hash table: by factors that it cannot know, so that it cannot choose
// numbers which all belong into one place. What is found does not depend on them.
#ifndef NFPROBE_HASH_H
#define NFPROBE_HASH_H
#include <stdint.h>

struct nfp_hash {
	uint64_t factors[2]; // odd
};

// Draws the factors.
void nfp_hash_init(struct nfp_hash *hash);

// 32 bits, of which any may be used.
static inline uint32_t nfp_hash_of(const struct nfp_hash *hash, uint64_t number)
{
	uint64_t product = number * hash->factors[0];
	product = (product ^ product >> 32) * hash->factors[1];
	return (uint32_t)(product >> 32);
}
#endif
