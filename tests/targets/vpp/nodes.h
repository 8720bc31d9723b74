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
	IP4_REPLICATE,
	IP4_ICMP_ERROR,
	LOOP0_TX,
	PIPE0_TX,
	PIPE_INPUT,
	IP4_PUNT,
	ERROR_PUNT,
	LAST_PUNT,
	PUNT_SOCKET,
	CRYPTO_ENQUEUE,
	CRYPTO_DEQUEUE,
	REASSEMBLY,
	IP4_FRAG,
	IP4_ARP,
	ARP_REPLY,
	MESSAGES_INPUT,
	MIDCHAIN_TX,
	WORKER_HANDOFF,
	BACK_HANDOFF,
	IP4_REASSEMBLY,
};

enum { FIRST_ERROR = 4, ERRORS = 6 }; // of ip4-input and ip6-drop; others have those before

extern int late_node_runs, both_receive, several_streams, wild_number;
extern int replicates, makes_errors, has_loopback, has_pipe, punts, encrypts, reassembles, fragments,
    resolves, has_messages, hands_off;

void make_graph(vlib_main_t *vm);
void start_nodes(void);
void resume_processes(void);
void enqueue(vlib_main_t *vm, uint32_t node, uint32_t index); // a packet for the node
void send_apart(vlib_main_t *vm, uint32_t node, uint32_t index); // in a frame of its own

static inline uint32_t *vectors(vlib_frame_t *frame)
{
#if RELEASE == 2606
	return (uint32_t *)((uint8_t *)frame + frame->vector_offset);
#else
	return (uint32_t *)((uint8_t *)frame + 16);
#endif
}

// arp.c
vlib_node_function_t ip4_arp, arp_reply;

// crypto.c
vlib_node_function_t crypto_enqueue, crypto_dequeue, midchain_tx;

// fragments.c
uint32_t reassembly_node(uint32_t number), fragmentation_node(uint32_t number); // where it goes; 0: on
vlib_node_function_t ip4_full_reassembly, ip4_frag;

// ends.c
vlib_node_function_t ip4_punt, error_punt, last_punt, punt_socket, messages_input;
// workers.c
void start_workers(vlib_main_t *const *mains);
void take_over(vlib_main_t *vm); // what is in the thread's queues, into frames
int may_end(void); // nothing is in any queue or thread, as far as packets are handed over
void run_command(const char *line);
void hold(const char *words); // the workers, see vpp.c
extern uint32_t slow_us,
    linger_us; // one call of the second worker takes so long, and one that has sent its packets
void be_slow(const vlib_main_t *vm, uint32_t *wanted_us);
int is_held_back(const vlib_main_t *vm); // the thread takes nothing over yet
vlib_node_function_t worker_handoff, back_handoff, ip4_reassembly;

// copies.c
uint32_t special_node(uint32_t number); // where the packet goes when ip4-input has seen it; 0: on
vlib_node_function_t ip4_replicate, ip4_icmp_error, loopback_tx, pipe_tx, pipe_input;
#endif
