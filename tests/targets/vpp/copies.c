// SPDX-License-Identifier: Apache-2.0
// The double's nodes that change how many packets there are, or where they are received: replication, packets that VPP
// makes, interfaces whose packets come back. See vpp.c.
#include "buffers.h"
#include "nodes.h"
#include <stdlib.h>
#include <string.h>

int replicates, makes_errors, has_loopback, has_pipe;

enum { IP_BYTES = 20, ETHERNET_BYTES = 14, ICMP_PROTOCOL = 1 };

uint32_t special_node(uint32_t number)
{
	const struct vlib_buffer *buffer = buffer_at(number);
	switch (buffer->packet % 32) {
	case 7:
		return replicates ? IP4_REPLICATE : 0;
	case 9:
		return makes_errors ? IP4_ICMP_ERROR : 0;
	case 11:
		return has_loopback && !buffer->again ? LOOP0_TX : 0;
	case 13:
		return has_pipe && !buffer->again ? PIPE0_TX : 0;
	case 15:
		return punts ? IP4_PUNT : 0;
	case 17:
		return punts ? PUNT_SOCKET : 0;
	case 19:
	case 20:
		return encrypts && !buffer->again ? CRYPTO_ENQUEUE : 0;
	case 21:
	case 22:
	case 23:
		return reassembly_node(number);
	case 25:
	case 26:
		return fragmentation_node(number);
	case 27:
		return resolves ? IP4_ARP : 0;
	case 28:
		return resolves ? ARP_REPLY : 0;
	default:
		return 0;
	}
}

__attribute__((noipa)) uint64_t ip4_replicate(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		uint32_t clones[COPIES];
		clone_packet(vectors(frame)[i], clones);
		for (uint32_t clone = 0; clone < COPIES; clone++)
			enqueue(vm, IP4_LOOKUP, clones[clone]);
	}
	return frame->n_vectors;
}

// An IPv4 packet of protocol ICMP that holds the beginning of the other one.
static uint32_t make_error(uint32_t number)
{
	uint32_t made = copy_packet(number);
	struct vlib_buffer *buffer = buffer_at(made);
	uint8_t *ip = buffer->data + buffer->current_data;
	uint8_t inner[IP_BYTES + 8];
	memcpy(inner, ip, sizeof(inner));
	memset(ip, 0, IP_BYTES + 8);
	ip[0] = 0x45;
	ip[3] = IP_BYTES + 8 + sizeof(inner);
	memcpy(ip + 4, inner + 4, 2);
	ip[8] = 64;
	ip[9] = ICMP_PROTOCOL;
	memcpy(ip + 12, inner + 16, 4);
	memcpy(ip + 16, inner + 12, 4);
	ip[IP_BYTES] = 11;
	memcpy(ip + IP_BYTES + 8, inner, sizeof(inner));
	buffer->current_length = ip[3];
	return made;
}

// All of the original packets are handed on when all errors are made.
__attribute__((noipa)) uint64_t ip4_icmp_error(vlib_main_t *vm, vlib_node_runtime_t *node,
                                               vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++)
		enqueue(vm, IP4_LOOKUP, make_error(vectors(frame)[i]));
	for (uint32_t i = 0; i < frame->n_vectors; i++)
		enqueue(vm, ERROR_DROP, vectors(frame)[i]);
	return frame->n_vectors;
}

static void come_again(uint32_t number)
{
	advance_packet(number, -ETHERNET_BYTES);
	buffer_at(number)->again = 1;
}

// What is sent to a loopback interface is received from it at once, in the same turn.
__attribute__((noipa)) uint64_t loopback_tx(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		come_again(vectors(frame)[i]);
		enqueue(vm, ETHERNET_INPUT, vectors(frame)[i]);
	}
	return frame->n_vectors;
}

__attribute__((noipa)) uint64_t pipe_tx(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		if (vm->piped_count == sizeof(vm->piped) / sizeof(vm->piped[0]))
			abort();
		come_again(vectors(frame)[i]);
		vm->piped[vm->piped_count++] = vectors(frame)[i];
	}
	return frame->n_vectors;
}

__attribute__((noipa)) uint64_t pipe_input(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	uint32_t count = vm->piped_count;
	if (frame || node->node_index != PIPE_INPUT)
		abort();
	for (uint32_t i = 0; i < count; i++)
		enqueue(vm, ETHERNET_INPUT, vm->piped[i]);
	vm->piped_count = 0;
	return count;
}
