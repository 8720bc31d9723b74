// SPDX-License-Identifier: Apache-2.0
// The double's libvlib: frame queues between threads. See queues.h.
#include "queues.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct vlib_buffer_func_main vlib_buffer_func_main;
struct vlib_thread_main vlib_thread_main;
struct queue_counts queue_counts;
int overflows, is_hostile;

static void (*free_number)(uint32_t);

static void add(uint32_t *count, uint32_t packets)
{
	__atomic_fetch_add(count, packets, __ATOMIC_SEQ_CST);
}

// The place for one more element; NULL: there is none.
static vlib_frame_queue_elt_t *claim(vlib_frame_queue_t *queue)
{
	uint64_t tail = __atomic_load_n(&queue->tail, __ATOMIC_RELAXED);
	do {
		if (tail + 1 >= __atomic_load_n(&queue->head, __ATOMIC_ACQUIRE) + queue->nelts)
			return NULL;
	} while (!__atomic_compare_exchange_n(&queue->tail, &tail, tail + 1, 0, __ATOMIC_ACQ_REL,
	                                      __ATOMIC_RELAXED));
	return &queue->elts[(tail + 1) & (queue->nelts - 1)];
}

// The packets for one thread, all of them or none. Returns how many there are; *refused: how many had no room.
static uint32_t put(vlib_frame_queue_main_t *queues, uint32_t thread, const uint32_t *numbers,
                    const uint16_t *threads, uint32_t count, int drops, uint32_t *refused)
{
	vlib_frame_queue_t *queue = queues->vlib_frame_queues[thread];
	vlib_frame_queue_elt_t *element = claim(queue);
	uint32_t found = 0;
	while (!element && !drops) {
		sched_yield();
		element = claim(queue);
	}
	for (uint32_t i = 0; i < count; i++)
		if (threads[i] == thread) {
			if (element)
				element->buffer_index[found] = numbers[i];
			else
				free_number(numbers[i]);
			found++;
		}
	if (element) {
		element->n_vectors = found;
		add(&queue_counts.handed_over, found);
		__atomic_store_n(&element->valid, 1, __ATOMIC_RELEASE);
	} else {
		*refused += found;
	}
	return found;
}

__attribute__((noipa)) uint32_t vlib_buffer_enqueue_to_thread_fn(vlib_main_t *vm, vlib_node_runtime_t *node,
                                                                 uint32_t queue, uint32_t *numbers,
                                                                 uint16_t *threads, uint32_t count, int drops)
{
	uint32_t refused = 0, left = count;
	node->max_clock_n = count;
	for (uint32_t thread = 0; left && thread < THREADS; thread++)
		for (uint32_t i = 0; i < count; i++)
			if (threads[i] == thread) {
				left -= put(&vlib_thread_main.frame_queue_mains[queue], thread, numbers,
				            threads, count, drops, &refused);
				break;
			}
	vm->dropped += refused;
	add(&queue_counts.dropped, refused);
	return count - refused;
}

__attribute__((noipa)) uint32_t vlib_buffer_enqueue_to_thread_fn_x86_64_v3(vlib_main_t *vm,
                                                                           vlib_node_runtime_t *node,
                                                                           uint32_t queue, uint32_t *numbers,
                                                                           uint16_t *threads, uint32_t count,
                                                                           int drops)
{
	node->max_clock = queue;
	return vlib_buffer_enqueue_to_thread_fn(vm, node, queue, numbers, threads, count, drops) + 0 * count;
}

// ---- taking them out ---------------------------------------------------------------------------------------------

static void put_frame(vlib_main_t *vm, uint32_t node, vlib_frame_t *frame)
{
	struct vlib_node_main *graph = &vm->node_main;
	uint32_t count = vector_length(graph->pending_frames);
	graph->pending_frames = vector_with_room(graph->pending_frames);
	graph->pending_frames[count] = (vlib_pending_frame_t){
	    .frame = frame,
	    .node_runtime_index = graph->nodes[node]->runtime_index,
	    .next_frame_index = NO_NEXT_FRAME,
	};
	vector_set_length(graph->pending_frames, count + 1);
}

