// SPDX-License-Identifier: Apache-2.0
// A double of FD.io VPP, made from facts because VPP is not packaged here: 300 graph nodes that are called through
// pointers in their runtimes, march variants, functions that several nodes share, process nodes on stacks of their
// own. A worker thread runs the graph; calls and vectors are counted in the runtimes as VPP counts them.
//
// Commands on standard input:
//   N          receives so many packets; answers "R received T transmitted D dropped" of all there ever were
//   counters   answers "NODE CALLS VECTORS;" for each node that was called
//   addresses  answers "NODE ADDRESS;" of the function that runs for each node
//   late       from now on packets pass late-node instead of ip4-lookup
//   files I T D P  from now on receives the packets of the capture file I, and writes what it has transmitted, dropped and
//              punted to T, D and P
//   both       from now on dpdk-input receives packets, too
//   streams    from now on pg-input receives up to three frames of packets in one call
//   copies     from now on ip4-replicate makes three packets of each 32nd one
//   errors     from now on ip4-icmp-error drops each 32nd packet and sends one that it has made
//   loop       from now on each 32nd packet is received once more, by way of a loopback interface
//   pipe       the same by way of a pipe, whose other end is an input node
//   punts      from now on each 32nd packet is punted by way of punt, and each 32nd to a socket
//   crypto     from now on two of 32 packets are encrypted: they leave the turn, and come back in another one
//   reassemble from now on three of 32 packets are fragments of one, most of which are reassembled
//   fragment   from now on the long ones of two of 32 packets are sent in fragments
//   arp        from now on each 32nd packet is dropped, and an ARP request made for it, and each 32nd is one, which is answered
//   messages   from now on an input node returns a number that is none of packets
//   handoff    from now on ip4-input gives packets to worker-handoff, and the second worker takes them over, which gives
//              some of them back
//   overflow   the same, and the second worker does not begin until the first one has received all: the queue is full
//   hostile    what the second worker has taken over is nonsense until the call has returned, of six kinds by turns
//   run, stop  the first worker waits for packets in between, instead of ending when there are none
//   hold US N LINE  the main thread holds the workers for so long while N packets arrive, in a command
//   slow US    the second worker is slow in one call: until the first one has received all, and for so long after that
//   linger US  the same in a transmit call that has freed its packets: the first worker receives into their buffers
//   queues     answers how many packets were handed over, dropped at queues and taken over, of all threads
//   interface  from now on packets are received on an interface that is made then
//   wild       hands a number that names no buffer to a transmit node, once
//   spoil X    damages names, functions, indexes, runtimes, where buffers are, errors, their texts, or interfaces; a second time undoes it
#define _GNU_SOURCE
#include "buffers.h"
#include "nodes.h"
#include "queues.h"
#include "vnet.h"
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static vlib_main_t *mains[THREADS];
static sem_t wanted[THREADS], done;
static int runs_on;

static vlib_node_runtime_t *runtime_of(vlib_main_t *vm, uint32_t index)
{
	const vlib_node_t *node = vm->node_main.nodes[index];
	return node->type == PROCESS ? NULL : &vm->node_main.nodes_by_type[node->type][node->runtime_index];
}

static uint64_t dispatch(vlib_main_t *vm, uint32_t index, vlib_frame_t *frame)
{
	vlib_node_runtime_t *runtime = runtime_of(vm, index);
	uint64_t count = runtime->function(vm, runtime, frame);
	runtime->calls++;
	runtime->vectors += (uint32_t)count;
	return count;
}

static void dispatch_pending(vlib_main_t *vm, vlib_pending_frame_t pending)
{
	uint32_t node = pending.next_frame_index;
	if (node == NO_NEXT_FRAME)
		node = vm->node_main.nodes_by_type[INTERNAL][pending.node_runtime_index].node_index;
	else if (vm->node_main.next_frames[node].frame == pending.frame)
		vm->node_main.next_frames[node].frame = NULL;
	dispatch(vm, node, pending.frame);
	vm->free_frames[vm->free_count++] = pending.frame;
}

