// SPDX-License-Identifier: Apache-2.0
// The double's buffers, laid out as VPP's, and the packets in them. See vpp.c.
#ifndef NFPROBE_TESTS_BUFFERS_H
#define NFPROBE_TESTS_BUFFERS_H
#include "vlib.h"
#include <stdio.h>

enum {
	NEXT_PRESENT = 2, // a flag
	WILD = 0x7fffffff, // names no buffer
	COPIES = 3, // that replication makes of a packet, itself included
};

struct vlib_buffer {
	int16_t current_data;
	uint16_t current_length;
	uint32_t flags; // bit 1: there is a next buffer
	uint8_t gap[6];
	uint16_t error; // why it is dropped
	uint32_t next_buffer;
	uint32_t configuration;
	uint32_t receive_interface, transmit_interface;
	uint8_t opaque[64 - 32];
	uint64_t packet; // its number
	uint8_t sharers; // packets that end in this buffer, but for one
	uint8_t again; // it has been received before
	uint8_t rest[256 - 74];
	uint8_t data[2048];
};
_Static_assert(offsetof(struct vlib_buffer, next_buffer) == 16 && offsetof(struct vlib_buffer, data) == 256,
               "a buffer");

extern FILE *transmitted_log, *dropped_log, *punted_log;
extern int receives_late; // on the interface that is made while the double is measured

struct vlib_buffer_main *make_buffers(void); // the same one at each call
struct vlib_buffer *buffer_at(uint32_t number);
uint32_t make_packet(uint64_t packet); // returns the number of its first buffer
uint32_t take_buffer(void); // its head is empty
uint32_t copy_packet(uint32_t number); // of its first buffer only
void clone_packet(uint32_t number, uint32_t clones[COPIES]); // as VPP replicates: see there
void advance_packet(uint32_t number, int bytes);
void end_packet(uint32_t number, FILE *log); // frees its buffers, which keep the bytes, but not the lengths
int open_files(char *names); // "IN TRANSMITTED DROPPED PUNTED"; 0: not all of them
#endif
