// SPDX-License-Identifier: Apache-2.0
// The double's libvnet: its interfaces in two pools, laid out as VPP's. See vnet.h.
#include "vnet.h"
#include "vlib.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 8 };

struct vnet_main vnet_main;

static void add(const char *name, uint32_t number, int is_sub)
{
	vnet_sw_interface_t *software = &vnet_main.sw_interfaces[number];
	uint32_t hardware = vector_length(vnet_main.hw_interfaces);
	software->sw_if_index = software->sup_sw_if_index = number;
	vector_set_length(vnet_main.sw_interfaces, number + 1);
	if (is_sub) {
		software->type = 1;
		software->sup_sw_if_index = number - 1;
		software->sub_id = 100;
		return;
	}
	vnet_hw_interface_t *interface = &vnet_main.hw_interfaces[hardware];
	interface->name = vector((uint32_t)strlen(name), 1);
	memcpy(interface->name, name, strlen(name));
	software->hw_if_index = interface->hw_if_index = hardware;
	interface->sw_if_index = number;
	vector_set_length(vnet_main.hw_interfaces, hardware + 1);
}

void make_interfaces(void)
{
	vnet_main.hw_interfaces = vector(ROOM, sizeof(vnet_hw_interface_t));
	vnet_main.sw_interfaces = vector(ROOM, sizeof(vnet_sw_interface_t));
	vector_set_length(vnet_main.hw_interfaces, 0);
	add("local0", LOCAL0, 0);
	add("tap0", TAP0, 0);
	add("tap0", TAP0_SUB, 1);
	add("tap1", TAP1, 0);
}

void make_late_interface(void)
{
	add("memif0/0", LATE_INTERFACE, 0);
}