// Turns of the main loop: what other threads have handed over, pre-input nodes, input nodes, then every frame that is
// pending.
static void run_graph(vlib_main_t *vm)
{
	for (int idle = 0; idle < 3 || __atomic_load_n(&runs_on, __ATOMIC_SEQ_CST);) {
		barrier_check();
		take_over(vm);
		dispatch(vm, EPOLL_INPUT, NULL);
		idle += dispatch(vm, PG_INPUT, NULL) == 0 && may_end();
		if (both_receive)
			dispatch(vm, DPDK_INPUT, NULL);
		if (has_pipe)
			dispatch(vm, PIPE_INPUT, NULL);
		if (has_messages)
			dispatch(vm, MESSAGES_INPUT, NULL);
		if (encrypts) // it is interrupted by others: after those that are polled
			dispatch(vm, CRYPTO_DEQUEUE, NULL);
		for (uint32_t i = 0; i < vector_length(vm->node_main.pending_frames); i++)
			dispatch_pending(vm, vm->node_main.pending_frames[i]);
		vector_set_length(vm->node_main.pending_frames, 0);
	}
}

static void *work(void *argument)
{
	vlib_main_t *vm = argument;
	vlib_worker_threads[vm->thread_index].lwp = (uint64_t)gettid();
	sem_post(&done);
	for (;;) {
		while (sem_wait(&wanted[vm->thread_index]))
			;
		while (is_held_back(vm))
			sched_yield();
		run_graph(vm);
		sem_post(&done);
	}
	return NULL;
}

// ---- commands ----------------------------------------------------------------------------------------------------

static void tell_all(void)
{
	uint32_t received = 0, transmitted = 0, dropped = 0;
	for (uint32_t i = 1; i < THREADS; i++) {
		received += mains[i]->received;
		transmitted += mains[i]->transmitted;
		dropped += mains[i]->dropped;
	}
	printf("%u received %u transmitted %u dropped\n", received, transmitted, dropped);
}

static void receive(uint64_t count)
{
	uint32_t workers = hands_off ? THREADS - 1 : 1;
	mains[1]->left = count;
	for (uint32_t i = 1; i <= workers; i++)
		sem_post(&wanted[i]);
	resume_processes();
	for (uint32_t i = 1; i <= workers; i++)
		while (sem_wait(&done))
			;
	tell_all();
}

// The first worker runs until it is told to stop.
static void run(int on)
{
	set_workers((uint32_t)on);
	__atomic_store_n(&runs_on, on, __ATOMIC_SEQ_CST);
	if (on)
		sem_post(&wanted[1]);
	while (!on && sem_wait(&done))
		;
	tell_all();
}

static void tell(int addresses)
{
	for (uint32_t i = 0; i < NODES; i++) {
		const vlib_node_t *node = mains[1]->node_main.nodes[i];
		const vlib_node_runtime_t *runtime = runtime_of(mains[1], i),
		                          *other = runtime_of(mains[2], i);
		if (!runtime || !(runtime->calls + other->calls))
			continue;
		printf("%.*s ", (int)vector_length(node->name), (const char *)node->name);
		if (addresses)
			printf("%lu;", (unsigned long)(uintptr_t)runtime->function);
		else
			printf("%u %u;", runtime->calls + other->calls, runtime->vectors + other->vectors);
	}
	puts("");
}

// As `show runtime`, and then `clear runtime`: what the runtimes have counted is summed up in the nodes.
static void sum_up(void)
{
	for (uint32_t i = 0; i < NODES; i++) {
		vlib_node_t *node = mains[1]->node_main.nodes[i];
		vlib_node_runtime_t *runtime = runtime_of(mains[1], i);
		if (!runtime)
			continue;
		node->total[0] += runtime->calls;
		node->total[1] += runtime->vectors;
		runtime->calls = runtime->vectors = 0;
		memcpy(node->cleared, node->total, sizeof(node->cleared));
	}
	puts("summed up");
}

// Returns whether it is one of names.
static int spoil_names(const char *what)
{
	struct vlib_node_main *graph = &mains[0]->node_main;
	vlib_error_desc_t *errors = mains[0]->error_main.counters_heap;
	for (uint32_t i = 0; !strcmp(what, "errors") && i < NODES; i++)
		graph->nodes[i]->error_heap_index ^= 0x100000;
	for (uint32_t i = 0; !strcmp(what, "texts") && i < FIRST_ERROR + ERRORS; i++)
		errors[i].desc = (char *)((uintptr_t)errors[i].desc ^ 1ul << 46);
	for (uint32_t i = 0; !strcmp(what, "hardware") && i < vector_length(vnet_main.hw_interfaces); i++)
		vnet_main.hw_interfaces[i].name =
		    (uint8_t *)((uintptr_t)vnet_main.hw_interfaces[i].name ^ 1ul << 46);
	for (uint32_t i = 0; !strcmp(what, "software") && i < vector_length(vnet_main.sw_interfaces); i++)
		vnet_main.sw_interfaces[i].hw_if_index ^= 0x100000;
	return !strcmp(what, "errors") || !strcmp(what, "texts") || !strcmp(what, "hardware") ||
	       !strcmp(what, "software");
}

