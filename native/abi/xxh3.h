// SPDX-License-Identifier: Apache-2.0
// XXH3 with 64 bits (Collet: xxHash fast digest algorithm, doc/xxhash_spec.md) of messages of 56 and of 72 bytes, in words,
// with the default secret and a seed: four or six multiplications, none of which waits for another. The hash of the packet
// digest. Runs inside the target: no libc call, no memory of its own, no vector register.
#ifndef NFPROBE_XXH3_H
#define NFPROBE_XXH3_H
#include <stdint.h>

// Of two words, with the two from `at` on of the secret, whose first 96 bytes stand here as little endian words.
static inline uint64_t nfp_xxh3_mix(uint64_t first, uint64_t second, uint32_t at, uint64_t seed)
{
	static const uint64_t secret[12] = {
	    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
	    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
	    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
	};
	unsigned __int128 product =
	    (unsigned __int128)(first ^ (secret[at] + seed)) * (second ^ (secret[at + 1] - seed));
	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t nfp_xxh3_end(uint64_t sum, uint64_t bytes)
{
	sum += bytes * 0x9e3779b185ebca87;
	sum = (sum ^ sum >> 37) * 0x165667919e3779f9;
	return sum ^ sum >> 32;
}

static inline uint64_t nfp_xxh3_56(const uint64_t word[7], uint64_t seed)
{
	uint64_t sum = nfp_xxh3_mix(word[0], word[1], 0, seed) + nfp_xxh3_mix(word[5], word[6], 2, seed) +
	               nfp_xxh3_mix(word[2], word[3], 4, seed) + nfp_xxh3_mix(word[3], word[4], 6, seed);
	return nfp_xxh3_end(sum, 56);
}

static inline uint64_t nfp_xxh3_72(const uint64_t word[9], uint64_t seed)
{
	uint64_t sum = nfp_xxh3_mix(word[0], word[1], 0, seed) + nfp_xxh3_mix(word[7], word[8], 2, seed) +
	               nfp_xxh3_mix(word[2], word[3], 4, seed) + nfp_xxh3_mix(word[5], word[6], 6, seed) +
	               nfp_xxh3_mix(word[4], word[5], 8, seed) + nfp_xxh3_mix(word[3], word[4], 10, seed);
	return nfp_xxh3_end(sum, 72);
}
#endif
