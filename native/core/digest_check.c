// SPDX-License-Identifier: Apache-2.0
// Calls the inline functions of nfprobe/digest.h; called by otel_nfprobe/digest.py.
#include "digest_check.h"
#include "nfprobe/digest.h"

uint64_t nfp_digest_siphash(const uint8_t *bytes, uint32_t count, const uint64_t *key)
{
	struct nfp_siphash hash;
	nfp_siphash_init(key, &hash);
	return nfp_siphash_finish(&hash, bytes, count);
}

void nfp_digest_describe(const uint8_t *bytes, uint32_t readable, uint32_t packet_length, uint32_t link_layer,
                         const uint64_t *key, uint8_t *facts)
{
	struct nfp_packet_facts described;
	nfp_packet_describe(bytes, readable, packet_length, link_layer, key, &described);
	__builtin_memcpy(facts, &described, sizeof(described));
}
