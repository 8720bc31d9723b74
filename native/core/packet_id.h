// SPDX-License-Identifier: Apache-2.0
// The id of a packet, from the digest of its content and its flow. docs/identity.md defines it. Made outside of the
// target, which has no need of it.
#ifndef NFPROBE_PACKET_ID_H
#define NFPROBE_PACKET_ID_H
#include "abi/headers.h"
#include "columns.h"

// A bijection of 64 bits in which every input bit reaches every output bit (the finaliser of splitmix64).
static inline uint64_t nfp_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static inline uint64_t nfp_mix_address(uint64_t x, const uint8_t address[16])
{
	x = nfp_mix(x ^ __builtin_bswap64(nfp_load_64(address)));
	return nfp_mix(x ^ __builtin_bswap64(nfp_load_64(address + 8)));
}

// Each step is a bijection: packets of equal content that differ in one word of the flow always have different ids.
// 0: not described. What has no flow, as a broker's message, has zeros for it.
static inline uint64_t nfp_packet_id(const struct nfp_packet *packet)
{
	static const uint8_t none[16];
	int has_flow = packet->ip_version == 4 || packet->ip_version == 6;
	uint64_t ends = (uint64_t)packet->source_port << 48 | (uint64_t)packet->destination_port << 32 |
	                (uint64_t)packet->protocol << 8 | packet->ip_version;
	if (!packet->digest)
		return 0;
	uint64_t id = nfp_mix_address(packet->digest, has_flow ? packet->source : none);
	id = nfp_mix_address(id, has_flow ? packet->destination : none);
	id = nfp_mix(id ^ (has_flow ? ends : 0));
	return id ? id : 1;
}
#endif
