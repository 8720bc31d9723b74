// SPDX-License-Identifier: Apache-2.0
// A table of ports as DPDK 21.11 lays it out (rte_eth_fp_ops: transmit at 8), with one started port, 3. Prints
// the addresses of the table and of that port's functions. `-rdynamic` exports the table.
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

enum { PORTS = 32, STARTED = 3, QUEUES = 4 };

typedef uint16_t burst_function(void *queue, void **packets, uint16_t count);

struct port {
	burst_function *receive, *transmit;
	void *prepare, *queue_count, *receive_status, *transmit_status;
	void **receive_queues, **receive_callbacks, **transmit_queues, **transmit_callbacks;
	uintptr_t reserved[6];
};
_Static_assert(sizeof(struct port) == 128, "as in DPDK 21.11");

struct port rte_eth_fp_ops[PORTS];
static void *nothing[QUEUES], *queues[QUEUES];

__attribute__((noinline)) static uint16_t idle_receive(void *queue, void **packets, uint16_t count)
{
	return (uint16_t)(count - count + (queue == packets));
}

__attribute__((noinline)) static uint16_t idle_transmit(void *queue, void **packets, uint16_t count)
{
	return (uint16_t)(count + (queue == packets));
}

__attribute__((noinline)) static uint16_t driver_receive(void *queue, void **packets, uint16_t count)
{
	packets[0] = queue;
	return count;
}

__attribute__((noinline)) static uint16_t driver_transmit(void *queue, void **packets, uint16_t count)
{
	packets[1] = queue;
	return count;
}

int main(void)
{
	for (int port = 0; port < PORTS; port++) {
		struct port *entry = &rte_eth_fp_ops[port];
		*entry = (struct port){.receive = idle_receive, .transmit = idle_transmit};
		entry->receive_queues = entry->receive_callbacks = nothing;
		entry->transmit_queues = entry->transmit_callbacks = nothing;
	}
	struct port *started = &rte_eth_fp_ops[STARTED];
	started->receive = driver_receive;
	started->transmit = driver_transmit;
	started->receive_queues = started->transmit_queues = queues;
	printf("%lx %lx %lx\n", (unsigned long)rte_eth_fp_ops, (unsigned long)driver_receive,
	       (unsigned long)driver_transmit);
	fflush(stdout);
	for (;;)
		pause();
}
