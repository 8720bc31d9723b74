// SPDX-License-Identifier: Apache-2.0
// Packets that are hard to identify once they are gone: transmit overwrites what it was handed, holds packets back,
// is slow now and then, or runs in another thread. Packet number n has the IP id n. Commands on standard input,
// N batches each; a batch has 20 packets, and one poll in two returns nothing.
#define _GNU_SOURCE
#include "commands.h"
#include "packets.h"
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>

enum { BATCH = 20, BURST = 32, LENGTH = 74, POOL = 4096, SLOW_EVERY = 100, SLOW_TICKS = 30000000 };

static struct packet pool[POOL];
static uint32_t received, sent;
static int rewrites, readdresses, frees, clears, slow, polls;
static uint64_t began, ended; // clocks of the last receive call and of the last transmit call, read inside of them
static char answer[1 << 16];

__attribute__((noipa)) uint32_t late_receive(struct packet **packets, uint32_t count)
{
	static const uint8_t header[] = {2,  0, 0, 0, 0, 2,  2,  0, 0, 0,  0, 1, 8, 0,  0x45, 0, 0,
	                                 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0,    0, 2};
	if (polls++ % 2)
		return 0;
	began = __rdtsc();
	for (uint32_t i = 0; i < BATCH && i < count; i++) {
		struct packet *packet = packets[i] = &pool[received % POOL];
		packet->data = packet->room;
		packet->length = packet->segment = LENGTH;
		memset(packet->room, 0, ROOM);
		memcpy(packet->room, header, sizeof(header));
		packet->room[18] = (uint8_t)(received >> 8); // IP id
		packet->room[19] = (uint8_t)received++;
	}
	return BATCH;
}

__attribute__((noipa)) uint32_t late_transmit(struct packet **packets, uint32_t count)
{
	static unsigned calls;
	if (slow && ++calls % SLOW_EVERY == 0)
		for (uint64_t start = __rdtsc(); __rdtsc() - start < SLOW_TICKS;)
			;
	for (uint32_t i = 0; rewrites && i < count; i++) {
		memset(packets[i]->room, 0xee, ROOM);
		packets[i]->length = packets[i]->segment = 60;
		packets[i] = NULL;
	}
	for (uint32_t i = 0; readdresses && i < count; i++) // as a router does
		memset(packets[i]->room, 0xee, 12);
	for (uint32_t i = 0; frees && i < count; i++) // as free() does: a list goes through what is free
		memset(packets[i], 0xee, offsetof(struct packet, room));
	for (uint32_t i = 0; clears && i < count; i++)
		packets[i] = NULL;
	sent += count;
	ended = __rdtsc();
	return count;
}

// Receives the next batch; the poll after it returns nothing.
static uint32_t poll_once(struct packet **packets)
{
	struct packet *nothing[1];
	uint32_t count = late_receive(packets, BURST);
	late_receive(nothing, 0);
	return count;
}

static const char *run_plain(long batches)
{
	struct packet *packets[BURST];
	for (long i = 0; i < batches; i++)
		late_transmit(packets, poll_once(packets));
	snprintf(answer, sizeof(answer), "%u", sent);
	return answer;
}

// Runs a command while transmit does something besides.
static const char *run_with(int *does, const char *(*run)(long), long batches)
{
	*does = 1;
	run(batches);
	*does = 0;
	return answer;
}

static const char *run_rewriting(long batches)
{
	return run_with(&rewrites, run_plain, batches);
}

// The packets stay as they are, and the array does not.
static const char *run_clearing(long batches)
{
	return run_with(&clears, run_plain, batches);
}

// As a switch that sorts a batch by flows; the first and the last one stay.
static const char *run_sorting(long batches)
{
	struct packet *packets[BURST], *sorted[BURST];
	for (long i = 0; i < batches; i++) {
		uint32_t some = poll_once(packets);
		for (uint32_t p = 0; p < some; p++)
			sorted[p] = packets[p == 0 || p == some - 1 ? p : some - 1 - p];
		late_transmit(sorted, some);
	}
	snprintf(answer, sizeof(answer), "%u", sent);
	return answer;
}

