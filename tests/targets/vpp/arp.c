// SPDX-License-Identifier: Apache-2.0
// The double's ARP: a packet whose next hop is not known is dropped, and a request for it sent, in a frame of its own to the
// interface's transmit node; a request that was received is answered in its own buffer. See vpp.c.
#include "buffers.h"
#include "nodes.h"
#include "vnet.h"
#include <string.h>

enum { ETHERNET_BYTES = 14, ARP_BYTES = 28, OPERATION = 7 };

int resolves;

static uint32_t make_request(const struct vlib_buffer *packet)
{
	static const uint8_t head[] = {0, 1, 8, 0, 6, 4, 0, 1};
	uint32_t number = take_buffer();
	struct vlib_buffer *buffer = buffer_at(number);
	buffer->packet = packet->packet;
	buffer->receive_interface = packet->receive_interface;
	buffer->transmit_interface = TAP0;
	buffer->current_length = ETHERNET_BYTES + ARP_BYTES;
	memset(buffer->data, 0xff, 6);
	memset(buffer->data + 6, 0x22, 6);
	memcpy(buffer->data + 12, "\x08\x06", 2);
	memcpy(buffer->data + ETHERNET_BYTES, head, sizeof(head));
	memset(buffer->data + ETHERNET_BYTES + sizeof(head), 0, ARP_BYTES - sizeof(head));
	memcpy(buffer->data + ETHERNET_BYTES + 24, packet->data + packet->current_data + 16, 4);
	return number;
}

__attribute__((noipa)) uint64_t ip4_arp(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		send_apart(vm, TAP0_TX, make_request(buffer_at(vectors(frame)[i])));
		buffer_at(vectors(frame)[i])->error = FIRST_ERROR + 1;
		enqueue(vm, IP4_DROP, vectors(frame)[i]);
	}
	return frame->n_vectors;
}

__attribute__((noipa)) uint64_t arp_reply(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		struct vlib_buffer *buffer = buffer_at(vectors(frame)[i]);
		uint8_t *arp = buffer->data + buffer->current_data, asked[10];
		memcpy(asked, arp + 8, sizeof(asked));
		memcpy(arp + 8, arp + 18, sizeof(asked));
		memcpy(arp + 18, asked, sizeof(asked));
		arp[OPERATION] = 2;
		buffer->current_data -= ETHERNET_BYTES;
		buffer->current_length += ETHERNET_BYTES;
		enqueue(vm, INTERFACE_OUTPUT, vectors(frame)[i]);
	}
	return frame->n_vectors;
}
