// SPDX-License-Identifier: Apache-2.0
// Packet facts: from the bytes of one packet its addresses, ports, IP id, length and 64-bit digest.
// Runs inside the target: no libc call, no memory of its own, no vector register, no read beyond `readable`
// whatever the headers claim. docs/identity.md defines the digest's bytes; otel_nfprobe/digest.py is the
// same in Python, and tests compare the two. Called by the probe library's packet capture.
#ifndef NFPROBE_DIGEST_H
#define NFPROBE_DIGEST_H
#include <stddef.h>
#include <stdint.h>

// The public key, the 16 bytes "otel-nfprobe ids": every monitor that is not given another one uses it.
#define NFP_DIGEST_KEY_0 0x70666e2d6c65746fULL
#define NFP_DIGEST_KEY_1 0x7364692065626f72ULL

#define NFP_LINK_ETHERNET 0
#define NFP_LINK_IP 1

#define NFP_FACTS_FRAGMENT 1 // a later fragment: no ports, the digest covers the fragment's own bytes
#define NFP_FACTS_CUT 2      // not all bytes that the digest covers were readable
#define NFP_FACTS_MALFORMED 4 // claims to be IP, but its IP header is not whole

#define NFP_DIGEST_PAYLOAD_BYTES 32
#define NFP_DIGEST_OTHER_BYTES 64
#define NFP_VLAN_TAGS_MAX 4
#define NFP_EXTENSION_HEADERS_MAX 8

struct nfp_packet_facts {
	uint64_t digest;
	uint8_t source[16]; // IPv4: the first four bytes; network order
	uint8_t destination[16];
	uint16_t source_port; // host order; 0 without ports
	uint16_t destination_port;
	uint32_t length; // of the whole packet with its link layer header
	uint16_t ip_id;  // IPv4 identification, or the low half of an IPv6 fragment's
	uint16_t ether_type; // after VLAN tags; 0x0800 or 0x86dd on a link without Ethernet
	uint8_t protocol;    // of the last header that was understood
	uint8_t ip_version;  // 0: not IP
	uint8_t flags;       // NFP_FACTS_*
	uint8_t reserved;
};
_Static_assert(sizeof(struct nfp_packet_facts) == 56, "digest_check.h and digest.py have the same layout");

// ---- SipHash-2-4 (Aumasson, Bernstein), absorbed word by word -------------------------------------------

struct nfp_siphash {
	uint64_t v0, v1, v2, v3;
	uint64_t bytes;
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
	hash->bytes = 0;
}

static inline void nfp_siphash_absorb(struct nfp_siphash *hash, uint64_t word)
{
	hash->v3 ^= word;
	nfp_siphash_round(hash);
	nfp_siphash_round(hash);
	hash->v0 ^= word;
	hash->bytes += 8;
}

// Takes the last `count` bytes of the message, any number, and returns the hash.
static inline uint64_t nfp_siphash_finish(struct nfp_siphash *hash, const uint8_t *bytes, uint32_t count)
{
	for (; count >= 8; count -= 8, bytes += 8) {
		uint64_t word;
		__builtin_memcpy(&word, bytes, 8);
		nfp_siphash_absorb(hash, word);
	}
	uint64_t last = (hash->bytes + count) << 56;
	for (uint32_t i = 0; i < count; i++)
		last |= (uint64_t)bytes[i] << (8 * i);
	nfp_siphash_absorb(hash, last);
	hash->v2 ^= 0xff;
	for (int i = 0; i < 4; i++)
		nfp_siphash_round(hash);
	return hash->v0 ^ hash->v1 ^ hash->v2 ^ hash->v3;
}

// ---- headers ---------------------------------------------------------------------------------------------

// Where the parser stands. 0 <= at <= readable <= end always; `end` is the end of the packet's own bytes,
// at first the packet's length, then the end that its IP header states.
struct nfp_parse {
	const uint8_t *bytes;
	uint32_t readable;
	uint32_t end;
	uint32_t at;       // of the next header
	uint32_t ip_id;    // 32 bits in an IPv6 fragment header
	uint16_t fragment; // IPv4 fragment bits: more fragments, offset; IPv6: offset, more fragments
	uint8_t later_fragment;
};

static inline uint16_t nfp_load_be16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static inline uint32_t nfp_load_be32(const uint8_t *bytes)
{
	return (uint32_t)nfp_load_be16(bytes) << 16 | nfp_load_be16(bytes + 2);
}

static inline int nfp_parse_has(const struct nfp_parse *parse, uint32_t count)
{
	return parse->readable - parse->at >= count;
}

static inline void nfp_parse_end(struct nfp_parse *parse, uint32_t end)
{
	if (end < parse->end)
		parse->end = end;
	if (parse->end < parse->at)
		parse->end = parse->at;
	if (parse->readable > parse->end)
		parse->readable = parse->end;
}