static vlib_frame_t *get_frame(vlib_main_t *vm)
{
	vlib_frame_t *frame = vm->free_frames[--vm->free_count];
	frame->n_vectors = 0;
	frame->flags[0] = FRAME_PENDING;
#if RELEASE == 2606
	frame->vector_offset = 16;
#else
	frame->scalar_size = 0;
#endif
	return frame;
}

// ---- nonsense in what a call leaves behind, which is undone before anybody works on it --------------------------------

static struct {
	vlib_frame_t *frame;
	uint32_t number, pending, lies;
	uint16_t packets;
} truth;

static uint32_t lie(vlib_main_t *vm)
{
	vlib_pending_frame_t *frames = vm->node_main.pending_frames;
	truth.pending = vector_length(frames);
	truth.frame = frames[truth.pending - 1].frame;
	truth.packets = truth.frame->n_vectors;
	uint32_t *numbers = (uint32_t *)((uint8_t *)truth.frame + 16);
	truth.number = numbers[0];
	switch (truth.lies++ % 6) {
	case 0:
		truth.frame->n_vectors = 60000;
		break;
	case 1:
		vector_set_length(frames, UINT32_MAX);
		break;
	case 2:
		frames[truth.pending - 1].frame = (vlib_frame_t *)8;
		break;
	case 3:
		frames[truth.pending - 1].frame = NULL;
		break;
	case 4:
		truth.frame->flags[1] = 0xffff;
		return UINT32_MAX;
	default:
		numbers[0] = 0x7fffffff;
	}
	return 1;
}

void tell_truth(vlib_main_t *vm)
{
	vlib_pending_frame_t *frames = vm->node_main.pending_frames;
	if (!truth.frame)
		return;
	vector_set_length(frames, truth.pending);
	frames[truth.pending - 1].frame = truth.frame;
	truth.frame->n_vectors = truth.packets;
	*(uint32_t *)((uint8_t *)truth.frame + 16) = truth.number;
	truth.frame = NULL;
}

// Fills frames with the packets of the elements, as many as fit the threshold; an element may be left on the queue in part.
__attribute__((noipa)) uint32_t vlib_frame_queue_dequeue_fn_x86_64_v3(vlib_main_t *vm,
                                                                      vlib_frame_queue_main_t *queues)
{
	vlib_frame_queue_t *queue = queues->vlib_frame_queues[vm->thread_index];
	uint32_t processed = 0, vectors = 0;
	vlib_frame_t *frame = NULL;
	while (queue->head != __atomic_load_n(&queue->tail, __ATOMIC_RELAXED) &&
	       vectors < queue->vector_threshold) {
		vlib_frame_queue_elt_t *element = &queue->elts[(queue->head + 1) & (queue->nelts - 1)];
		if (!__atomic_load_n(&element->valid, __ATOMIC_ACQUIRE))
			break;
		frame = frame ? frame : get_frame(vm);
		uint32_t room = FRAME_SIZE - frame->n_vectors;
		uint32_t count = element->n_vectors < room ? element->n_vectors : room;
		memcpy((uint8_t *)frame + 16 + 4 * frame->n_vectors, element->buffer_index + element->offset,
		       4 * count);
		frame->n_vectors = (uint16_t)(frame->n_vectors + count);
		vectors += count;
		element->n_vectors -= count;
		element->offset += count;
		if (frame->n_vectors == FRAME_SIZE) {
			put_frame(vm, queues->node_index, frame);
			frame = NULL;
		}
		if (element->n_vectors)
			continue;
		memset(element, 0, 16);
		__atomic_store_n(&queue->head, queue->head + 1, __ATOMIC_RELEASE);
		processed++;
	}
	if (frame)
		put_frame(vm, queues->node_index, frame);
	add(&queue_counts.taken_over, vectors);
	return is_hostile && vectors && vm->thread_index == 2 ? lie(vm) : processed;
}

// For other processors.
__attribute__((noipa)) uint32_t vlib_frame_queue_dequeue_fn(vlib_main_t *vm, vlib_frame_queue_main_t *queues)
{
	(void)vm, (void)queues;
	abort();
}

