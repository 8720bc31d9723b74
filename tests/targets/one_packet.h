// SPDX-License-Identifier: Apache-2.0
// A packet of which one is enough, as stepped.yaml and counted.yaml describe it.
#ifndef NFPROBE_TEST_ONE_PACKET_H
#define NFPROBE_TEST_ONE_PACKET_H
#include <stdint.h>

static const struct {
	const void *data;
	uint32_t data_offset, length, segment_length;
} packet = {"a packet of which nobody reads more than this, for 64 bytes are few", 0, 64, 64};
#endif
