// SPDX-License-Identifier: Apache-2.0
// What the firewall does to a batch: parse the headers, look each packet up in the rules one after the
// other, count. Each function works on a whole batch.
#include <stdlib.h>
#include "firewall.h"

static uint16_t load_be16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static uint32_t load_be32(const uint8_t *bytes)
{
	return (uint32_t)load_be16(bytes) << 16 | load_be16(bytes + 2);
}

FW_FUNCTION void fw_parse(struct fw_packet **packets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct fw_packet *packet = packets[i];
		const uint8_t *ip = packet->data + packet->data_offset + 14;
		const uint8_t *transport = ip + (ip[0] & 15) * 4;
		packet->protocol = ip[9];
		packet->source = load_be32(ip + 12);
		packet->destination = load_be32(ip + 16);
		packet->source_port = load_be16(transport);
		packet->destination_port = load_be16(transport + 2);
	}
}

// All five fields are compared always, as a lookup without branches does.
static int rule_matches(const struct fw_rule *rule, const struct fw_packet *packet)
{
	int source = (packet->source & rule->source_mask) == rule->source;
	int destination = (packet->destination & rule->destination_mask) == rule->destination;
	int source_port =
	    packet->source_port >= rule->source_port_low && packet->source_port <= rule->source_port_high;
	int destination_port = packet->destination_port >= rule->destination_port_low &&
	                       packet->destination_port <= rule->destination_port_high;
	return source & destination & source_port & destination_port & (packet->protocol == rule->protocol);
}

// Linear on purpose: this is the work that makes a batch take its time.
FW_FUNCTION void fw_classify(const struct fw_rules *rules, struct fw_packet **packets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = 0;
		while (at < rules->count && !rule_matches(&rules->rule[at], packets[i]))
			at++;
		packets[i]->rule = at;
		packets[i]->verdict = at < rules->count ? rules->rule[at].verdict : FW_ALLOW;
	}
}

FW_FUNCTION void fw_count(struct fw_counters *counters, const struct fw_rules *rules,
                          struct fw_packet **packets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		counters->packets[packets[i]->verdict]++;
		counters->bytes[packets[i]->verdict] += packets[i]->length;
		counters->unmatched += packets[i]->rule == rules->count;
	}
}

// Rules that no packet matches, and one that only the slow flow does: what it costs to get there is its own.
static void add_slow(struct fw_rules *rules, uint32_t from)
{
	for (uint32_t i = from; i < rules->count; i++)
		rules->rule[i] = (struct fw_rule){.destination = FW_SLOW_DESTINATION + (rules->count - 1 - i),
		                                  .destination_mask = ~0u,
		                                  .source_port_high = 0xffff,
		                                  .destination_port_high = 0xffff,
		                                  .protocol = 17,
		                                  .verdict = FW_ALLOW};
}

// Rule number n is for destination 10.1.0.0 + n; every tenth denies. The generator sends to the last 500.
int fw_rules_init(struct fw_rules *rules, uint32_t count, uint32_t slow, uint64_t seed)
{
	rules->count = count + slow;
	rules->slow = slow ? rules->count - 1 : UINT32_MAX;
	rules->rule = calloc(rules->count ? rules->count : 1, sizeof(*rules->rule));
	if (!rules->rule)
		return -1;
	add_slow(rules, count);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t network_bits = 8 + (uint32_t)(fw_random(&seed) % 9); // 8 to 16
		uint32_t mask = ~0u << (32 - network_bits);
		rules->rule[i] = (struct fw_rule){
		    .source = 0x0a000000u & mask,
		    .source_mask = mask,
		    .destination = 0x0a010000u + i,
		    .destination_mask = ~0u,
		    .source_port_low = 1024,
		    .source_port_high = 0xffff,
		    .destination_port_low = 53,
		    .destination_port_high = 53,
		    .protocol = 17,
		    .verdict = i % 10 == 9 ? FW_DENY : FW_ALLOW,
		};
	}
	return 0;
}

void fw_rules_deinit(struct fw_rules *rules)
{
	free(rules->rule);
}
