// SPDX-License-Identifier: Apache-2.0
// Calls the inline functions of abi/digest.h; called by tests and by otel_nfprobe/cli/ids.py.
#include "digest_check.h"
#include "abi/digest.h"

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

void nfp_digest_describe_all(const uint8_t *bytes, const uint64_t *offsets, const uint64_t *readable,
                             const uint64_t *lengths, const uint64_t *link_layers, uint64_t count,
                             const uint64_t *key, uint8_t *facts)
{
	for (uint64_t i = 0; i < count; i++)
		nfp_digest_describe(bytes + offsets[i], (uint32_t)readable[i], (uint32_t)lengths[i],
		                    (uint32_t)link_layers[i], key,
		                    facts + i * sizeof(struct nfp_packet_facts));
}
