// SPDX-License-Identifier: Apache-2.0
// A packet's headers, from the link layer to the end of IP's, and through tunnels where that is wanted: addresses,
// IP id, fragments. Runs inside the target: no libc call, no memory of its own, no vector register, no read beyond
// `readable` whatever the headers claim, a bounded number of steps.
// cdef: macros
#ifndef NFPROBE_HEADERS_H
#define NFPROBE_HEADERS_H
#include <stddef.h>
#include <stdint.h>

#define NFP_LINK_ETHERNET 0
#define NFP_LINK_IP 1
#define NFP_LINK_EITHER 2 // of a program only: as the packet's bytes say (native/probe/describe.c)
#define NFP_LINK_INNER 0x80 // added to one of them: describe the packet inside a tunnel, where there is one

#define NFP_FACTS_FRAGMENT 1 // a later fragment: no ports, the digest covers the fragment's own bytes
#define NFP_FACTS_CUT 2 // not all bytes that the digest covers were readable
#define NFP_FACTS_MALFORMED 4 // claims to be IP, but its IP header is not whole
#define NFP_FACTS_INNER 8 // describes the packet inside a tunnel

#define NFP_VLAN_TAGS_MAX 4
#define NFP_MPLS_LABELS_MAX 8
#define NFP_EXTENSION_HEADERS_MAX 8
#define NFP_TUNNELS_MAX 4 // one inside the other

#define NFP_TYPE_IPV4 0x0800
#define NFP_TYPE_IPV6 0x86dd
#define NFP_TYPE_MPLS 0x8847
#define NFP_TYPE_MPLS_MULTICAST 0x8848
#define NFP_TYPE_ETHERNET 0x6558 // in a tunnel's header
#define NFP_PORT_VXLAN 4789
#define NFP_PORT_GTP_U 2152

struct nfp_packet_facts {
	uint64_t digest;
	uint8_t source[16]; // IPv4: the first four bytes; network order
	uint8_t destination[16];
	uint16_t source_port; // host order; 0 without ports. ICMP: identifier; ESP: high half of its SPI
	uint16_t destination_port; // ICMP: type << 8 | code; ESP: low half of its SPI
	uint32_t length; // of the whole packet with its link layer header
	uint16_t ip_id; // IPv4 identification, or the low half of an IPv6 fragment's
	uint16_t ether_type; // after VLAN tags; NFP_TYPE_IPV4 or _IPV6 on a link without Ethernet
	uint8_t protocol; // of the last header that was understood
	uint8_t ip_version; // 0: not IP
	uint8_t flags; // NFP_FACTS_*
	uint8_t reserved;
};
_Static_assert(sizeof(struct nfp_packet_facts) == 56,
               "digest_check.h and packet_digest.py have the same layout");