// Steps over the Ethernet header and its VLAN tags. Returns 0 when they are not whole.
static inline int nfp_parse_ethernet(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	if (!nfp_parse_has(parse, 14))
		return 0;
	uint16_t type = nfp_load_be16(parse->bytes + 12);
	parse->at = 14;
	for (int tags = 0; tags < NFP_VLAN_TAGS_MAX && (type == 0x8100 || type == 0x88a8 || type == 0x9100);
	     tags++) {
		if (!nfp_parse_has(parse, 4))
			break;
		type = nfp_load_be16(parse->bytes + parse->at + 2);
		parse->at += 4;
	}
	facts->ether_type = type;
	return 1;
}

static inline int nfp_parse_ipv4(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	const uint8_t *header = parse->bytes + parse->at;
	if (!nfp_parse_has(parse, 20) || header[0] >> 4 != 4)
		return 0;
	uint32_t header_bytes = (header[0] & 15u) * 4;
	if (header_bytes < 20 || !nfp_parse_has(parse, header_bytes))
		return 0;
	uint32_t total = nfp_load_be16(header + 2);
	facts->ip_version = 4;
	facts->protocol = header[9];
	parse->ip_id = nfp_load_be16(header + 4);
	parse->fragment = nfp_load_be16(header + 6) & 0x3fff;
	parse->later_fragment = (parse->fragment & 0x1fff) != 0;
	__builtin_memcpy(facts->source, header + 12, 4);
	__builtin_memcpy(facts->destination, header + 16, 4);
	uint32_t start = parse->at;
	parse->at += header_bytes;
	if (total != 0) // 0: the interface card segments later
		nfp_parse_end(parse, start + total);
	return 1;
}

static inline int nfp_is_extension(uint8_t protocol)
{
	return protocol == 0 || protocol == 43 || protocol == 44 || protocol == 51 || protocol == 60 ||
	       protocol == 135 || protocol == 139 || protocol == 140;
}

static inline void nfp_parse_extensions(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	for (int i = 0; i < NFP_EXTENSION_HEADERS_MAX && nfp_is_extension(facts->protocol); i++) {
		if (!nfp_parse_has(parse, 8))
			return;
		const uint8_t *header = parse->bytes + parse->at;
		uint32_t header_bytes = (header[1] + 1u) * 8;
		if (facts->protocol == 51)
			header_bytes = (header[1] + 2u) * 4;
		if (facts->protocol == 44) {
			header_bytes = 8;
			parse->fragment = nfp_load_be16(header + 2) & 0xfff9;
			parse->ip_id = nfp_load_be32(header + 4);
			parse->later_fragment = (parse->fragment & 0xfff8) != 0;
		}
		if (!nfp_parse_has(parse, header_bytes))
			return;
		facts->protocol = header[0];
		parse->at += header_bytes;
		if (parse->later_fragment)
			return;
	}
}

static inline int nfp_parse_ipv6(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	const uint8_t *header = parse->bytes + parse->at;
	if (!nfp_parse_has(parse, 40) || header[0] >> 4 != 6)
		return 0;
	uint32_t payload = nfp_load_be16(header + 4);
	facts->ip_version = 6;
	facts->protocol = header[6];
	__builtin_memcpy(facts->source, header + 8, 16);
	__builtin_memcpy(facts->destination, header + 24, 16);
	parse->at += 40;
	if (payload != 0) // 0: a jumbogram, or segmented later
		nfp_parse_end(parse, parse->at + payload);
	nfp_parse_extensions(parse, facts);
	return 1;
}

// ---- the digest ------------------------------------------------------------------------------------------

// Steps over the TCP, UDP, SCTP or ICMP header and stores the fields that NFs do not rewrite in
// invariant[0..11], as on the wire. Returns how many of those bytes the digest takes: 4, or 12 for TCP.
static inline uint32_t nfp_parse_transport(struct nfp_parse *parse, uint8_t invariant[12],
                                           struct nfp_packet_facts *facts)
{
	const uint8_t *header = parse->bytes + parse->at;
	uint32_t header_bytes = facts->protocol == 6 ? 20 : facts->protocol == 132 ? 12 : 8;
	int icmp = facts->protocol == 1 || facts->protocol == 58;
	int ports = facts->protocol == 6 || facts->protocol == 17 || facts->protocol == 132;
	if (parse->later_fragment || (!icmp && !ports) || !nfp_parse_has(parse, header_bytes))
		return 4;
	if (ports) {
		facts->source_port = nfp_load_be16(header);
		facts->destination_port = nfp_load_be16(header + 2);
	}
	if (facts->protocol == 6) {
		uint32_t with_options = (header[12] >> 4) * 4u;
		__builtin_memcpy(invariant, header + 4,
		                 12); // sequence, acknowledgement, offset and flags, window
		if (with_options > header_bytes)
			header_bytes =
			    nfp_parse_has(parse, with_options) ? with_options : parse->readable - parse->at;
	} else if (facts->protocol == 17) {
		__builtin_memcpy(invariant, header + 4, 2); // length
	} else if (facts->protocol == 132) {
		__builtin_memcpy(invariant, header + 4, 4); // verification tag
	} else {
		__builtin_memcpy(invariant, header, 2);         // type, code
		__builtin_memcpy(invariant + 2, header + 6,
		                 2); // sequence number; the id is rewritten as ports are
	}
	parse->at += header_bytes;
	return facts->protocol == 6 ? 12 : 4;
}

