// SPDX-License-Identifier: Apache-2.0
// One forwarder three times, for bench_forwarder.py: what alone_, bare_ and probed_ functions do is the same, packet by
// packet, with the same buffers. They take turns, so that what the machine does meanwhile happens to all of them: each
// works on 8 batches of 32 that are not measured and 64 that are, a tenth of a millisecond. Writes the ticks of the 64
// into the file of its argument, round by round.
#define _GNU_SOURCE
#include "results.h"
#include <stdint.h>
#include <string.h>
#include <x86intrin.h>

enum {
	BURST = 32,
	FRAMES = 1024, // that arrive, one after the other
	BUFFERS = 4096, // that they are copied into, one after the other
	FRAME_BYTES = 64,
	HEADROOM = 128,
	WARM_BATCHES = 8,
	BATCHES = 64,
	ROUNDS = 4096,
	COPIES = 3,
};

struct packet {
	uint8_t *data;
	uint16_t data_offset, references, segments, port;
	uint64_t flags;
	uint32_t length;
	uint16_t segment_length;
	_Alignas(64) uint64_t second_line[8];
	uint8_t room[2176];
};

struct results {
	uint64_t rounds; // ever finished
	uint64_t ticks[ROUNDS][COPIES];
};

static struct packet frames[FRAMES], buffers[BUFFERS];
static uint64_t received, sent, received_bytes, sent_bytes;

#define COPY(name)                                                                                           \
	__attribute__((noipa)) uint16_t name##_receive(uint16_t port, uint16_t queue, struct packet **burst, \
	                                               uint16_t most)                                        \
	{                                                                                                    \
		(void)queue;                                                                                 \
		for (uint16_t i = 0; i < most; i++, received++) {                                            \
			const struct packet *frame = &frames[received % FRAMES];                             \
			struct packet *packet = burst[i] = &buffers[received % BUFFERS];                     \
			packet->data_offset = HEADROOM;                                                      \
			packet->references = packet->segments = 1;                                           \
			packet->flags = 0;                                                                   \
			packet->port = port;                                                                 \
			packet->length = packet->segment_length = frame->segment_length;                     \
			memcpy(packet->data + HEADROOM, frame->data + HEADROOM, frame->segment_length);      \
			received_bytes += frame->length;                                                     \
		}                                                                                            \
		return most;                                                                                 \
	}                                                                                                    \
	__attribute__((noipa)) uint16_t name##_transmit(uint16_t port, uint16_t queue,                       \
	                                                struct packet **burst, uint16_t count)               \
	{                                                                                                    \
		(void)port, (void)queue;                                                                     \
		for (uint16_t i = 0; i < count; i++) {                                                       \
			sent_bytes += burst[i]->length;                                                      \
			burst[i]->references--;                                                              \
		}                                                                                            \
		sent += count;                                                                               \
		return count;                                                                                \
	}                                                                                                    \
	__attribute__((noipa)) uint16_t name##_forward(uint16_t port)                                        \
	{                                                                                                    \
		struct packet *burst[BURST];                                                                 \
		uint16_t count = name##_receive(port, 0, burst, BURST);                                      \
		for (uint16_t i = 0; i < count; i++)                                                         \
			swap_addresses(burst[i]);                                                            \
		return name##_transmit(port, 0, burst, count);                                               \
	}

static inline void swap_addresses(struct packet *packet)
{
	uint8_t *header = packet->data + packet->data_offset, destination[6];
	memcpy(destination, header, 6);
	memcpy(header, header + 6, 6);
	memcpy(header + 6, destination, 6);
	packet->flags |= 1;
	packet->second_line[0] = 14;
}

COPY(alone)
COPY(bare)
COPY(probed)

static uint16_t (*const forwarders[COPIES])(uint16_t) = {alone_forward, bare_forward, probed_forward};

static uint64_t measure(uint16_t (*forward)(uint16_t))
{
	for (int i = 0; i < WARM_BATCHES; i++)
		forward(0);
	uint64_t begin = __rdtsc();
	for (int i = 0; i < BATCHES; i++)
		forward(0);
	return __rdtsc() - begin;
}

static void prepare(void)
{
	static const uint8_t ipv4_udp[] = {8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0};
	for (int i = 0; i < BUFFERS; i++)
		buffers[i].data = buffers[i].room;
	for (uint32_t i = 0; i < FRAMES; i++) {
		frames[i].data = frames[i].room;
		frames[i].length = frames[i].segment_length = FRAME_BYTES;
		uint8_t *frame = frames[i].room + HEADROOM;
		memset(frame, 2, 12);
		memcpy(frame + 12, ipv4_udp, sizeof(ipv4_udp));
		memcpy(frame + 26, &i, sizeof(i)); // each from another address
	}
}

int main(int count, char **arguments)
{
	struct results *results = open_results(arguments[count - 1], sizeof(*results));
	if (!results)
		return 1;
	prepare();
	for (uint32_t draw = 1;; draw = draw * 1664525 + 1013904223) {
		uint64_t *ticks = results->ticks[results->rounds % ROUNDS];
		int first = (int)((draw >> 16) % COPIES), step = draw >> 31 ? 1 : 2;
		for (int i = 0; i < COPIES; i++) {
			int copy = (first + i * step) % COPIES;
			ticks[copy] = measure(forwarders[copy]);
		}
		__atomic_store_n(&results->rounds, results->rounds + 1, __ATOMIC_RELEASE);
	}
}