// Where the parser stands. 0 <= at <= readable <= end always; `end` is the end of the packet's own bytes,
// at first the packet's length, then the end that its IP header states.
struct nfp_parse {
	const uint8_t *bytes;
	uint32_t readable;
	uint32_t end;
	uint32_t at; // of the next header
	uint32_t ip_id; // 32 bits in an IPv6 fragment header
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

static inline uint32_t nfp_load_32(const uint8_t *bytes)
{
	uint32_t word;
	__builtin_memcpy(&word, bytes, sizeof(word));
	return word;
}

static inline uint64_t nfp_load_64(const uint8_t *bytes)
{
	uint64_t word;
	__builtin_memcpy(&word, bytes, sizeof(word));
	return word;
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
	uint16_t type = nfp_load_be16(parse->bytes + parse->at + 12);
	parse->at += 14;
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

// ---- what may stand around IP ----------------------------------------------------------------------------

static inline uint16_t nfp_guess_type(const struct nfp_parse *parse)
{
	uint8_t version = nfp_parse_has(parse, 1) ? parse->bytes[parse->at] >> 4 : 0;
	return version == 4 ? NFP_TYPE_IPV4 : version == 6 ? NFP_TYPE_IPV6 : 0;
}

// Steps over MPLS labels. Nothing says what follows the last one: its first nibble suggests it.
static inline uint16_t nfp_parse_labels(struct nfp_parse *parse)
{
	for (int labels = 0; labels < NFP_MPLS_LABELS_MAX && nfp_parse_has(parse, 4); labels++) {
		int bottom = parse->bytes[parse->at + 2] & 1;
		parse->at += 4;
		if (bottom)
			return nfp_guess_type(parse);
	}
	return 0;
}

// Steps over MPLS labels and the IP header with all that belongs to it. Returns whether there is one.
static inline int nfp_parse_network(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	uint16_t type = facts->ether_type;
	int is_ip = 0;
	if (type == NFP_TYPE_MPLS || type == NFP_TYPE_MPLS_MULTICAST)
		type = nfp_parse_labels(parse);
	if (type == NFP_TYPE_IPV4)
		is_ip = nfp_parse_ipv4(parse, facts);
	else if (type == NFP_TYPE_IPV6)
		is_ip = nfp_parse_ipv6(parse, facts);
	if (!is_ip && (facts->ether_type == NFP_TYPE_IPV4 || facts->ether_type == NFP_TYPE_IPV6))
		facts->flags |= NFP_FACTS_MALFORMED;
	return is_ip;
}

// As nfp_parse_has; bytes that are in the packet and cannot be read are marked.
static inline int nfp_parse_reaches(const struct nfp_parse *parse, uint32_t count,
                                    struct nfp_packet_facts *facts)
{
	if (nfp_parse_has(parse, count))
		return 1;
	if (parse->end - parse->at >= count)
		facts->flags |= NFP_FACTS_CUT;
	return 0;
}

// Version 0 with its optional checksum, key and sequence number.
static inline uint16_t nfp_parse_gre(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	const uint8_t *header = parse->bytes + parse->at;
	if (!nfp_parse_reaches(parse, 4, facts) || header[0] & 0x40 || header[1] & 7)
		return 0;
	uint32_t options = (header[0] >> 7) + (header[0] >> 5 & 1u) + (header[0] >> 4 & 1u);
	uint16_t type = nfp_load_be16(header + 2);
	if (!nfp_parse_reaches(parse, 4 + 4 * options, facts))
		return 0;
	parse->at += 4 + 4 * options;
	int known = type == NFP_TYPE_IPV4 || type == NFP_TYPE_IPV6 || type == NFP_TYPE_MPLS;
	return known || type == NFP_TYPE_ETHERNET ? type : 0;
}

// A user's packet (message type 255) with the extension headers before it.
static inline uint16_t nfp_parse_gtp(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	const uint8_t *header = parse->bytes + parse->at;
	if (!nfp_parse_reaches(parse, 8, facts) || (header[0] & 0xf0) != 0x30 || header[1] != 255)
		return 0;
	uint32_t header_bytes = header[0] & 7 ? 12 : 8;
	uint32_t end = parse->at + 8 + nfp_load_be16(header + 2);
	if (!nfp_parse_reaches(parse, header_bytes, facts))
		return 0;
	uint8_t next = header[0] & 4 ? header[11] : 0;
	parse->at += header_bytes;
	for (int i = 0; next; i++) {
		if (i == NFP_EXTENSION_HEADERS_MAX || !nfp_parse_reaches(parse, 4, facts))
			return 0;
		uint32_t extension_bytes = parse->bytes[parse->at] * 4u;
		if (!extension_bytes || !nfp_parse_reaches(parse, extension_bytes, facts))
			return 0;
		parse->at += extension_bytes;
		next = parse->bytes[parse->at - 1];
	}
	nfp_parse_end(parse, end);
	return nfp_parse_reaches(parse, 1, facts) ? nfp_guess_type(parse) : 0;
}

static inline uint16_t nfp_parse_udp_tunnel(struct nfp_parse *parse, struct nfp_packet_facts *facts)
{
	const uint8_t *header = parse->bytes + parse->at;
	if (!nfp_parse_reaches(parse, 8, facts))
		return 0;
	uint16_t port = nfp_load_be16(header + 2);
	parse->at += 8;
	if (port == NFP_PORT_GTP_U)
		return nfp_parse_gtp(parse, facts);
	if (port != NFP_PORT_VXLAN || !nfp_parse_reaches(parse, 8 + 14, facts) || !(header[8] & 8))
		return 0;
	parse->at += 8;
	return NFP_TYPE_ETHERNET;
}

// Steps into the packet inside a tunnel that begins behind the IP header, and over its headers up to those of
// IP. Returns 0, and changes nothing but marks, when there is no tunnel or its headers are not whole: the
// first fragment has no whole packet inside.
static inline int nfp_parse_tunnel(struct nfp_parse *parse, struct nfp_packet_facts *facts, int *is_ip)
{
	struct nfp_parse inner = *parse;
	uint16_t type = 0;
	if (parse->fragment == 0 && facts->protocol == 47)
		type = nfp_parse_gre(&inner, facts);
	else if (parse->fragment == 0 && facts->protocol == 17)
		type = nfp_parse_udp_tunnel(&inner, facts);
	if (!type || (type == NFP_TYPE_ETHERNET && !nfp_parse_reaches(&inner, 14, facts)))
		return 0;
	const struct nfp_packet_facts fresh = {
	    .length = facts->length, .ether_type = type, .flags = NFP_FACTS_INNER};
	*facts = fresh;
	*parse = inner;
	parse->ip_id = 0;
	if (type == NFP_TYPE_ETHERNET)
		(void)nfp_parse_ethernet(parse, facts);
	*is_ip = nfp_parse_network(parse, facts);
	return 1;
}
#endif
