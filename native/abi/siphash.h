// SPDX-License-Identifier: Apache-2.0
// SipHash-1-3 (Aumasson, Bernstein): one round for each word of 8 bytes, three at the end. The keyed hash of a message's
// topic, which may have any length. Runs inside the target: no libc call, no memory of its own, no vector register.
#ifndef NFPROBE_SIPHASH_H
#define NFPROBE_SIPHASH_H
#include <stdint.h>

struct nfp_siphash {
	uint64_t v0, v1, v2, v3;
};

static inline uint64_t nfp_rotate_left(uint64_t word, unsigned bits)
{
	return word << bits | word >> (64 - bits);
}

static inline void nfp_siphash_round(struct nfp_siphash *hash)
{
	hash->v0 += hash->v1;
	hash->v1 = nfp_rotate_left(hash->v1, 13) ^ hash->v0;
	hash->v0 = nfp_rotate_left(hash->v0, 32);
	hash->v2 += hash->v3;
	hash->v3 = nfp_rotate_left(hash->v3, 16) ^ hash->v2;
	hash->v0 += hash->v3;
	hash->v3 = nfp_rotate_left(hash->v3, 21) ^ hash->v0;
	hash->v2 += hash->v1;
	hash->v1 = nfp_rotate_left(hash->v1, 17) ^ hash->v2;
	hash->v2 = nfp_rotate_left(hash->v2, 32);
}

static inline void nfp_siphash_init(const uint64_t key[2], struct nfp_siphash *hash)
{
	hash->v0 = key[0] ^ 0x736f6d6570736575ULL;
	hash->v1 = key[1] ^ 0x646f72616e646f6dULL;
	hash->v2 = key[0] ^ 0x6c7967656e657261ULL;
	hash->v3 = key[1] ^ 0x7465646279746573ULL;
}

static inline void nfp_siphash_absorb(struct nfp_siphash *hash, uint64_t word)
{
	hash->v3 ^= word;
	nfp_siphash_round(hash);
	hash->v0 ^= word;
}

// The last word has the message's length in its highest byte and what is left of the message below.
static inline uint64_t nfp_siphash_finish(struct nfp_siphash *hash, uint64_t last)
{
	nfp_siphash_absorb(hash, last);
	hash->v2 ^= 0xff;
	for (int i = 0; i < 3; i++)
		nfp_siphash_round(hash);
	return hash->v0 ^ hash->v1 ^ hash->v2 ^ hash->v3;
}

// Of a message of any length.
static inline uint64_t nfp_siphash_bytes(const uint64_t key[2], const uint8_t *bytes, uint32_t count)
{
	struct nfp_siphash hash;
	uint64_t last = (uint64_t)count << 56;
	nfp_siphash_init(key, &hash);
	for (; count >= 8; count -= 8, bytes += 8) {
		uint64_t word;
		__builtin_memcpy(&word, bytes, 8);
		nfp_siphash_absorb(&hash, word);
	}
	for (uint32_t i = 0; i < count; i++)
		last |= (uint64_t)bytes[i] << (8 * i);
	return nfp_siphash_finish(&hash, last);
}
#endif
