// SPDX-License-Identifier: Apache-2.0
// The double's graph: its node functions, its process nodes, and where it stands in memory. See vpp.c.
#include "nodes.h"
#include "buffers.h"
#include "vnet.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { STACK_BYTES = 1 << 16, PROCESSES = 2, STREAMS = 3 };
#define NODE_FUNCTION __attribute__((noipa)) static uint64_t

int late_node_runs, both_receive, several_streams, wild_number;

// ---- the graph's work --------------------------------------------------------------------------------------------

#if RELEASE == 2606
// Some nodes have arguments of their own before the vectors.
static void make_frame(vlib_frame_t *frame, uint32_t node)
{
	frame->vector_offset = node == ETHERNET_INPUT ? 32 : 16;
}
#else
static void make_frame(vlib_frame_t *frame, uint32_t node)
{
	frame->scalar_size = node == ETHERNET_INPUT ? 8 : 0;
}
#endif

static vlib_frame_t *open_frame(vlib_main_t *vm, uint32_t node)
{
	vlib_frame_t *frame = vm->free_frames[--vm->free_count];
	frame->n_vectors = 0;
	frame->flags[0] = 0;
	make_frame(frame, node);
	vm->node_main.next_frames[node].frame = frame;
	return frame;
}

// Into the node's frame, whoever has begun it, or into a new one when it is full.
void enqueue(vlib_main_t *vm, uint32_t node, uint32_t index)
{
	vlib_next_frame_t *next = &vm->node_main.next_frames[node];
	vlib_frame_t *frame = next->frame;
	if (!frame || frame->n_vectors == FRAME_SIZE)
		frame = open_frame(vm, node);
	vectors(frame)[frame->n_vectors] = index;
	vlib_put_next_frame(vm, &vm->node_main.nodes_by_type[INTERNAL][0], node,
	                    FRAME_SIZE - frame->n_vectors - 1u);
}

void send_apart(vlib_main_t *vm, uint32_t node, uint32_t index)
{
	vlib_frame_t *frame = vm->free_frames[--vm->free_count];
	frame->flags[0] = 0;
	make_frame(frame, node);
	frame->n_vectors = 1;
	vectors(frame)[0] = index;
	vlib_put_frame_to_node(vm, node, frame);
}

static uint32_t receive(vlib_main_t *vm, uint32_t most)
{
	uint32_t count = 1 + vm->received * 37 % most;
	if (count > vm->left)
		count = (uint32_t)vm->left;
	for (uint32_t i = 0; i < count; i++)
		enqueue(vm, ETHERNET_INPUT, make_packet(vm->received++));
	vm->left -= count;
	return count;
}

NODE_FUNCTION pg_input(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	if (frame || node->node_index != PG_INPUT)
		abort();
	uint32_t count = receive(vm, both_receive ? FRAME_SIZE / 2 : FRAME_SIZE);
	for (int i = 1; several_streams && i < STREAMS; i++) { // each begins a frame of its own
		vm->node_main.next_frames[ETHERNET_INPUT].frame = NULL;
		count += receive(vm, FRAME_SIZE);
	}
	return count;
}

NODE_FUNCTION dpdk_input(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	if (frame || node->node_index != DPDK_INPUT)
		abort();
	return receive(vm, 50);
}

static inline __attribute__((always_inline)) uint64_t pass_on(vlib_main_t *vm, vlib_frame_t *frame,
                                                              uint32_t next)
{
	for (uint32_t i = 0; i < frame->n_vectors; i++)
		enqueue(vm, next, vectors(frame)[i]);
	return frame->n_vectors;
}

// Moves the beginning of each packet, and writes a new header there when it moves up.
static inline __attribute__((always_inline)) void advance(vlib_frame_t *frame, int bytes)
{
	for (uint32_t i = 0; i < frame->n_vectors; i++)
		advance_packet(vectors(frame)[i], bytes);
}

