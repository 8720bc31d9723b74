// SPDX-License-Identifier: Apache-2.0
// The double's graph as its main loop sees it.
#ifndef NFPROBE_TESTS_NODES_H
#define NFPROBE_TESTS_NODES_H
#include "vlib.h"

enum known_node {
	PG_INPUT = 7,
	ETHERNET_INPUT,
	IP4_INPUT,
	IP4_LOOKUP,
	IP4_REWRITE,
	INTERFACE_OUTPUT,
	TAP0_TX,
	TAP1_TX,
	IP4_DROP,
	IP6_DROP,
	ERROR_DROP,
	LAST_DROP,
	DPDK_INPUT,
	EPOLL_INPUT,
	FIRST_PROCESS,
	SECOND_PROCESS,
	LATE_NODE,
	DELETED_TX,
};

extern int late_node_runs, both_receive, several_streams, wild_number;

void make_graph(vlib_main_t *vm);
void start_nodes(void);
void resume_processes(void);
#endif
