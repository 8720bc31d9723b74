// SPDX-License-Identifier: Apache-2.0
// See buffers.h. Packets come from a capture file of microseconds and this machine's byte order, or are all alike.
#define _GNU_SOURCE
#include "buffers.h"
#include "vnet.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	BUFFERS = 8192,
	LINES = sizeof(struct vlib_buffer) / 64,
	PLAIN_BYTES = 60,
	HEAD_BYTES = 256, // that each clone of a long packet has for itself
	CLONED_MIN = HEAD_BYTES + 128,
	ROOM = 1 << 16
};

static struct vlib_buffer_main buffer_main;
static uint32_t free_numbers[BUFFERS], free_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of the free ones and of the files
static FILE *source;
FILE *transmitted_log, *dropped_log, *punted_log;
int receives_late;

struct pcap_packet {
	uint32_t seconds, fraction, captured, length;
};

struct vlib_buffer_main *make_buffers(void)
{
	size_t bytes = sizeof(struct vlib_buffer) * BUFFERS;
	if (buffer_main.buffer_mem_size)
		return &buffer_main;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	buffer_main = (struct vlib_buffer_main){(uintptr_t)memory, bytes};
	for (uint32_t i = 0; i < BUFFERS; i++)
		free_numbers[free_count++] = i * LINES;
	return &buffer_main;
}

struct vlib_buffer *buffer_at(uint32_t number)
{
	return (struct vlib_buffer *)(buffer_main.buffer_mem_start + ((uintptr_t)number << 6));
}

static uint32_t read_packet(uint8_t *bytes)
{
	struct pcap_packet header;
	memset(bytes, 0, PLAIN_BYTES);
	if (!source)
		return PLAIN_BYTES;
	if (fread(&header, sizeof(header), 1, source) != 1 || header.captured > ROOM ||
	    fread(bytes, 1, header.captured, source) != header.captured)
		abort();
	return header.captured;
}

static uint32_t take_number(void)
{
	pthread_mutex_lock(&lock);
	uint32_t number = free_numbers[--free_count];
	pthread_mutex_unlock(&lock);
	return number;
}

uint32_t make_packet(uint64_t packet)
{
	static uint8_t bytes[ROOM];
	uint32_t left = read_packet(bytes), first = 0, at = 0;
	struct vlib_buffer *last = NULL;
	do {
		uint32_t number = take_buffer();
		struct vlib_buffer *buffer = buffer_at(number);
		uint32_t count = left < sizeof(buffer->data) ? left : sizeof(buffer->data);
		buffer->packet = packet;
		buffer->receive_interface = receives_late ? LATE_INTERFACE : TAP0_SUB;
		buffer->transmit_interface = UINT32_MAX;
		buffer->current_length = (uint16_t)count;
		memcpy(buffer->data, bytes + at, count);
		if (last) {
			last->flags |= NEXT_PRESENT;
			last->next_buffer = number;
		} else {
			first = number;
		}
		last = buffer;
		at += count;
		left -= count;
	} while (left);
	return first;
}

uint32_t take_buffer(void)
{
	uint32_t number = take_number();
	memset(buffer_at(number), 0, offsetof(struct vlib_buffer, data));
	return number;
}

uint32_t copy_packet(uint32_t number)
{
	uint32_t copied = take_number();
	struct vlib_buffer *copy = buffer_at(copied);
	memcpy(copy, buffer_at(number), sizeof(*copy));
	copy->flags &= ~(uint32_t)NEXT_PRESENT;
	copy->sharers = 0;
	return copied;
}

// A short packet is the first of its clones. Of a long one each clone has a buffer of its own for the packet's head, and all
// share the buffer that was received for the rest.
void clone_packet(uint32_t number, uint32_t clones[COPIES])
{
	struct vlib_buffer *shared = buffer_at(number);
	int is_long = shared->current_length > CLONED_MIN;
	clones[0] = number;
	for (uint32_t i = !is_long; i < COPIES; i++) {
		clones[i] = copy_packet(number);
		if (!is_long)
			continue;
		struct vlib_buffer *head = buffer_at(clones[i]);
		head->current_length = HEAD_BYTES;
		head->flags |= NEXT_PRESENT;
		head->next_buffer = number;
	}
	if (!is_long)
		return;
	shared->current_data += HEAD_BYTES;
	shared->current_length -= HEAD_BYTES;
	for (shared->sharers = COPIES - 1; shared->flags & NEXT_PRESENT;) {
		shared = buffer_at(shared->next_buffer);
		shared->sharers = COPIES - 1;
	}
}

// Up: as a router, which decrements the time to live and writes other MAC addresses.
void advance_packet(uint32_t number, int bytes)
{
	struct vlib_buffer *buffer = buffer_at(number);
	uint8_t *ip = buffer->data + buffer->current_data;
	buffer->current_data = (int16_t)(buffer->current_data + bytes);
	buffer->current_length = (uint16_t)(buffer->current_length - bytes);
	if (bytes >= 0)
		return;
	ip[8]--;
	memset(ip - 14, 0x22, 12);
}

static void log_packet(uint32_t number, FILE *log)
{
	struct pcap_packet header = {0, 0, 0, 0};
	static uint8_t bytes[ROOM];
	for (const struct vlib_buffer *buffer = buffer_at(number);; buffer = buffer_at(buffer->next_buffer)) {
		// What was stepped over is still there, and the files hold whole frames.
		int start = header.captured ? buffer->current_data : 0;
		uint32_t count = buffer->current_length + (uint32_t)(buffer->current_data - start);
		memcpy(bytes + header.captured, buffer->data + start, count);
		header.captured += count;
		if (!(buffer->flags & NEXT_PRESENT))
			break;
	}
	header.length = header.captured;
	fwrite(&header, sizeof(header), 1, log);
	fwrite(bytes, 1, header.captured, log);
	fflush(log);
}

static void free_packet(uint32_t number, FILE *log)
{
	if (log)
		log_packet(number, log);
	for (;;) {
		struct vlib_buffer *buffer = buffer_at(number);
		uint32_t flags = buffer->flags, next = buffer->next_buffer;
		if (buffer->sharers) {
			buffer->sharers--;
		} else {
			free_numbers[free_count++] = number;
			buffer->current_length = buffer->error = 0;
			buffer->receive_interface = buffer->transmit_interface = UINT32_MAX;
			buffer->flags = 0;
		}
		if (!(flags & NEXT_PRESENT))
			return;
		number = next;
	}
}

void end_packet(uint32_t number, FILE *log)
{
	pthread_mutex_lock(&lock);
	free_packet(number, log);
	pthread_mutex_unlock(&lock);
}

int open_files(char *names)
{
	uint32_t header[6];
	source = fopen(strtok(names, " "), "rb");
	transmitted_log = fopen(strtok(NULL, " "), "wb");
	dropped_log = fopen(strtok(NULL, " "), "wb");
	punted_log = fopen(strtok(NULL, " "), "wb");
	if (!source || !transmitted_log || !dropped_log || !punted_log ||
	    fread(header, sizeof(header), 1, source) != 1)
		return 0;
	fwrite(header, sizeof(header), 1, transmitted_log);
	fwrite(header, sizeof(header), 1, dropped_log);
	fwrite(header, sizeof(header), 1, punted_log);
	fflush(NULL);
	return 1;
}