// A variant for each kind of processor, of which one runs.
#define VARIANTS(name, next, bytes)                                                                          \
	NODE_FUNCTION name(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)                  \
	{                                                                                                    \
		node->clocks += frame->n_vectors;                                                            \
		advance(frame, bytes);                                                                       \
		return pass_on(vm, frame, next);                                                             \
	}                                                                                                    \
	NODE_FUNCTION name##_x86_64_v3(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)      \
	{                                                                                                    \
		node->clocks += 3u * frame->n_vectors;                                                       \
		advance(frame, bytes);                                                                       \
		return pass_on(vm, frame, next);                                                             \
	}
VARIANTS(ethernet_input, IP4_INPUT, 14)
VARIANTS(ip4_lookup, IP4_REWRITE, 0)
VARIANTS(ip4_rewrite, INTERFACE_OUTPUT, -14)
VARIANTS(late_node, INTERFACE_OUTPUT, -14)

NODE_FUNCTION ip4_input(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		uint32_t number = vectors(frame)[i];
		uint64_t kind = buffer_at(number)->packet % 32;
		uint32_t next = special_node(number);
		next = next ? next : late_node_runs ? LATE_NODE : IP4_LOOKUP;
		if (hands_off && kind % 4 != 1)
			next = WORKER_HANDOFF;
		buffer_at(number)->error = kind == 3 ? FIRST_ERROR + 1 : kind == 5 ? FIRST_ERROR + 5 : 0;
		enqueue(vm, kind == 3 ? IP4_DROP : kind == 5 ? IP6_DROP : next, number);
	}
	return frame->n_vectors;
}

NODE_FUNCTION interface_output(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		struct vlib_buffer *buffer = buffer_at(vectors(frame)[i]);
		buffer->transmit_interface = buffer->packet % 2 ? TAP1 : TAP0;
		enqueue(vm, TAP0_TX + buffer->packet % 2, vectors(frame)[i]);
	}
	if (wild_number)
		enqueue(vm, TAP0_TX, WILD);
	wild_number = 0;
	return frame->n_vectors;
}

static inline __attribute__((always_inline)) void release(vlib_frame_t *frame, FILE *log)
{
	for (uint32_t i = 0; i < frame->n_vectors; i++)
		if (vectors(frame)[i] != WILD)
			end_packet(vectors(frame)[i], log);
}

NODE_FUNCTION device_tx(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	release(frame, transmitted_log);
	vm->transmitted += frame->n_vectors;
	be_slow(vm, &linger_us);
	return frame->n_vectors;
}

NODE_FUNCTION ip_drop(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	return pass_on(vm, frame, ERROR_DROP);
}

#if RELEASE == 2606
NODE_FUNCTION error_drop(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock = frame->n_vectors;
	return pass_on(vm, frame, LAST_DROP);
}
#endif

NODE_FUNCTION last_drop(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	release(frame, dropped_log);
	vm->dropped += frame->n_vectors;
	return frame->n_vectors;
}

NODE_FUNCTION epoll_input(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	node->max_clock += vm->left == 0;
	return frame != NULL;
}

NODE_FUNCTION never(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	(void)vm, (void)node, (void)frame;
	abort();
}

// ---- process nodes: coroutines on stacks of their own ------------------------------------------------------------

static ucontext_t main_context, process_contexts[PROCESSES];
static uint32_t resumes; // which one is resumed

NODE_FUNCTION process(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	uint32_t number = resumes;
	(void)vm, (void)node;
	while (!frame)
		swapcontext(&process_contexts[number], &main_context);
	return 0;
}

static void enter_process(void)
{
	process(NULL, NULL, NULL);
}

static void start_process(uint32_t number)
{
	ucontext_t *context = &process_contexts[number];
	getcontext(context);
	context->uc_stack.ss_sp = malloc(STACK_BYTES);
	context->uc_stack.ss_size = STACK_BYTES;
	makecontext(context, enter_process, 0);
}

void resume_processes(void)
{
	for (resumes = 0; resumes < PROCESSES; resumes++)
		swapcontext(&main_context, &process_contexts[resumes]);
}

void start_nodes(void)
{
	for (uint32_t i = 0; i < PROCESSES; i++)
		start_process(i);
}

// ---- the graph ---------------------------------------------------------------------------------------------------