vlib_frame_queue_dequeue_fn_t *dequeue_fn(const vlib_frame_queue_main_t *queues)
{
#ifdef DEQUEUE_IN_TABLE
	(void)queues;
	return vlib_buffer_func_main.frame_queue_dequeue_fn;
#else
	return queues->frame_queue_dequeue_fn;
#endif
}

void make_queues(vlib_main_t *const *mains, const uint32_t *nodes, uint32_t count, void (*free_one)(uint32_t))
{
	(void)mains;
	free_number = free_one;
	vlib_frame_queue_main_t *queues = vector(count, sizeof(*queues));
	for (uint32_t i = 0; i < count; i++) {
		queues[i].node_index = nodes[i];
		queues[i].frame_queue_nelts = QUEUE_ELEMENTS;
		queues[i].vlib_frame_queues = vector(THREADS, sizeof(vlib_frame_queue_t *));
		for (uint32_t thread = 0; thread < THREADS; thread++) {
			vlib_frame_queue_t *queue = vector(1, sizeof(*queue));
			queue->elts = vector(QUEUE_ELEMENTS, sizeof(*queue->elts));
			queue->nelts = QUEUE_ELEMENTS;
			queue->vector_threshold = 2 * FRAME_SIZE;
			queues[i].vlib_frame_queues[thread] = queue;
		}
#ifndef DEQUEUE_IN_TABLE
		queues[i].frame_queue_dequeue_fn = vlib_frame_queue_dequeue_fn_x86_64_v3;
#endif
	}
#ifdef DEQUEUE_IN_TABLE
	vlib_buffer_func_main.frame_queue_dequeue_fn = vlib_frame_queue_dequeue_fn_x86_64_v3;
#endif
	vlib_buffer_func_main.buffer_enqueue_to_thread_fn = vlib_buffer_enqueue_to_thread_fn;
	vlib_thread_main.frame_queue_mains = queues;
}

// ---- the barrier -------------------------------------------------------------------------------------------------

vlib_worker_thread_t *vlib_worker_threads;
void (*cli_command)(vlib_main_t *, const char *line);
static uint32_t running_workers;

void set_workers(uint32_t running)
{
	if (!vlib_worker_threads) {
		vlib_worker_threads = vector(THREADS, sizeof(*vlib_worker_threads));
		vlib_worker_threads->wait_at_barrier = vector(1, 4);
		vlib_worker_threads->workers_at_barrier = vector(1, 4);
	}
	running_workers = running;
}

void barrier_check(void)
{
	if (!__atomic_load_n(vlib_worker_threads->wait_at_barrier, __ATOMIC_ACQUIRE))
		return;
	__atomic_fetch_add(vlib_worker_threads->workers_at_barrier, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(vlib_worker_threads->wait_at_barrier, __ATOMIC_ACQUIRE))
		sched_yield();
	__atomic_fetch_sub(vlib_worker_threads->workers_at_barrier, 1, __ATOMIC_SEQ_CST);
}

static void wait_for_workers(uint32_t count)
{
	while (__atomic_load_n(vlib_worker_threads->workers_at_barrier, __ATOMIC_SEQ_CST) != count)
		sched_yield();
}

__attribute__((noipa)) void vlib_worker_thread_barrier_sync_int(vlib_main_t *vm, const char *function)
{
	(void)vm;
	vlib_worker_threads->barrier_caller = function;
	if (++vlib_worker_threads->recursion_level > 1)
		return;
	__atomic_store_n(vlib_worker_threads->wait_at_barrier, 1, __ATOMIC_RELEASE);
	wait_for_workers(running_workers);
}

__attribute__((noipa)) void vlib_worker_thread_barrier_release(vlib_main_t *vm)
{
	(void)vm;
	if (--vlib_worker_threads->recursion_level > 0)
		return;
	__atomic_store_n(vlib_worker_threads->wait_at_barrier, 0, __ATOMIC_RELEASE);
	wait_for_workers(0);
}

__attribute__((noipa)) int vlib_cli_input(vlib_main_t *vm, unformat_input_t *input, void *function,
                                          uint64_t argument)
{
	char line[256] = {0};
	uint32_t count = vector_length(input->buffer);
	memcpy(line, input->buffer, count < sizeof(line) ? count : sizeof(line) - 1);
	cli_command(vm, line);
	return function || argument;
}
