// SPDX-License-Identifier: Apache-2.0
// The double's reassembly and fragmentation of IPv4. Reassembly keeps fragments over turns, until it has all; the first one's
// buffer becomes the whole packet, the others are chained behind it as far as their bytes do not fit into those before them,
// and the rest is freed. Fragmentation makes each fragment in a new buffer, and frees the packet then: its buffer is the next
// one that is used. See vpp.c.
#include "buffers.h"
#include "nodes.h"
#include <stdlib.h>
#include <string.h>

enum {
	ETHERNET_BYTES = 14,
	IP_BYTES = 20,
	GROUP = 32, // of so many packets three are fragments of one
	PIECES = 3,
	INCOMPLETE = 5, // in one of 16 groups the last one does not come
	MTU = 576,
	MORE_FRAGMENTS = 0x20,
	ROOM = 1 << 16,
};

int reassembles, fragments;
static uint32_t kept[16][PIECES]; // numbers plus 1, by the offsets of the fragments

static uint64_t group_of(uint32_t number)
{
	return buffer_at(number)->packet / GROUP;
}

uint32_t reassembly_node(uint32_t number)
{
	const struct vlib_buffer *buffer = buffer_at(number);
	if (group_of(number) % 16 == INCOMPLETE && buffer->packet % GROUP == 23)
		return 0;
	return reassembles ? REASSEMBLY : 0;
}

uint32_t fragmentation_node(uint32_t number)
{
	const struct vlib_buffer *buffer = buffer_at(number);
	uint8_t version = buffer->data[buffer->current_data]; // 0: no packets come from a file yet
	int is_long = version == 0x45 && buffer->current_length > MTU;
	return fragments && (is_long || !version) ? IP4_FRAG : 0;
}

static void put_16(uint8_t *at, uint32_t number)
{
	at[0] = (uint8_t)(number >> 8);
	at[1] = (uint8_t)number;
}

// Bytes of a packet, from where it begins.
static uint32_t read_chain(uint32_t number, uint8_t *out)
{
	uint32_t count = 0;
	for (const struct vlib_buffer *buffer = buffer_at(number);; buffer = buffer_at(buffer->next_buffer)) {
		memcpy(out + count, buffer->data + buffer->current_data, buffer->current_length);
		count += buffer->current_length;
		if (!(buffer->flags & NEXT_PRESENT))
			return count;
	}
}

// Fills the buffers of a chain from its first one's beginning on, and frees those that are left.
static void write_chain(uint32_t number, const uint8_t *bytes, uint32_t left)
{
	for (struct vlib_buffer *buffer = buffer_at(number);; buffer = buffer_at(buffer->next_buffer)) {
		uint32_t room = (uint32_t)(sizeof(buffer->data) - (size_t)buffer->current_data);
		uint32_t count = left < room ? left : room;
		memcpy(buffer->data + buffer->current_data, bytes, count);
		buffer->current_length = (uint16_t)count;
		bytes += count;
		left -= count;
		if (left)
			continue;
		uint32_t flags = buffer->flags, next = buffer->next_buffer;
		buffer->flags &= ~(uint32_t)NEXT_PRESENT;
		if (flags & NEXT_PRESENT)
			end_packet(next, NULL);
		return;
	}
}

static struct vlib_buffer *last_of(uint32_t number)
{
	struct vlib_buffer *buffer = buffer_at(number);
	while (buffer->flags & NEXT_PRESENT)
		buffer = buffer_at(buffer->next_buffer);
	return buffer;
}

static uint32_t join(const uint32_t *pieces)
{
	static uint8_t bytes[ROOM];
	uint32_t first = pieces[0] - 1, count = read_chain(first, bytes);
	for (uint32_t i = 1; i < PIECES; i++) {
		struct vlib_buffer *buffer = buffer_at(pieces[i] - 1), *last = last_of(first);
		buffer->current_data += IP_BYTES;
		buffer->current_length -= IP_BYTES;
		count += read_chain(pieces[i] - 1, bytes + count);
		buffer->current_data = 0; // what is written there begins where the buffer does
		last->flags |= NEXT_PRESENT;
		last->next_buffer = pieces[i] - 1;
	}
	put_16(bytes + 2, count);
	put_16(bytes + 6, 0);
	write_chain(first, bytes, count);
	return first;
}

__attribute__((noipa)) uint64_t ip4_full_reassembly(vlib_main_t *vm, vlib_node_runtime_t *node,
                                                    vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		uint32_t number = vectors(frame)[i], *pieces = kept[group_of(number) % 16];
		// The first one comes as the second.
		pieces[(buffer_at(number)->packet % GROUP - 21 + PIECES - 1) % PIECES] = number + 1;
		if (group_of(number) % 16 == INCOMPLETE || !pieces[0] || !pieces[1] || !pieces[2])
			continue;
		enqueue(vm, IP4_LOOKUP, join(pieces));
		memset(pieces, 0, sizeof(kept[0]));
	}
	return frame->n_vectors;
}

static uint32_t make_fragment(const struct vlib_buffer *packet, const uint8_t *bytes, uint32_t from,
                              uint32_t count, int is_last)
{
	static uint32_t identification;
	uint32_t number = take_buffer();
	struct vlib_buffer *buffer = buffer_at(number);
	memcpy(buffer->data, packet->data + packet->current_data - ETHERNET_BYTES, ETHERNET_BYTES);
	buffer->current_data = ETHERNET_BYTES;
	buffer->current_length = (uint16_t)(IP_BYTES + count);
	buffer->packet = packet->packet;
	buffer->receive_interface = packet->receive_interface;
	uint8_t *ip = buffer->data + buffer->current_data;
	memcpy(ip, bytes, IP_BYTES);
	memcpy(ip + IP_BYTES, bytes + IP_BYTES + from, count);
	put_16(ip + 2, IP_BYTES + count);
	identification += !from;
	put_16(ip + 4, identification);
	put_16(ip + 6, from / 8);
	ip[6] |= is_last ? 0 : MORE_FRAGMENTS;
	return number;
}

__attribute__((noipa)) uint64_t ip4_frag(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	static uint8_t bytes[ROOM];
	const uint32_t most = (MTU - IP_BYTES) / 8 * 8;
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		uint32_t number = vectors(frame)[i];
		if (buffer_at(number)->packet % 32 == 26 &&
		    buffer_at(number)->packet % 64 == 26) { // must not be fragmented
			buffer_at(number)->error = FIRST_ERROR + 1;
			enqueue(vm, ERROR_DROP, number);
			continue;
		}
		uint32_t payload = read_chain(number, bytes) - IP_BYTES;
		for (uint32_t from = 0; from < payload; from += most) {
			uint32_t count = payload - from < most ? payload - from : most;
			enqueue(
			    vm, IP4_LOOKUP,
			    make_fragment(buffer_at(number), bytes, from, count, from + count == payload));
		}
		end_packet(number, NULL);
	}
	return frame->n_vectors;
}
