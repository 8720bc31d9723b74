// SPDX-License-Identifier: Apache-2.0
// Hostile packets through the code that runs inside the target: it reads nothing beyond the bytes that it may read,
// whatever the headers claim. Each packet lies in memory of exactly its size, under AddressSanitizer and UBSan. What most
// packets are described by says the same as what describes any.
#include "check.h"
#include "abi/digest.h"
#include <string.h>

enum { BYTES_MAX = 300 };

// Starts of packets that lead deep into the parser: VLAN, MPLS, IPv6 with extensions, GRE, VXLAN, GTP-U.
static const struct {
	uint32_t size;
	uint8_t bytes[64];
} starts[] = {
    {0, {0}},
    {14, {[12] = 0x08, 0x00}},
    {18, {[12] = 0x81, 0x00, 0, 5, 0x86, 0xdd}},
    {22, {[12] = 0x88, 0x47, 0, 0, 0x00, 64, 0, 0, 0x01, 64}},
    {34, {[12] = 0x08, 0x00, 0x45, [23] = 6}},
    {34, {[12] = 0x08, 0x00, 0x45, 0, 0, 46, [23] = 17}},
    {47, {[12] = 0x08, 0x00, 0x45, 0, 0, 70, [23] = 6, [46] = 0x60}},
    {34, {[12] = 0x08, 0x00, 0x45, [23] = 47}},
    {50, {[12] = 0x08, 0x00, 0x45, [23] = 17, [36] = 0x12, 0xb5, [42] = 0x08}},
    {46, {[12] = 0x08, 0x00, 0x45, [23] = 17, [36] = 0x08, 0x68, [42] = 0x34, 255, 0, 200}},
    {54, {[12] = 0x86, 0xdd, 0x60, [18] = 0, 200, 44}},
    {54, {[12] = 0x86, 0xdd, 0x60, [18] = 0, 200, 0}},
};

static uint8_t likely_byte(unsigned long *state)
{
	static const uint8_t likely[] = {0,  1,  4,    6,    8,    17,   43,   44,
	                                 47, 51, 0x30, 0x34, 0x45, 0x60, 0x85, 0xff};
	unsigned long random = next_random(state);
	return random & 1 ? likely[(random >> 8) % sizeof(likely)] : (uint8_t)(random >> 16);
}

static unsigned long plain;

static uint64_t describe_one(unsigned long *state)
{
	const uint64_t key[2] = {NFP_DIGEST_KEY_0, NFP_DIGEST_KEY_1};
	uint32_t readable = (uint32_t)(next_random(state) % BYTES_MAX), which;
	which = (uint32_t)(next_random(state) % (sizeof(starts) / sizeof(starts[0])));
	uint32_t link = (uint32_t)(next_random(state) % 2) | (next_random(state) & 1 ? NFP_LINK_INNER : 0);
	uint8_t *packet = malloc(readable ? readable : 1);
	for (uint32_t i = 0; i < readable; i++)
		packet[i] = i < starts[which].size ? starts[which].bytes[i] : likely_byte(state);
	if (readable && next_random(state) % 4 == 0)
		packet[next_random(state) % readable] = likely_byte(state);
	uint32_t length = next_random(state) % 3 ? readable : (uint32_t)next_random(state);
	struct nfp_packet_facts facts, found;
	nfp_packet_describe(packet, readable, length, link, key, &facts);
	nfp_packet_describe_any(packet, readable, length, link, key[0] ^ key[1], &found);
	CHECK(!memcmp(&facts, &found, sizeof(facts)));
	plain += (unsigned long)nfp_packet_describe_plain(packet, readable, length, 0, &found);
	free(packet);
	CHECK(facts.length == length && facts.flags < 16 && facts.reserved == 0);
	CHECK(facts.ip_version == 0 || facts.ip_version == 4 || facts.ip_version == 6);
	CHECK(link & NFP_LINK_INNER || !(facts.flags & NFP_FACTS_INNER));
	return facts.flags & NFP_FACTS_INNER;
}

int main(int count, char **arguments)
{
	unsigned long rounds = searches(count, arguments, 400000);
	unsigned long state = 11;
	uint64_t inner = 0;
	for (unsigned long i = 0; i < rounds; i++)
		inner += describe_one(&state) != 0;
	CHECK(inner > 1000 && plain > 1000);
	printf("digest: %lu packets, %lu of them in tunnels, %lu plain\n", rounds, (unsigned long)inner,
	       plain);
	return 0;
}
