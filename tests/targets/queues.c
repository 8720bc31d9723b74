// SPDX-License-Identifier: Apache-2.0
// One thread that polls three queues through one function, in an order drawn by chance, and writes down what really
// happened: for each poll its queue, the time before and after it, what it was asked for and returned, and when its
// first packet came. Queue 2 is never seen empty. Then queue 0 comes back full for a long time. At the end some
// batches of one packet take long, and those that came meanwhile wait for them. CAPTURE is what a generator would
// capture: each packet as it is put into its queue. Packets of queue 1 are all equal.
//   queues LOG CAPTURE POLLS FULL_POLLS SLOW_BATCHES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>

enum {
	QUEUES = 3,
	BURST = 8,
	ROOM = 1 << 16,
	WORK_TICKS = 1000,
	SLOW_TICKS = 20000000,
	VICTIMS = 3,
	FRAME_BYTES = 60
};

struct packet {
	uint8_t *data;
	uint32_t length;
	uint64_t arrival;
};

struct queue {
	struct packet *waiting[ROOM];
	uint64_t first, end;
};

static struct queue queues[QUEUES];
static FILE *captured;

static uint64_t now(void)
{
	_mm_lfence();
	uint64_t ticks = __rdtsc();
	_mm_lfence();
	return ticks;
}

__attribute__((noinline, visibility("default"))) uint32_t nf_receive(struct queue *queue,
                                                                     struct packet **packets, uint32_t asked)
{
	uint32_t count = 0;
	while (count < asked && queue->first < queue->end)
		packets[count++] = queue->waiting[queue->first++ % ROOM];
	return count;
}

__attribute__((noinline, visibility("default"))) uint32_t nf_transmit(struct queue *queue,
                                                                      struct packet **packets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		packets[i]->length += queue == NULL;
	return count;
}

__attribute__((noinline, visibility("default"))) uint64_t nf_work(uint64_t ticks)
{
	uint64_t start = now(), end;
	do
		end = now();
	while (end - start < ticks);
	return end;
}

static uint32_t draw(uint32_t below)
{
	static uint64_t state = 88172645463325252u;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

// An Ethernet frame with a UDP packet; `number` is its payload.
static void make_frame(uint8_t *frame, uint32_t number)
{
	static const uint8_t headers[] = {
	    2,  0,  0, 0, 0,  1, 2, 0, 0,  0, 0, 2, 8, 0, 0x45, 0, 0, FRAME_BYTES - 14, 0, 0, 0, 0,
	    64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 4,    1, 0, FRAME_BYTES - 34};
	memset(frame, 0, FRAME_BYTES);
	memcpy(frame, headers, sizeof(headers));
	memcpy(frame + 42, &number, sizeof(number));
}

static void capture(FILE *file, const struct packet *packet)
{
	struct timespec time;
	clock_gettime(CLOCK_REALTIME, &time);
	uint32_t header[] = {(uint32_t)time.tv_sec, (uint32_t)time.tv_nsec, FRAME_BYTES, FRAME_BYTES};
	fwrite(header, sizeof(header), 1, file);
	fwrite(packet->data, FRAME_BYTES, 1, file);
}

static void arrive(struct queue *queue, uint32_t count)
{
	static uint32_t number;
	for (uint32_t i = 0; i < count; i++) {
		struct packet *packet = malloc(sizeof(*packet) + FRAME_BYTES);
		if (!packet)
			exit(1);
		*packet = (struct packet){(uint8_t *)(packet + 1), FRAME_BYTES, 0};
		make_frame(packet->data, queue == &queues[1] ? 0 : ++number);
		packet->arrival = now();
		capture(captured, packet);
		queue->waiting[queue->end++ % ROOM] = packet;
	}
}

__attribute__((noinline, visibility("default"))) void nf_poll(FILE *log, uint32_t number, uint64_t work_ticks)
{
	struct packet *packets[BURST];
	struct queue *queue = &queues[number];
	uint64_t before = now();
	uint32_t count = nf_receive(queue, packets, BURST);
	uint64_t after = now();
	fprintf(log, "%u %lu %lu %u %u %lu\n", number, (unsigned long)before, (unsigned long)after, count,
	        BURST, count ? (unsigned long)packets[0]->arrival : 0);
	if (!count)
		return;
	nf_work(work_ticks);
	nf_transmit(queue, packets, count);
	for (uint32_t i = 0; i < count; i++)
		free(packets[i]);
}

int main(int argc, char **argv)
{
	static const uint32_t header[] = {0xa1b23c4d, 2 | 4 << 16, 0, 0, 65535, 1}; // pcap with ns, Ethernet
	FILE *log = argc == 6 ? fopen(argv[1], "w") : NULL;
	captured = log ? fopen(argv[2], "w") : NULL;
	if (!captured)
		return 2;
	fwrite(header, sizeof(header), 1, captured);
	if (atoi(argv[3]))
		arrive(&queues[2], 4 * BURST);
	for (int i = atoi(argv[3]); i > 0; i--) {
		uint32_t number = draw(QUEUES);
		if (draw(3) == 0)
			arrive(&queues[draw(2)], draw(2 * BURST));
		if (number == 2)
			arrive(&queues[2], BURST);
		nf_poll(log, number, WORK_TICKS);
	}
	while (queues[0].first < queues[0].end)
		nf_poll(log, 0, WORK_TICKS);
	nf_poll(log, 0, WORK_TICKS);
	for (int i = atoi(argv[4]); i > 0; i--) {
		arrive(&queues[0], BURST);
		nf_poll(log, 0, WORK_TICKS);
	}
	for (int i = atoi(argv[5]); i > 0; i--) {
		nf_poll(log, 0, WORK_TICKS);
		arrive(&queues[0], 1);
		nf_poll(log, 0, SLOW_TICKS);
		arrive(&queues[0], VICTIMS);
		nf_poll(log, 0, WORK_TICKS);
	}
	fclose(log);
	fclose(captured);
	return 0;
}
