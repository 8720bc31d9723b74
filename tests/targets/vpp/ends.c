// SPDX-License-Identifier: Apache-2.0
// The double's nodes where a packet's way ends in another way than by a transmit node or drop: it is punted. See vpp.c.
#include "buffers.h"
#include "nodes.h"
#include <stdlib.h>

enum { ETHERNET_BYTES = 14 };

int punts, has_messages;

static uint64_t hand_on(vlib_main_t *vm, vlib_frame_t *frame, uint32_t next)
{
	for (uint32_t i = 0; i < frame->n_vectors; i++)
		enqueue(vm, next, vectors(frame)[i]);
	return frame->n_vectors;
}

__attribute__((noipa)) uint64_t ip4_punt(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	return hand_on(vm, frame, ERROR_PUNT);
}

__attribute__((noipa)) uint64_t error_punt(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock = frame->n_vectors;
	return hand_on(vm, frame, LAST_PUNT);
}

static uint64_t punt(vlib_main_t *vm, vlib_frame_t *frame)
{
	uint64_t count = frame->n_vectors;
	for (uint32_t i = 0; i < count; i++)
		end_packet(vectors(frame)[i], punted_log);
	vm->punted += (uint32_t)count;
	frame->n_vectors = 0; // it gives the frame back, too
	return count;
}

__attribute__((noipa)) uint64_t last_punt(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	return punt(vm, frame);
}

// What is written to the socket begins with the Ethernet header again.
__attribute__((noipa)) uint64_t punt_socket(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		struct vlib_buffer *buffer = buffer_at(vectors(frame)[i]);
		buffer->current_data -= ETHERNET_BYTES;
		buffer->current_length += ETHERNET_BYTES;
	}
	return punt(vm, frame);
}

// Of applications, not packets.
__attribute__((noipa)) uint64_t messages_input(vlib_main_t *vm, vlib_node_runtime_t *node,
                                               vlib_frame_t *frame)
{
	if (frame || node->node_index != MESSAGES_INPUT)
		abort();
	return 1 + vm->received % 3;
}
