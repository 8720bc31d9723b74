// SPDX-License-Identifier: Apache-2.0
// Packet facts: from the bytes of one packet its addresses, ports, IP id, length and 64-bit digest.
// Runs inside the target: no libc call, no memory of its own, no vector register, no read beyond `readable`
// whatever the headers claim. docs/identity.md defines the digest's bytes; tests/support/packet_digest.py is the
// same in Python, and tests compare the two. The message has a fixed number of words, so that the hash of one packet
// takes the same steps as that of any other, and they are hashed from registers.
// cdef: macros
#ifndef NFPROBE_DIGEST_H
#define NFPROBE_DIGEST_H
#include "headers.h"
#include "xxh3.h"

// The public key, the 16 bytes "otel-nfprobe ids": every monitor that is not given another one uses it.
#define NFP_DIGEST_KEY_0 0x70666e2d6c65746fULL
#define NFP_DIGEST_KEY_1 0x7364692065626f72ULL

#define NFP_DIGEST_PAYLOAD_BYTES 32
#define NFP_DIGEST_OTHER_BYTES 64

// Bytes of a transport header that NFs may rewrite or that tell packets apart; 0: not looked into.
static inline uint32_t nfp_transport_bytes(uint8_t protocol)
{
	switch (protocol) {
	case 6: // TCP
		return 20;
	case 132: // SCTP
		return 12;
	case 1: // ICMP
	case 58:
	case 17: // UDP
	case 136: // UDP-Lite
	case 33: // DCCP: up to its checksum
		return 8;
	default:
		return 0;
	}
}

// Two 16-bit numbers that tell flows between the same addresses apart, where there are such.
static inline void nfp_parse_flow(const uint8_t *header, struct nfp_packet_facts *facts)
{
	facts->source_port = nfp_load_be16(header);
	facts->destination_port = nfp_load_be16(header + 2);
	if (facts->protocol != 1 && facts->protocol != 58)
		return;
	int version4 = facts->protocol == 1;
	uint8_t type = header[0];
	// Only queries and their answers have an identifier: echo, timestamp, information, address mask.
	int identified =
	    version4 ? type == 0 || type == 8 || (type >= 13 && type <= 18) : type == 128 || type == 129;
	facts->destination_port = facts->source_port; // type and code
	facts->source_port = identified ? nfp_load_be16(header + 4) : 0;
}

// What NFs do not rewrite of a transport header, as on the wire. In words: bytes that are stored one by one and loaded
// as a word hold the processor up.
struct nfp_invariant {
	uint32_t first;
	uint64_t rest; // of TCP only
};

// Steps over the transport header.
static inline void nfp_parse_transport(struct nfp_parse *parse, struct nfp_invariant *invariant,
                                       struct nfp_packet_facts *facts)
{
	const uint8_t *header = parse->bytes + parse->at;
	uint32_t header_bytes = nfp_transport_bytes(facts->protocol);
	*invariant = (struct nfp_invariant){0};
	if (parse->later_fragment)
		return;
	if (facts->protocol == 50 && nfp_parse_has(parse, 4))
		nfp_parse_flow(header, facts); // ESP's SPI; the digest takes it with what follows
	if (!header_bytes || !nfp_parse_has(parse, header_bytes))
		return;
	nfp_parse_flow(header, facts);
	if (facts->protocol == 6) {
		uint32_t with_options = (header[12] >> 4) * 4u;
		invariant->first = nfp_load_32(header + 4); // sequence number
		invariant->rest = nfp_load_64(header + 8); // acknowledgement, offset and flags, window
		if (with_options > header_bytes)
			header_bytes =
			    nfp_parse_has(parse, with_options) ? with_options : parse->readable - parse->at;
	} else if (facts->protocol == 17 || facts->protocol == 136) {
		invariant->first = nfp_load_32(header + 4) & 0xffff; // length
	} else if (facts->protocol == 132) {
		invariant->first = nfp_load_32(header + 4); // verification tag
	} else if (facts->protocol != 33) {
		// Type and code, and the sequence number; the identifier is rewritten as ports are.
		invariant->first = (nfp_load_32(header) & 0xffff) | (nfp_load_32(header + 4) & 0xffff0000);
	}
	parse->at += header_bytes;
}