// As with two queues: each batch is handed on when the next one has been received.
static const char *run_delaying(long batches)
{
	struct packet *packets[2][BURST];
	uint32_t some = poll_once(packets[0]);
	for (long i = 1; i < batches; i++) {
		poll_once(packets[i % 2]);
		late_transmit(packets[(i - 1) % 2], some);
	}
	late_transmit(packets[(batches - 1) % 2], some);
	snprintf(answer, sizeof(answer), "%u", sent);
	return answer;
}

// As l2fwd: packets are held back until a burst of 32 is full.
static const char *run_holding(long batches)
{
	struct packet *packets[BURST], *held[BURST];
	uint32_t count = 0;
	for (long i = 0; i < batches; i++) {
		uint32_t some = poll_once(packets);
		for (uint32_t p = 0; p < some; p++) {
			held[count++] = packets[p];
			if (count == BURST)
				late_transmit(held, BURST), count = 0;
		}
	}
	late_transmit(held, count);
	snprintf(answer, sizeof(answer), "%u", sent);
	return answer;
}

// As a router with two ports: of each batch every other packet goes to the second one, which is sent first.
static const char *run_splitting(long batches)
{
	struct packet *packets[BURST], *out[2][BURST];
	for (long i = 0; i < batches; i++) {
		uint32_t some = poll_once(packets);
		for (uint32_t p = 0; p < some; p++)
			out[p % 2][p / 2] = packets[p];
		late_transmit(out[1], some / 2);
		late_transmit(out[0], some - some / 2);
	}
	snprintf(answer, sizeof(answer), "%u", sent);
	return answer;
}

// Answers which batches took longer than half of a slow call, by a clock around them and by one inside of them: where
// the thread loses its processor between a call and the clock around it, the probes have not seen a late batch.
static const char *run_slow(long batches)
{
	struct packet *packets[BURST];
	size_t used = 0;
	slow = 1;
	uint64_t start = __rdtsc(), inside;
	for (long i = 0; i < batches && used < sizeof(answer) - 64; i++) {
		uint32_t count = late_receive(packets, BURST);
		inside = began;
		late_transmit(packets, count);
		uint64_t end = __rdtsc();
		if (end - start > SLOW_TICKS / 2)
			used += (size_t)snprintf(answer + used, sizeof(answer) - used, "%ld:%d ", i,
			                         ended - inside > SLOW_TICKS / 2 + SLOW_TICKS / 16);
		start = __rdtsc(); // what the next poll returns may have come since this one began
		late_receive(packets, BURST);
	}
	slow = 0;
	snprintf(answer + used, sizeof(answer) - used, "%d", SLOW_TICKS / 2);
	return answer;
}

static const char *run_freeing(long batches)
{
	return run_with(&frees, run_slow, batches);
}

static const char *run_overwriting(long batches)
{
	return run_with(&rewrites, run_slow, batches);
}

static const char *run_readdressing(long batches)
{
	return run_with(&readdresses, run_slow, batches);
}

static void *send_all(void *burst)
{
	struct packet **packets = burst;
	late_transmit(packets, BATCH);
	return NULL;
}

// Another thread transmits what this one has received.
static const char *run_handing(long batches)
{
	struct packet *packets[BURST];
	for (long i = 0; i < batches; i++) {
		pthread_t thread;
		poll_once(packets);
		if (pthread_create(&thread, NULL, send_all, packets))
			return "no thread";
		pthread_join(thread, NULL);
	}
	snprintf(answer, sizeof(answer), "%u", sent);
	return answer;
}

int main(void)
{
	const struct command commands[] = {{"plain", run_plain},
	                                   {"rewriting", run_rewriting},
	                                   {"clearing", run_clearing},
	                                   {"sorting", run_sorting},
	                                   {"delaying", run_delaying},
	                                   {"holding", run_holding},
	                                   {"splitting", run_splitting},
	                                   {"slow", run_slow},
	                                   {"freeing", run_freeing},
	                                   {"overwriting", run_overwriting},
	                                   {"handing", run_handing},
	                                   {"readdressing", run_readdressing},
	                                   {NULL, NULL}};
	return obey(commands);
}
