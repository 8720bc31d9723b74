// SPDX-License-Identifier: Apache-2.0
// Makes headers up from what is known of packets, and runs a filter of libpcap on them (flow_filter.h).
//
//   IPv4  45 .. .. ..  id id  offset  .. protocol .. ..  source(4) destination(4) | ports, or type and code of ICMP
//   IPv6  60 .. .. ..  .. .. next ..  source(16) destination(16)                  | the same
//
// Packets that are not IP are 64 zeros.
#include "flow_filter.h"
#include <string.h>

enum { HEADERS_BYTES = 64, IPV4_BYTES = 20, IPV6_BYTES = 40, ICMP = 1, ICMP6 = 58 };

// struct pcap_pkthdr of a 64-bit Linux.
struct captured {
	int64_t seconds;
	int64_t microseconds;
	uint32_t captured_bytes;
	uint32_t wire_bytes;
};

static uint8_t *write_big16(uint8_t *p, uint16_t value)
{
	p[0] = (uint8_t)(value >> 8);
	p[1] = (uint8_t)value;
	return p + 2;
}

static int has_ports(uint8_t protocol)
{
	return protocol == 6 || protocol == 17 || protocol == 33 || protocol == 132 || protocol == 136;
}

// What follows the IP header, as far as it is known. Returns its end.
static uint8_t *write_transport(uint8_t *p, const struct nfp_packet *packet)
{
	const uint8_t cut = NFP_PACKET_CUT | NFP_PACKET_MALFORMED;
	if (packet->flags & NFP_PACKET_FRAGMENT)
		return p;
	if (packet->flags & cut && !packet->source_port && !packet->destination_port)
		return p;
	if (has_ports(packet->protocol))
		return write_big16(write_big16(p, packet->source_port), packet->destination_port);
	if (packet->protocol == ICMP || packet->protocol == ICMP6)
		return write_big16(p, packet->destination_port);
	return p;
}

// Returns how many bytes are known.
static uint32_t write_headers(uint8_t *headers, const struct nfp_packet *packet)
{
	memset(headers, 0, HEADERS_BYTES);
	if (packet->ip_version == 4) {
		headers[0] = 0x45;
		write_big16(headers + 4, packet->ip_id);
		headers[7] = packet->flags & NFP_PACKET_FRAGMENT ? 1 : 0; // some offset
		headers[9] = packet->protocol;
		memcpy(headers + 12, packet->source, 4);
		memcpy(headers + 16, packet->destination, 4);
		return (uint32_t)(write_transport(headers + IPV4_BYTES, packet) - headers);
	}
	if (packet->ip_version == 6) {
		headers[0] = 0x60;
		headers[6] = packet->protocol;
		memcpy(headers + 8, packet->source, 16);
		memcpy(headers + 24, packet->destination, 16);
		return (uint32_t)(write_transport(headers + IPV6_BYTES, packet) - headers);
	}
	return HEADERS_BYTES;
}

void nfp_flow_match(nfp_flow_run *run, const void *program, const struct nfp_packet *packets, size_t count,
                    uint8_t *matches)
{
	for (size_t i = 0; i < count; i++) {
		uint8_t headers[HEADERS_BYTES];
		struct captured captured = {.captured_bytes = write_headers(headers, &packets[i]),
		                            .wire_bytes = packets[i].length};
		matches[i] = run(program, &captured, headers) != 0;
	}
}