static void spoil(const char *what)
{
	if (spoil_names(what)) {
		puts("spoiled");
		return;
	}
	if (!strcmp(what, "buffers"))
		make_buffers()->buffer_mem_size ^= 1;
	for (uint32_t i = 0; strcmp(what, "buffers") && i < NODES; i++) {
		vlib_node_t *node = mains[0]->node_main.nodes[i];
		vlib_node_runtime_t *runtime = runtime_of(mains[0], i);
		if (!strcmp(what, "names"))
			node->name[0] ^= 0x80;
		else if (!strcmp(what, "functions"))
			node->function = (vlib_node_function_t *)((uintptr_t)node->function ^ 1);
		else if (!strcmp(what, "indexes"))
			node->index ^= 0x100000;
		else if (runtime)
			runtime->node_index ^= 0x100000;
	}
	puts("spoiled");
}

static int switch_on(const char *word)
{
	static const struct {
		const char *word;
		int *is_on;
	} known[] = {{"late", &late_node_runs}, {"both", &both_receive},      {"streams", &several_streams},
	             {"wild", &wild_number},    {"copies", &replicates},      {"errors", &makes_errors},
	             {"loop", &has_loopback},   {"pipe", &has_pipe},          {"punts", &punts},
	             {"crypto", &encrypts},     {"reassemble", &reassembles}, {"fragment", &fragments},
	             {"arp", &resolves},        {"messages", &has_messages},  {"handoff", &hands_off},
	             {"hostile", &is_hostile}};
	for (uint32_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strcmp(word, known[i].word) != 0)
			continue;
		printf("%s %d\n", word, *known[i].is_on = 1);
		return 1;
	}
	return 0;
}

static void start(void)
{
	vlib_main_t **list = vector(THREADS, sizeof(*list));
#if RELEASE == 2606
	mains[0] = vector(1, sizeof(vlib_main_t));
	vlib_global_main.vlib_mains = list;
#else
	mains[0] = &vlib_global_main;
	vlib_mains = list;
#endif
	for (uint32_t i = 1; i < THREADS; i++)
		mains[i] = vector(1, sizeof(vlib_main_t));
	for (uint32_t i = 0; i < THREADS; i++) {
		mains[i]->thread_index = i;
		make_graph(mains[i]);
		list[i] = mains[i];
	}
	make_interfaces();
	start_nodes();
	start_workers(mains);
	sem_init(&done, 0, 0);
	for (uint32_t i = 1; i < THREADS; i++) {
		char name[16];
		pthread_t thread;
		sem_init(&wanted[i], 0, 0);
		if (pthread_create(&thread, NULL, work, mains[i]))
			abort();
		snprintf(name, sizeof(name), "vpp_wk_%u", (i - 1) % 10);
		pthread_setname_np(thread, name);
		while (sem_wait(&done)) // it has said which one it is
			;
	}
	vlib_worker_threads[0].lwp = (uint64_t)getpid();
}

int main(void)
{
	char line[1024];
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	start();
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "counters") || !strcmp(line, "addresses"))
			tell(line[0] == 'a');
		else if (!strncmp(line, "spoil ", 6))
			spoil(line + 6);
		else if (!strcmp(line, "sum"))
			sum_up();
		else if (!strcmp(line, "interface")) {
			make_late_interface();
			printf("interface %d\n", receives_late = 1);
		} else if (!strcmp(line, "overflow"))
			printf("overflow %d\n", hands_off = overflows = 1);
		else if (!strcmp(line, "run") || !strcmp(line, "stop"))
			run(!strcmp(line, "run"));
		else if (!strncmp(line, "hold ", 5)) {
			hold(line + 5);
			puts("held");
		} else if (!strncmp(line, "slow ", 5)) {
			slow_us = (uint32_t)strtoul(line + 5, NULL, 10);
			puts("slow");
		} else if (!strncmp(line, "linger ", 7)) {
			linger_us = (uint32_t)strtoul(line + 7, NULL, 10);
			puts("linger");
		} else if (!strcmp(line, "queues"))
			printf("%u handed over %u dropped %u taken over\n", queue_counts.handed_over,
			       queue_counts.dropped, queue_counts.taken_over);
		else if (!strncmp(line, "files ", 6))
			puts(open_files(line + 6) ? "opened" : "not opened");
		else if (!switch_on(line))
			receive(strtoull(line, NULL, 10));
		fflush(stdout);
	}
	return 0;
}