// Word `number` of the `count` bytes at `bytes`; zero stands for what is behind them. `before`: how many bytes of the
// packet stand before `bytes`. Where there are 8 that end with the last one, they are read as one word.
static inline uint64_t nfp_digest_word(const uint8_t *bytes, uint32_t before, uint32_t count, uint32_t number)
{
	if (count <= 8 * number)
		return 0;
	uint32_t left = count - 8 * number;
	if (left >= 8)
		return nfp_load_64(bytes + 8 * number);
	if (number || before >= 8)
		return nfp_load_64(bytes + count - 8) >> (64 - 8 * left);
	uint64_t word = 0;
	for (uint32_t i = 0; i < left; i++)
		word |= (uint64_t)bytes[i] << (8 * i);
	return word;
}

// Fills in the first 8 * `words` bytes from where the parser stands. Returns how many of them the packet has.
static inline uint32_t nfp_digest_bytes(const struct nfp_parse *parse, uint32_t words, uint64_t *word,
                                        struct nfp_packet_facts *facts)
{
	uint32_t wanted = parse->end - parse->at;
	uint32_t count = parse->readable - parse->at;
	if (wanted > 8 * words)
		wanted = 8 * words;
	if (count < wanted)
		facts->flags |= NFP_FACTS_CUT;
	else
		count = wanted;
	for (uint32_t i = 0; i < words; i++)
		word[i] = nfp_digest_word(parse->bytes + parse->at, parse->at, count, i);
	return count;
}

static inline uint64_t nfp_digest_ip(struct nfp_parse *parse, uint64_t seed, struct nfp_packet_facts *facts)
{
	uint64_t word[7];
	uint32_t payload = parse->end - parse->at; // of IP, behind its options and extension headers
	uint64_t fragment = (uint16_t)(parse->fragment << 8 | parse->fragment >> 8);
	facts->ip_id = (uint16_t)parse->ip_id;
	if (parse->later_fragment)
		facts->flags |= NFP_FACTS_FRAGMENT;
	word[0] = facts->ip_version | (uint64_t)facts->protocol << 8 | fragment << 16 |
	          (uint64_t)__builtin_bswap32(parse->ip_id) << 32;
	struct nfp_invariant invariant;
	nfp_parse_transport(parse, &invariant, facts);
	word[1] = __builtin_bswap32(payload) | (uint64_t)invariant.first << 32;
	word[2] = invariant.rest;
	(void)nfp_digest_bytes(parse, NFP_DIGEST_PAYLOAD_BYTES / 8, word + 3, facts);
	return nfp_xxh3_56(word, seed);
}

static inline uint64_t nfp_digest_other(const struct nfp_parse *parse, uint64_t seed,
                                        struct nfp_packet_facts *facts)
{
	uint64_t word[9];
	uint64_t type = (uint16_t)(facts->ether_type << 8 | facts->ether_type >> 8);
	uint32_t count = nfp_digest_bytes(parse, NFP_DIGEST_OTHER_BYTES / 8, word + 1, facts);
	word[0] = type << 16 | (uint64_t)__builtin_bswap32(count) << 32;
	return nfp_xxh3_72(word, seed);
}

static inline void nfp_facts_clear(struct nfp_packet_facts *facts)
{
	// A constant size: the compiler writes seven stores, not a call.
	const struct nfp_packet_facts zero = {0};
	*facts = zero;
}