static const struct {
	uint32_t index;
	const char *name;
	enum node_type type;
	vlib_node_function_t *registered, *running;
} known[] = {
    {PG_INPUT, "pg-input", INPUT, pg_input, pg_input},
    {ETHERNET_INPUT, "ethernet-input", INTERNAL, ethernet_input, ethernet_input_x86_64_v3},
    {IP4_INPUT, "ip4-input", INTERNAL, ip4_input, ip4_input},
    {IP4_LOOKUP, "ip4-lookup", INTERNAL, ip4_lookup, ip4_lookup_x86_64_v3},
    {IP4_REWRITE, "ip4-rewrite", INTERNAL, ip4_rewrite, ip4_rewrite_x86_64_v3},
    {INTERFACE_OUTPUT, "interface-output", INTERNAL, interface_output, interface_output},
    {TAP0_TX, "tap0-tx", INTERNAL, device_tx, device_tx},
    {TAP1_TX, "tap1-tx", INTERNAL, device_tx, device_tx},
    {IP4_DROP, "ip4-drop", INTERNAL, ip_drop, ip_drop},
    {IP6_DROP, "ip6-drop", INTERNAL, ip_drop, ip_drop},
#if RELEASE == 2606
    {ERROR_DROP, "error-drop", INTERNAL, error_drop, error_drop},
    {LAST_DROP, "drop", INTERNAL, last_drop, last_drop},
#else
    {ERROR_DROP, "error-drop", INTERNAL, last_drop, last_drop},
#endif
    {DPDK_INPUT, "dpdk-input", INPUT, dpdk_input, dpdk_input},
    {EPOLL_INPUT, "unix-epoll-input", PRE_INPUT, epoll_input, epoll_input},
    {FIRST_PROCESS, "startup-config-process", PROCESS, process, process},
    {SECOND_PROCESS, "dhcp-client-process", PROCESS, process, process},
    {DELETED_TX, "interface-1-tx-deleted", INTERNAL, device_tx, device_tx},
    {IP4_REPLICATE, "ip4-replicate", INTERNAL, ip4_replicate, ip4_replicate},
    {IP4_ICMP_ERROR, "ip4-icmp-error", INTERNAL, ip4_icmp_error, ip4_icmp_error},
    {LOOP0_TX, "loop0-tx", INTERNAL, loopback_tx, loopback_tx},
    {PIPE0_TX, "pipe0.0-tx", INTERNAL, pipe_tx, pipe_tx},
    {PIPE_INPUT, "pipe-input", INPUT, pipe_input, pipe_input},
    {IP4_PUNT, "ip4-punt", INTERNAL, ip4_punt, ip4_punt},
#if RELEASE == 2606
    {ERROR_PUNT, "error-punt", INTERNAL, error_punt, error_punt},
    {LAST_PUNT, "punt", INTERNAL, last_punt, last_punt},
#else
    {ERROR_PUNT, "error-punt", INTERNAL, last_punt, last_punt},
#endif
    {CRYPTO_ENQUEUE, "crypto-enq", INTERNAL, crypto_enqueue, crypto_enqueue},
    {CRYPTO_DEQUEUE, RELEASE == 2606 ? "crypto-deq" : "crypto-dispatch", INPUT, crypto_dequeue,
     crypto_dequeue},
    {REASSEMBLY, "ip4-full-reassembly-feature", INTERNAL, ip4_full_reassembly, ip4_full_reassembly},
    {IP4_FRAG, "ip4-frag", INTERNAL, ip4_frag, ip4_frag},
    {IP4_ARP, "ip4-arp", INTERNAL, ip4_arp, ip4_arp},
    {ARP_REPLY, "arp-reply", INTERNAL, arp_reply, arp_reply},
    {MESSAGES_INPUT, "appsl-rx-mqs-input", INPUT, messages_input, messages_input},
    {MIDCHAIN_TX, "adj-midchain-tx", INTERNAL, midchain_tx, midchain_tx},
    {PUNT_SOCKET, "ip4-udp-punt-socket", INTERNAL, punt_socket, punt_socket},
    {WORKER_HANDOFF, "worker-handoff", INTERNAL, worker_handoff, worker_handoff},
    {BACK_HANDOFF, "nat44-worker-handoff", INTERNAL, back_handoff, back_handoff},
    {IP4_REASSEMBLY, "ip4-full-reassembly", INTERNAL, ip4_reassembly, ip4_reassembly},
    {LATE_NODE, "late-node", INTERNAL, late_node, late_node_x86_64_v3},
};
enum { KNOWN = sizeof(known) / sizeof(known[0]) };

