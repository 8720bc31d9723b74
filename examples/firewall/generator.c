// SPDX-License-Identifier: Apache-2.0
// The generator thread: makes packets with real Ethernet, IPv4 and UDP headers from a seed, in bursts of
// uneven size with uneven gaps, stamps each with the time stamp counter and puts it into the port's ring.
#include <math.h>
#include <string.h>
#include <time.h>
#include "firewall.h"

#define HEADER_BYTES (14 + 20 + 8)
#define FLOWS 200
#define SLOW_FLOW FLOWS
#define BURST_FLOW (FLOWS + 1)
#define ANY_FLOW UINT32_MAX
#define LARGEST_BURST 4096
#define BURST_MAX 64

static void store_be16(uint8_t *bytes, uint32_t value)
{
	bytes[0] = (uint8_t)(value >> 8);
	bytes[1] = (uint8_t)value;
}

static void store_be32(uint8_t *bytes, uint32_t value)
{
	store_be16(bytes, value >> 16);
	store_be16(bytes + 2, value);
}

static uint32_t ip_checksum(const uint8_t *header)
{
	uint32_t sum = 0;
	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)(header[i] << 8 | header[i + 1]);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16)) & 0xffff;
}

static void make_packet(struct fw_packet *packet, uint64_t sequence, uint32_t flow, uint64_t *seed)
{
	static const uint8_t macs[14] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0};
	uint64_t random = fw_random(seed);
	if (flow == ANY_FLOW)
		flow = (uint32_t)(random % FLOWS);
	uint32_t length = HEADER_BYTES + 22 + (uint32_t)(random >> 32) % (FW_FRAME_MAX - HEADER_BYTES - 21);
	uint8_t *frame = packet->data + FW_HEADROOM;
	uint8_t *ip = frame + 14, *udp = ip + 20;
	memcpy(frame, macs, sizeof(macs));
	memset(ip, 0, 20);
	ip[0] = 0x45;
	store_be16(ip + 2, length - 14);
	store_be16(ip + 4, (uint32_t)sequence);
	ip[8] = 64;
	ip[9] = 17;
	store_be32(ip + 12, 0x0a000000u + flow);
	store_be32(ip + 16, flow == SLOW_FLOW
	                        ? FW_SLOW_DESTINATION
				: 0x0a010000u + 500 + flow * 7 % 500); // the rule of this number
	store_be16(ip + 10, ip_checksum(ip));
	store_be16(udp, 10000 + flow);
	store_be16(udp + 2, 53);
	store_be16(udp + 4, length - 14 - 20);
	store_be16(udp + 6, 0);
	memset(udp + 8, 0, length - HEADER_BYTES);
	memcpy(udp + 8, &sequence, sizeof(sequence));
	packet->data_offset = FW_HEADROOM;
	packet->length = length;
	packet->segment_length = (uint16_t)length;
	packet->sequence = sequence;
}

// Sleeps, so that the core is free for others; a gap that is slept too long makes the next bursts closer.
static void wait_until(uint64_t ticks, double ticks_per_second)
{
	int64_t left = (int64_t)(ticks - fw_ticks());
	if (left <= 0)
		return;
	double seconds = (double)left / ticks_per_second;
	struct timespec pause = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
	nanosleep(&pause, NULL);
}

// Packets of one flow, all at once.
static void make_fault(struct fw_generator *generator, uint64_t *seed)
{
	static struct fw_packet *packets[LARGEST_BURST];
	uint32_t wanted = generator->burst_packets < LARGEST_BURST ? generator->burst_packets : LARGEST_BURST;
	uint32_t count = fw_ring_get(&generator->port->unused, packets, wanted);
	for (uint32_t i = 0; i < count; i++)
		make_packet(packets[i], generator->made + i, BURST_FLOW, seed);
	uint64_t now = fw_ticks();
	for (uint32_t i = 0; i < count; i++)
		packets[i]->arrival = now;
	fw_ring_put(&generator->port->arrived, packets, count);
	generator->made += count;
	if (generator->port->faults)
		fprintf(generator->port->faults, "burst %lu %u\n", (unsigned long)now, count);
}

static uint32_t choose_flow(const struct fw_generator *generator, uint64_t sequence)
{
	uint64_t every = generator->slow_flow_every;
	return every && sequence % every == every - 1 ? SLOW_FLOW : ANY_FLOW;
}

static uint32_t make_burst(struct fw_generator *generator, uint64_t *seed)
{
	struct fw_packet *packets[BURST_MAX];
	uint32_t wanted = 1 + (uint32_t)(fw_random(seed) % BURST_MAX);
	if (generator->packets && generator->packets - generator->made < wanted)
		wanted = (uint32_t)(generator->packets - generator->made);
	uint32_t count = fw_ring_get(&generator->port->unused, packets, wanted);
	for (uint32_t i = 0; i < count; i++)
		make_packet(packets[i], generator->made + i, choose_flow(generator, generator->made + i),
		            seed);
	uint64_t now = fw_ticks();
	for (uint32_t i = 0; i < count; i++)
		packets[i]->arrival = now;
	fw_ring_put(&generator->port->arrived, packets, count);
	generator->made += count;
	return count;
}

void *fw_generate(void *argument)
{
	struct fw_generator *generator = argument;
	uint64_t seed = generator->seed;
	double ticks_per_packet = generator->ticks_per_second / generator->rate;
	double next = (double)fw_ticks();
	uint64_t fault = generator->burst_every;
	while (!atomic_load(&generator->stop) &&
	       (!generator->packets || generator->made < generator->packets)) {
		uint32_t count = make_burst(generator, &seed);
		if (fault && generator->made >= fault) {
			make_fault(generator, &seed);
			fault = generator->made + generator->burst_every;
		}
		double unit = ((double)(fw_random(&seed) >> 11) + 1) / 9007199254740993.0; // above 0, up to 1
		next += -log(unit) * ticks_per_packet * (count ? count : 1);
		// After an interruption of more than 2 ms (the machine was busy) the lost time is not made up for.
		double earliest = (double)fw_ticks() - 0.002 * generator->ticks_per_second;
		next = next > earliest ? next : earliest;
		wait_until((uint64_t)next, generator->ticks_per_second);
	}
	atomic_store(&generator->done, true);
	return NULL;
}