// Any packet, header by header.
static inline void nfp_packet_describe_any(const uint8_t *bytes, uint32_t readable, uint32_t packet_length,
                                           uint32_t link_layer, uint64_t seed, struct nfp_packet_facts *facts)
{
	nfp_facts_clear(facts);
	facts->length = packet_length;
	struct nfp_parse parse = {.bytes = bytes, .readable = readable, .end = packet_length};
	if (parse.readable > parse.end)
		parse.readable = parse.end;
	if ((link_layer & ~(uint32_t)NFP_LINK_INNER) == NFP_LINK_ETHERNET)
		(void)nfp_parse_ethernet(&parse, facts);
	else
		facts->ether_type = nfp_guess_type(&parse);
	int is_ip = nfp_parse_network(&parse, facts);
	int tunnels = link_layer & NFP_LINK_INNER ? NFP_TUNNELS_MAX : 0;
	while (is_ip && tunnels && nfp_parse_tunnel(&parse, facts, &is_ip))
		tunnels--;
	facts->digest = is_ip ? nfp_digest_ip(&parse, seed, facts) : nfp_digest_other(&parse, seed, facts);
}

// Most packets: IPv4 without options over Ethernet, whole, with UDP or TCP, and all that the digest covers can be read. One
// look at each field, where the parser goes from header to header. Returns 0 for any other, and nothing is written.
static inline int nfp_packet_describe_plain(const uint8_t *bytes, uint32_t readable, uint32_t packet_length,
                                            uint64_t seed, struct nfp_packet_facts *facts)
{
	const uint8_t *ip = bytes + 14, *transport = bytes + 34;
	if (readable < 54 || readable > packet_length || nfp_load_be16(bytes + 12) != NFP_TYPE_IPV4 ||
	    ip[0] != 0x45 || nfp_load_be16(ip + 6) & 0x3fff)
		return 0;
	uint32_t is_tcp = ip[9] == 6, end = 14u + nfp_load_be16(ip + 2);
	uint32_t at = is_tcp ? 34 + (transport[12] >> 4) * 4u : 42;
	if (!(is_tcp || ip[9] == 17) || (is_tcp && at < 54) || at > end || end > packet_length)
		return 0;
	uint32_t payload = end - at < NFP_DIGEST_PAYLOAD_BYTES ? end - at : NFP_DIGEST_PAYLOAD_BYTES;
	if (at + payload > readable)
		return 0;
	nfp_facts_clear(facts);
	__builtin_memcpy(facts->source, ip + 12, 4);
	__builtin_memcpy(facts->destination, ip + 16, 4);
	facts->source_port = nfp_load_be16(transport);
	facts->destination_port = nfp_load_be16(transport + 2);
	facts->length = packet_length;
	facts->ip_id = nfp_load_be16(ip + 4);
	facts->ether_type = NFP_TYPE_IPV4;
	facts->protocol = ip[9];
	facts->ip_version = 4;
	uint64_t word[7], first = nfp_load_32(transport + 4);
	word[0] = 4 | (uint64_t)ip[9] << 8 | (uint64_t)__builtin_bswap32(nfp_load_be16(ip + 4)) << 32;
	word[1] = __builtin_bswap32(end - 34) | (is_tcp ? first : first & 0xffff) << 32;
	word[2] = is_tcp ? nfp_load_64(transport + 8) : 0;
#pragma GCC unroll 4
	for (uint32_t i = 0; i < NFP_DIGEST_PAYLOAD_BYTES / 8; i++)
		word[3 + i] = nfp_digest_word(bytes + at, at, payload, i);
	facts->digest = nfp_xxh3_56(word, seed);
	return 1;
}

// Describes the packet whose first `readable` bytes are at `bytes`; `packet_length` is its whole length.
// link_layer is NFP_LINK_ETHERNET or NFP_LINK_IP, with NFP_LINK_INNER or without. Never fails: what is not
// understood is zero in `facts`.
static inline void nfp_packet_describe(const uint8_t *bytes, uint32_t readable, uint32_t packet_length,
                                       uint32_t link_layer, const uint64_t key[2],
                                       struct nfp_packet_facts *facts)
{
	uint64_t seed = key[0] ^ key[1];
	if (link_layer == NFP_LINK_ETHERNET &&
	    nfp_packet_describe_plain(bytes, readable, packet_length, seed, facts))
		return;
	nfp_packet_describe_any(bytes, readable, packet_length, link_layer, seed, facts);
}
#endif
