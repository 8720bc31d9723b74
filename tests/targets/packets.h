// SPDX-License-Identifier: Apache-2.0
// A packet as some test targets have it, described in the tests by its offsets.
#ifndef NFPROBE_TEST_PACKETS_H
#define NFPROBE_TEST_PACKETS_H
#include <stdint.h>

enum { ROOM = 128 };

struct packet {
	uint8_t *data;
	uint32_t length;
	uint16_t segment;
	uint8_t room[ROOM];
};
#endif
