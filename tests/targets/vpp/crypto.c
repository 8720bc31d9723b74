// SPDX-License-Identifier: Apache-2.0
// The double's asynchronous encryption: packets leave the turn, and an input node gives them back in a later one, in the same
// buffers. See vpp.c.
#include "buffers.h"
#include "nodes.h"
#include <stdlib.h>

enum { IP_BYTES = 20, ESP_PROTOCOL = 50, FAILS = 256 }; // one of so many

int encrypts;

__attribute__((noipa)) uint64_t crypto_enqueue(vlib_main_t *vm, vlib_node_runtime_t *node,
                                               vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		if (vm->crypto_count == sizeof(vm->crypto) / sizeof(vm->crypto[0]))
			abort();
		vm->crypto[vm->crypto_count++] = vectors(frame)[i];
	}
	return frame->n_vectors;
}

// The end of a tunnel's interface: no packet leaves there.
__attribute__((noipa)) uint64_t midchain_tx(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++)
		enqueue(vm, IP4_LOOKUP, vectors(frame)[i]);
	return frame->n_vectors;
}

static void encrypt(uint32_t number)
{
	struct vlib_buffer *buffer = buffer_at(number);
	uint8_t *ip = buffer->data + buffer->current_data;
	ip[9] = ESP_PROTOCOL;
	for (uint32_t i = IP_BYTES; i < buffer->current_length; i++)
		ip[i] ^= 0x5a;
	buffer->again = 1;
}

// As VPP's scheduler in software: one packet is returned as done, and was counted before when it was worked on. What is
// enqueued in one turn is done in the next one, and given back in the one after it.
__attribute__((noipa)) uint64_t crypto_dequeue(vlib_main_t *vm, vlib_node_runtime_t *node,
                                               vlib_frame_t *frame)
{
	uint32_t given = vm->crypto_done, worked = vm->crypto_count - given;
	if (frame || node->node_index != CRYPTO_DEQUEUE)
		abort();
	for (uint32_t i = 0; i < given; i++) {
		uint32_t number = vm->crypto[i];
		struct vlib_buffer *buffer = buffer_at(number);
		int fails = buffer->packet % FAILS == 19;
		buffer->error = fails ? FIRST_ERROR + 3 : 0;
		enqueue(vm, fails ? ERROR_DROP : MIDCHAIN_TX, number);
	}
	for (uint32_t i = 0; i < worked; i++) {
		vm->crypto[i] = vm->crypto[given + i];
		encrypt(vm->crypto[i]);
	}
	vm->crypto_count = vm->crypto_done = worked;
	return given + worked;
}
