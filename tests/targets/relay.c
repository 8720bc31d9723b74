// SPDX-License-Identifier: Apache-2.0
// Two threads: one receives packets and puts them into a ring, the other takes them out, works on them and transmits.
// Commands on standard input: N, so many packets. There are twice as many buffers as the ring holds.
// Answers how many packets the second thread has transmitted.
#include "packets.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PACKETS = 4096, BUFFERS = 2 * PACKETS, RECEIVED = 8, TAKEN = 5 };

static struct packet pool[BUFFERS];
static struct packet *ring[PACKETS];
static uint64_t put, taken, left, number, sent;

__attribute__((noipa)) uint32_t relay_receive(int port, struct packet **packets, uint32_t asked)
{
	uint32_t count = asked < left ? asked : (uint32_t)left;
	for (uint32_t i = 0; i < count; i++, number++) {
		struct packet *packet = &pool[number % BUFFERS];
		packet->data = packet->room;
		packet->length = packet->segment = 60;
		memset(packet->room, 0, sizeof(packet->room));
		memcpy(packet->room, "\2\0\0\0\0\1\2\0\0\0\0\2\x08\0\x45\0\0\x2e", 18);
		packet->room[18] = (uint8_t)(number >> 8); // IP id
		packet->room[19] = (uint8_t)number;
		packet->room[23] = 17;
		packets[i] = packet;
	}
	left -= count;
	return port ? 0 : count;
}

__attribute__((noipa)) uint32_t relay_take(void *from, struct packet **packets, uint32_t asked)
{
	uint64_t there = __atomic_load_n(&put, __ATOMIC_ACQUIRE) - taken;
	uint32_t count = asked < there ? asked : (uint32_t)there;
	for (uint32_t i = 0; i < count; i++)
		packets[i] = ring[taken++ % PACKETS];
	return from ? count : 0;
}

__attribute__((noipa)) void relay_work(struct packet *packet)
{
	packet->room[8] ^= 1; // the sender's address
}

__attribute__((noipa)) uint32_t relay_transmit(int port, struct packet **packets, uint32_t count)
{
	return port || !packets ? 0 : count;
}

static void *send_packets(void *unused)
{
	struct packet *packets[TAKEN];
	for (;;) {
		uint32_t count = relay_take(ring, packets, TAKEN);
		for (uint32_t i = 0; i < count; i++)
			relay_work(packets[i]);
		if (count)
			__atomic_fetch_add(&sent, relay_transmit(0, packets, count), __ATOMIC_RELEASE);
		else
			usleep(100);
	}
	return unused;
}

int main(void)
{
	char line[64];
	pthread_t sender;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (pthread_create(&sender, NULL, send_packets, NULL))
		return 1;
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		struct packet *packets[RECEIVED];
		uint32_t count;
		uint64_t wanted = sent + strtoul(line, NULL, 10);
		left = wanted - sent;
		while ((count = relay_receive(0, packets, RECEIVED))) {
			while (put + count - __atomic_load_n(&sent, __ATOMIC_ACQUIRE) > PACKETS)
				usleep(100);
			for (uint32_t i = 0; i < count; i++)
				ring[(put + i) % PACKETS] = packets[i];
			__atomic_store_n(&put, put + count, __ATOMIC_RELEASE);
		}
		while (__atomic_load_n(&sent, __ATOMIC_ACQUIRE) != wanted)
			usleep(100);
		printf("%lu\n", (unsigned long)sent);
	}
	return 0;
}
