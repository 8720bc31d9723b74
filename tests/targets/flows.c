// SPDX-License-Identifier: Apache-2.0
// Every packet is of another flow: packet number n comes from address 10.0.0.0 + n and carries n. Commands on standard
// input: "flows N" receives and transmits N batches of 32.
#include "commands.h"
#include "packets.h"
#include <stdint.h>

enum { BATCH = 32, LENGTH = 60, POOL = 256 };

static struct packet pool[POOL];
static uint32_t received, sent;
static char answer[64];

static void store(uint8_t *bytes, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

__attribute__((noipa)) uint32_t flows_receive(struct packet **packets, uint32_t count)
{
	static const uint8_t header[] = {2,    0, 0,  0,   0, 2, 2,  0,  0,  0,  0, 1,  8,  0,
	                                 0x45, 0, 0,  46,  0, 0, 0,  0,  64, 17, 0, 0,  10, 0,
	                                 0,    0, 10, 128, 0, 2, 39, 16, 0,  53, 0, 26, 0,  0};
	for (uint32_t i = 0; i < count; i++) {
		struct packet *packet = packets[i] = &pool[received % POOL];
		packet->data = packet->room;
		packet->length = packet->segment = LENGTH;
		memset(packet->room, 0, ROOM);
		memcpy(packet->room, header, sizeof(header));
		store(packet->room + 26, 0x0a000000 + received);
		store(packet->room + 42, received++);
	}
	return count;
}

__attribute__((noipa)) uint32_t flows_transmit(struct packet **packets, uint32_t count)
{
	sent += packets[0]->length == LENGTH ? count : 0;
	return count;
}

static const char *run_flows(long batches)
{
	struct packet *packets[BATCH];
	for (long i = 0; i < batches; i++)
		flows_transmit(packets, flows_receive(packets, BATCH));
	snprintf(answer, sizeof(answer), "%u", sent);
	return answer;
}

int main(void)
{
	const struct command commands[] = {{"flows", run_flows}, {NULL, NULL}};
	return obey(commands);
}
