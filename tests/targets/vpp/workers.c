// SPDX-License-Identifier: Apache-2.0
// The double's nodes that hand packets over to another worker, by frame queues. See vpp.c.
#include "buffers.h"
#include "nodes.h"
#include "queues.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int hands_off;
static volatile uint64_t held_us, held_packets;
uint32_t slow_us, linger_us;

enum { FIRST_QUEUE, BACK_QUEUE, QUEUES };
static const uint32_t queue_nodes[QUEUES] = {IP4_REASSEMBLY, IP4_LOOKUP};
static vlib_main_t *const *all_mains;

static void drop_one(uint32_t number)
{
	end_packet(number, dropped_log);
}

// Packets arrive while nobody receives them.
static void stay(void)
{
	struct timespec time = {.tv_nsec = (long)(held_us * 1000)};
	nanosleep(&time, NULL);
	__atomic_fetch_add(&all_mains[1]->left, held_packets, __ATOMIC_SEQ_CST);
	nanosleep(&time, NULL);
}

// As `ip route add`: what is changed asks for the barrier, and something inside it does once more.
static void run_line(vlib_main_t *vm, const char *line)
{
	if (!strncmp(line, "exec ", 5)) {
		run_command(line + 5);
		return;
	}
	vlib_worker_thread_barrier_sync_int(vm, "fib_table_update");
	vlib_worker_thread_barrier_sync_int(vm, "load_balance_create");
	stay();
	vlib_worker_thread_barrier_release(vm);
	vlib_worker_thread_barrier_release(vm);
}

void run_command(const char *line)
{
	unformat_input_t input = {.buffer = vector((uint32_t)strlen(line), 1)};
	memcpy(input.buffer, line, strlen(line));
	vlib_cli_input(all_mains[0], &input, NULL, 0);
	memset(input.buffer, 'x', strlen(line));
}

// MICROSECONDS PACKETS LINE; an empty line: the barrier is asked for by no command.
void hold(const char *words)
{
	int used = 0;
	unsigned long us, packets;
	if (sscanf(words, "%lu %lu %n", &us, &packets, &used) < 2)
		return;
	held_us = us / 2;
	held_packets = packets;
	if (words[used])
		run_command(words + used);
	else
		run_line(all_mains[0], "");
}

void start_workers(vlib_main_t *const *mains)
{
	all_mains = mains;
	set_workers(0);
	cli_command = run_line;
	make_queues(mains, queue_nodes, QUEUES, drop_one);
}

void take_over(vlib_main_t *vm)
{
	for (uint32_t i = 0; hands_off && i < QUEUES; i++) {
		vlib_frame_queue_main_t *queues = &vlib_thread_main.frame_queue_mains[i];
		dequeue_fn(queues)(vm, queues);
		if (is_hostile && vm->thread_index == 2)
			tell_truth(vm);
	}
}

static uint32_t count_done(void)
{
	uint32_t done = 0;
	for (uint32_t i = 1; i < THREADS; i++)
		done += __atomic_load_n(&all_mains[i]->transmitted, __ATOMIC_SEQ_CST) +
		        __atomic_load_n(&all_mains[i]->dropped, __ATOMIC_SEQ_CST);
	return done;
}

int may_end(void)
{
	return !hands_off || (!__atomic_load_n(&all_mains[1]->left, __ATOMIC_SEQ_CST) &&
	                      count_done() == __atomic_load_n(&all_mains[1]->received, __ATOMIC_SEQ_CST));
}

int is_held_back(const vlib_main_t *vm)
{
	return overflows && vm->thread_index == 2 && __atomic_load_n(&all_mains[1]->left, __ATOMIC_SEQ_CST);
}

static uint64_t hand_over(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame, uint32_t queue,
                          const uint16_t *threads)
{
	uint16_t given[FRAME_SIZE];
	uint32_t numbers[FRAME_SIZE];
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		numbers[i] = vectors(frame)[i];
		given[i] = threads[buffer_at(numbers[i])->packet % 16 == 2];
	}
	vlib_buffer_func_main.buffer_enqueue_to_thread_fn(vm, node, queue, numbers, given, frame->n_vectors,
	                                                  overflows);
	return frame->n_vectors;
}

// To the second worker, and some packets to the queue of the first one itself.
__attribute__((noipa)) uint64_t worker_handoff(vlib_main_t *vm, vlib_node_runtime_t *node,
                                               vlib_frame_t *frame)
{
	static const uint16_t threads[] = {2, 1};
	node->max_clock += 1;
	return hand_over(vm, node, frame, FIRST_QUEUE, threads);
}

__attribute__((noipa)) uint64_t back_handoff(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
	static const uint16_t threads[] = {1, 1};
	node->max_clock += 2;
	return hand_over(vm, node, frame, BACK_QUEUE, threads);
}

// Until the first worker has received all that it is to receive, and for so long after that.
void be_slow(const vlib_main_t *vm, uint32_t *wanted_us)
{
	uint32_t us = vm->thread_index == 2 ? __atomic_exchange_n(wanted_us, 0, __ATOMIC_SEQ_CST) : 0;
	struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
	if (!us)
		return;
	while (__atomic_load_n(&all_mains[1]->left, __ATOMIC_SEQ_CST))
		sched_yield();
	nanosleep(&time, NULL);
}

// The second worker gives some packets back.
__attribute__((noipa)) uint64_t ip4_reassembly(vlib_main_t *vm, vlib_node_runtime_t *node,
                                               vlib_frame_t *frame)
{
	node->max_clock_n = frame->n_vectors;
	be_slow(vm, &slow_us);
	for (uint32_t i = 0; i < frame->n_vectors; i++) {
		uint32_t number = vectors(frame)[i];
		int goes_back = vm->thread_index == 2 && buffer_at(number)->packet % 5 == 0;
		enqueue(vm, goes_back ? BACK_HANDOFF : IP4_LOOKUP, number);
	}
	return frame->n_vectors;
}