static vlib_node_t *make_node(uint32_t index, vlib_node_function_t **running)
{
	vlib_node_t *node = calloc(1, sizeof(*node));
	char name[64];
	if (!node)
		abort();
	snprintf(name, sizeof(name), "unused-node-%u", index);
	node->function = *running = never;
	node->index = index;
	for (uint32_t i = 0; i < KNOWN; i++) {
		if (known[i].index != index)
			continue;
		snprintf(name, sizeof(name), "%s", known[i].name);
		node->function = known[i].registered;
		node->type = known[i].type;
		*running = known[i].running;
	}
	node->name = vector((uint32_t)strlen(name), 1); // without a zero byte, as VPP has it
	memcpy(node->name, name, strlen(name));
	return node;
}

// Errors of two nodes, and of others before them.
static void make_errors(vlib_main_t *vm)
{
	static char *names[] = {"none", "ttl_expired", "unused", "bad_checksum", "first", "acl_deny"};
	static char *texts[] = {"no error",         "ip4 ttl <= 1", "unused",
	                        "bad ip4 checksum", "first",        "ACL deny packets"};
	struct vlib_node_main *graph = &vm->node_main;
	vm->error_main.counters_heap = vector(FIRST_ERROR + ERRORS, sizeof(vlib_error_desc_t));
	graph->node_by_error = vector(FIRST_ERROR + ERRORS, sizeof(*graph->node_by_error));
	for (uint32_t i = 0; i < FIRST_ERROR + ERRORS; i++) {
		uint32_t owner = i < FIRST_ERROR ? i / 2 : i < FIRST_ERROR + 4 ? IP4_INPUT : IP6_DROP;
		uint32_t text = i < FIRST_ERROR ? 0 : i - FIRST_ERROR;
		vm->error_main.counters_heap[i] =
		    (vlib_error_desc_t){.name = names[text], .desc = texts[text]};
		if (!i || graph->node_by_error[i - 1] != owner)
			graph->nodes[owner]->error_heap_index = i;
		graph->node_by_error[i] = owner;
	}
}

void make_graph(vlib_main_t *vm)
{
	struct vlib_node_main *graph = &vm->node_main;
	static vlib_node_function_t *running[NODES];
	uint32_t counts[TYPES] = {0};
	memset(vm->before, 0x5a, sizeof(vm->before));
	memset(vm->between, 0x11, sizeof(vm->between)); // no addresses
	vm->buffer_main = make_buffers();
	graph->nodes = vector(NODES, sizeof(*graph->nodes));
	for (uint32_t i = 0; i < NODES; i++) {
		graph->nodes[i] = make_node(i, &running[i]);
		graph->nodes[i]->runtime_index = counts[graph->nodes[i]->type]++;
	}
	for (uint32_t type = 0; type < TYPES; type++) // runtimes of process nodes are elsewhere
		if (counts[type] && type != PROCESS)
			graph->nodes_by_type[type] = vector(counts[type], sizeof(vlib_node_runtime_t));
	for (uint32_t i = 0; i < NODES; i++) {
		const vlib_node_t *node = graph->nodes[i];
		if (node->type == PROCESS)
			continue;
		vlib_node_runtime_t *runtime = &graph->nodes_by_type[node->type][node->runtime_index];
		runtime->function = running[i];
		runtime->node_index = i;
	}
	make_errors(vm);
	graph->next_frames = vector(NODES, sizeof(*graph->next_frames));
	graph->pending_frames = vector(2, sizeof(*graph->pending_frames));
	vector_set_length(graph->pending_frames, 0);
	for (uint32_t i = 0; i < NODES; i++)
		graph->next_frames[i].node_runtime_index = graph->nodes[i]->runtime_index;
	for (uint32_t i = 0; i < NODES; i++)
		vm->free_frames[vm->free_count++] = &vm->frames[i];
}
