// SPDX-License-Identifier: Apache-2.0
// The port: packets come from the generator's ring and go back to its pool. fw_output is the function that
// takes long now and then, so that the packets behind it wait: the story that the demo tells.
#include "firewall.h"

uint32_t fw_ring_put(struct fw_ring *ring, struct fw_packet **packets, uint32_t count)
{
	uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	// Pairs with the release in fw_ring_get: a slot is written only after it has been read.
	uint64_t room = FW_POOL - (head - atomic_load_explicit(&ring->tail, memory_order_acquire));
	if (count > room)
		count = (uint32_t)room;
	for (uint32_t i = 0; i < count; i++)
		ring->slot[(head + i) % FW_POOL] = packets[i];
	// Pairs with the acquire in fw_ring_get.
	atomic_store_explicit(&ring->head, head + count, memory_order_release);
	return count;
}

uint32_t fw_ring_get(struct fw_ring *ring, struct fw_packet **packets, uint32_t count)
{
	uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
	uint64_t waiting = atomic_load_explicit(&ring->head, memory_order_acquire) - tail;
	if (count > waiting)
		count = (uint32_t)waiting;
	for (uint32_t i = 0; i < count; i++)
		packets[i] = ring->slot[(tail + i) % FW_POOL];
	atomic_store_explicit(&ring->tail, tail + count, memory_order_release);
	return count;
}

// Takes up to `count` packets that have arrived. Returns how many.
FW_FUNCTION uint32_t fw_receive(struct fw_port *port, struct fw_packet **packets, uint32_t count)
{
	uint32_t received = fw_ring_get(&port->arrived, packets, count);
	if (received == 0) {
		port->empty_polls++;
		return 0;
	}
	port->received += received;
	port->batches++;
	port->batch_sizes[received]++;
	return received;
}

// Rewrites the addresses as a router does and "sends": touches the frame, then hands the packets back.
FW_FUNCTION void fw_output(struct fw_port *port, struct fw_packet **packets, uint32_t count)
{
	int slow = port->slow_every && ++port->transmit_calls % port->slow_every == 0;
	uint64_t start = slow ? fw_ticks() : 0;
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *frame = packets[i]->data + packets[i]->data_offset;
		for (int byte = 0; byte < 6; byte++) {
			uint8_t swapped = frame[byte];
			frame[byte] = frame[6 + byte];
			frame[6 + byte] = swapped;
		}
		port->transmitted_bytes += packets[i]->length;
	}
	if (!slow)
		return;
	while (fw_ticks() - start < port->slow_ticks)
		__builtin_ia32_pause();
	port->slow_outputs++;
	if (port->faults)
		fprintf(port->faults, "output %lu %lu\n", (unsigned long)start, (unsigned long)fw_ticks());
	if (port->log)
		fprintf(port->log, "%lu %lu %lu\n", (unsigned long)(port->batches - 1), (unsigned long)start,
		        (unsigned long)fw_ticks());
}

// Returns how many packets were taken: all.
FW_FUNCTION uint32_t fw_transmit(struct fw_port *port, struct fw_packet **packets, uint32_t count)
{
	fw_output(port, packets, count);
	port->transmitted += count;
	return fw_ring_put(&port->unused, packets, count);
}

FW_FUNCTION void fw_drop(struct fw_port *port, struct fw_packet **packets, uint32_t count)
{
	port->dropped += count;
	fw_ring_put(&port->unused, packets, count);
}
