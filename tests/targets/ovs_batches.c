// SPDX-License-Identifier: Apache-2.0
// What Open vSwitch does with batches, under its names and with the structures of its build without DPDK: a system
// port is polled into a batch, every tenth batch misses the cache, and a port empties the batch that it is handed.
// Commands on standard input: N, so many packets. Answers how many packets of how many bytes it has sent.
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BURST = 32, PACKETS = 1024, ROOM = 256, HEADROOM = 64 };

struct dp_packet {
	void *base_;
	uint16_t allocated_;
	uint16_t data_ofs;
	uint32_t size_;
	uint8_t room[ROOM];
};
struct dp_packet_batch {
	size_t count;
	bool trunc;
	struct dp_packet *packets[BURST];
};
struct netdev_rxq {
	const char *log_module;
	unsigned left, number;
};

static struct dp_packet pool[PACKETS];
static uint64_t sent, sent_bytes;

__attribute__((noipa)) int netdev_linux_rxq_recv(struct netdev_rxq *rxq, struct dp_packet_batch *batch,
                                                 int *qfill)
{
	static const uint8_t header[] = {2,  0, 0, 0, 0, 2,  2,  0, 0, 0,  0, 1, 8, 0,  0x45, 0, 0,
	                                 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0,    0, 2};
	if (!rxq->left)
		return EAGAIN; // and the batch is as it was
	batch->count = rxq->left < BURST ? rxq->left : BURST;
	for (size_t i = 0; i < batch->count; i++) {
		struct dp_packet *packet = &pool[rxq->number % PACKETS];
		packet->base_ = packet->room;
		packet->data_ofs = HEADROOM;
		packet->size_ = 60;
		memset(packet->room + HEADROOM, 0, 60);
		memcpy(packet->room + HEADROOM, header, sizeof(header));
		packet->room[HEADROOM + 18] = (uint8_t)(rxq->number >> 8); // IP id
		packet->room[HEADROOM + 19] = (uint8_t)rxq->number++;
		batch->packets[i] = packet;
	}
	rxq->left -= (unsigned)batch->count;
	*qfill = (int)rxq->left;
	return 0;
}

__attribute__((noipa)) int upcall_cb(const struct dp_packet *packet)
{
	return packet->size_ != 60;
}

__attribute__((noipa)) int netdev_linux_send(void *netdev, int qid, struct dp_packet_batch *batch,
                                             bool concurrent)
{
	for (size_t i = 0; i < batch->count; i++)
		sent_bytes += batch->packets[i]->size_;
	sent += batch->count;
	batch->count = 0;
	memset(batch->packets, 0xff, sizeof(batch->packets));
	return netdev == NULL && qid && concurrent;
}

int main(void)
{
	char line[64];
	struct netdev_rxq rxq = {"dpif_netdev", 0, 0};
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		rxq.left = (unsigned)strtoul(line, NULL, 10);
		struct dp_packet_batch batch = {.count = 99};
		for (unsigned polls = 0, idle = 0; idle < 3; polls++) {
			int qfill;
			if (netdev_linux_rxq_recv(&rxq, &batch, &qfill)) {
				idle++;
				continue;
			}
			if (polls % 10 == 0 && upcall_cb(batch.packets[0]))
				return 1;
			if (netdev_linux_send(&rxq, 0, &batch, false))
				return 1;
		}
		printf("%lu packets %lu bytes\n", (unsigned long)sent, (unsigned long)sent_bytes);
	}
	return 0;
}