// Hashes the first `limit` bytes from where the parser stands.
static inline uint64_t nfp_digest_finish(struct nfp_siphash *hash, struct nfp_parse *parse, uint32_t limit,
                                         struct nfp_packet_facts *facts)
{
	uint32_t wanted = parse->end - parse->at;
	uint32_t count = parse->readable - parse->at;
	if (wanted > limit)
		wanted = limit;
	if (count < wanted)
		facts->flags |= NFP_FACTS_CUT;
	else
		count = wanted;
	return nfp_siphash_finish(hash, parse->bytes + parse->at, count);
}

static inline uint64_t nfp_digest_ip(struct nfp_parse *parse, const uint64_t key[2],
                                     struct nfp_packet_facts *facts)
{
	uint32_t payload = parse->end - parse->at; // of IP, behind its options and extension headers
	uint8_t head[24] = {0};
	facts->ip_id = (uint16_t)parse->ip_id;
	if (parse->later_fragment)
		facts->flags |= NFP_FACTS_FRAGMENT;
	head[0] = facts->ip_version;
	head[1] = facts->protocol;
	head[2] = (uint8_t)(parse->fragment >> 8);
	head[3] = (uint8_t)parse->fragment;
	head[4] = (uint8_t)(parse->ip_id >> 24);
	head[5] = (uint8_t)(parse->ip_id >> 16);
	head[6] = (uint8_t)(parse->ip_id >> 8);
	head[7] = (uint8_t)parse->ip_id;
	head[8] = (uint8_t)(payload >> 24);
	head[9] = (uint8_t)(payload >> 16);
	head[10] = (uint8_t)(payload >> 8);
	head[11] = (uint8_t)payload;
	uint32_t words = nfp_parse_transport(parse, head + 12, facts) == 12 ? 3 : 2;
	struct nfp_siphash hash;
	nfp_siphash_init(key, &hash);
	for (uint32_t i = 0; i < words; i++) {
		uint64_t word;
		__builtin_memcpy(&word, head + 8 * i, 8);
		nfp_siphash_absorb(&hash, word);
	}
	return nfp_digest_finish(&hash, parse, NFP_DIGEST_PAYLOAD_BYTES, facts);
}

static inline uint64_t nfp_digest_other(struct nfp_parse *parse, const uint64_t key[2],
                                        struct nfp_packet_facts *facts)
{
	struct nfp_siphash hash;
	nfp_siphash_init(key, &hash);
	nfp_siphash_absorb(&hash, (uint64_t)(facts->ether_type >> 8) << 16 |
	                              (uint64_t)(facts->ether_type & 0xff) << 24);
	return nfp_digest_finish(&hash, parse, NFP_DIGEST_OTHER_BYTES, facts);
}

static inline void nfp_facts_clear(struct nfp_packet_facts *facts)
{
	// A constant size: the compiler writes seven stores, not a call.
	const struct nfp_packet_facts zero = {0};
	*facts = zero;
}

// Describes the packet whose first `readable` bytes are at `bytes`; `packet_length` is its whole length.
// link_layer is NFP_LINK_ETHERNET or NFP_LINK_IP. Never fails: what is not understood is zero in `facts`.
static inline void nfp_packet_describe(const uint8_t *bytes, uint32_t readable, uint32_t packet_length,
                                       uint32_t link_layer, const uint64_t key[2],
                                       struct nfp_packet_facts *facts)
{
	nfp_facts_clear(facts);
	facts->length = packet_length;
	struct nfp_parse parse = {.bytes = bytes, .readable = readable, .end = packet_length};
	if (parse.readable > parse.end)
		parse.readable = parse.end;
	if (link_layer == NFP_LINK_ETHERNET)
		(void)nfp_parse_ethernet(&parse, facts);
	else if (nfp_parse_has(&parse, 1))
		facts->ether_type = bytes[0] >> 4 == 4 ? 0x0800 : bytes[0] >> 4 == 6 ? 0x86dd : 0;
	int is_ip = 0;
	if (facts->ether_type == 0x0800)
		is_ip = nfp_parse_ipv4(&parse, facts);
	else if (facts->ether_type == 0x86dd)
		is_ip = nfp_parse_ipv6(&parse, facts);
	if (is_ip) {
		facts->digest = nfp_digest_ip(&parse, key, facts);
		return;
	}
	if (facts->ether_type == 0x0800 || facts->ether_type == 0x86dd)
		facts->flags |= NFP_FACTS_MALFORMED;
	facts->digest = nfp_digest_other(&parse, key, facts);
}
#endif
