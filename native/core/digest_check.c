// SPDX-License-Identifier: Apache-2.0
// Calls the inline functions of abi/digest.h and packet_id.h; called by tests and by otel_nfprobe/cli/ids.py.
#include "digest_check.h"
#include "packet_id.h"
#include "abi/digest.h"
#include "abi/siphash.h"

uint64_t nfp_digest_siphash(const uint8_t *bytes, uint32_t count, const uint64_t *key)
{
	return nfp_siphash_bytes(key, bytes, count);
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

void nfp_digest_ids(const uint8_t *facts, uint64_t count, uint64_t *ids)
{
	for (uint64_t i = 0; i < count; i++) {
		struct nfp_packet_facts described;
		__builtin_memcpy(&described, facts + i * sizeof(described), sizeof(described));
		struct nfp_packet packet = {.digest = described.digest,
		                            .source_port = described.source_port,
		                            .destination_port = described.destination_port,
		                            .protocol = described.protocol,
		                            .ip_version = described.ip_version};
		__builtin_memcpy(packet.source, described.source, sizeof(packet.source));
		__builtin_memcpy(packet.destination, described.destination, sizeof(packet.destination));
		ids[i] = nfp_packet_id(&packet);
	}
}
