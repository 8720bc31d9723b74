// SPDX-License-Identifier: Apache-2.0
// A forwarder whose queue is mostly empty, for bench_poll.py: one poll in 128 returns eight packets. Eight small functions
// run after each poll, as in an engine's loop. Writes the ticks of 1,000 turns, 256 times, into the file of its argument.
#define _GNU_SOURCE
#include "results.h"
#include <stdint.h>
#include <x86intrin.h>

#define TURNS 1000
#define ROUNDS 256
#define BURST 32
#define RECEIVED 8
#define POLLS_PER_BATCH 128

struct packet {
	uint8_t *data;
	uint32_t length;
	uint16_t first_bytes;
	uint8_t body[64];
};

static struct packet packets[RECEIVED];
static unsigned polls;

__attribute__((noipa)) uint16_t poller_receive(uint16_t port, uint16_t queue, struct packet **burst,
                                               uint16_t most)
{
	(void)port, (void)queue;
	if (++polls % POLLS_PER_BATCH != 0 || most < RECEIVED)
		return 0;
	for (int i = 0; i < RECEIVED; i++)
		burst[i] = &packets[i];
	return RECEIVED;
}

__attribute__((noipa)) uint16_t poller_transmit(uint16_t port, uint16_t queue, struct packet **burst,
                                                uint16_t count)
{
	(void)port, (void)queue, (void)burst;
	return count;
}

#define INNER(name)                                                                                          \
	__attribute__((noipa)) unsigned name(unsigned value)                                                 \
	{                                                                                                    \
		return value * 3 + 1;                                                                        \
	}
INNER(inner0)
INNER(inner1)
INNER(inner2)
INNER(inner3)
INNER(inner4)
INNER(inner5)
INNER(inner6)
INNER(inner7)

static void turn(void)
{
	struct packet *burst[BURST];
	uint16_t count = poller_receive(0, 0, burst, BURST);
	unsigned value = inner7(inner6(inner5(inner4(inner3(inner2(inner1(inner0(count))))))));
	if (count)
		poller_transmit((uint16_t)(value & 1), 0, burst, count);
}

int main(int count, char **words)
{
	volatile uint64_t *ticks = open_results(words[count - 1], ROUNDS * sizeof(*ticks));
	if (!ticks)
		return 1;
	for (int i = 0; i < RECEIVED; i++)
		packets[i] = (struct packet){packets[i].body, 64, 64, {0}};
	for (unsigned round = 0;; round++) {
		uint64_t start = __rdtsc();
		for (int i = 0; i < TURNS; i++)
			turn();
		ticks[round % ROUNDS] = __rdtsc() - start;
	}
}
