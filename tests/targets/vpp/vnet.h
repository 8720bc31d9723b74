// SPDX-License-Identifier: Apache-2.0
// The double's interfaces. See vpp.c.
#ifndef NFPROBE_TESTS_VNET_H
#define NFPROBE_TESTS_VNET_H
#include <stddef.h>
#include <stdint.h>

enum known_interface { LOCAL0, TAP0, TAP0_SUB, TAP1, LATE_INTERFACE }; // software interfaces

typedef struct {
	uint64_t flags;
	uint8_t *hw_address;
	uint32_t nodes[3], classes[4];
	uint32_t hw_if_index, sw_if_index;
	uint32_t gap[3];
	uint8_t *name; // a vector
	uint8_t rest[192 - 72];
} vnet_hw_interface_t;

typedef struct {
	uint16_t type, flags;
	uint32_t sw_if_index, sup_sw_if_index, unnumbered_sw_if_index, hw_if_index, mtu[4], sub_id;
	uint8_t rest[32];
} vnet_sw_interface_t;

struct vnet_main {
	uint32_t local[2];
	vnet_hw_interface_t *hw_interfaces;
	uint64_t gap[9];
	vnet_sw_interface_t *sw_interfaces;
	uint8_t rest[512];
};
extern struct vnet_main vnet_main;

void make_interfaces(void);
void make_late_interface(void);

_Static_assert(offsetof(vnet_hw_interface_t, name) == 64 && offsetof(vnet_sw_interface_t, sub_id) == 36,
               "interfaces");
#endif
