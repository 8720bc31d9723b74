// SPDX-License-Identifier: Apache-2.0
// The double's frame queues between threads, laid out as VPP's: as of 22.06, or with DEQUEUE_IN_TABLE as of 22.02. See
// vpp.c.
#ifndef NFPROBE_TESTS_QUEUES_H
#define NFPROBE_TESTS_QUEUES_H
#include "vlib.h"

enum { QUEUE_ELEMENTS = 16, LINE = 64 }; // a power of two

typedef struct {
	volatile uint32_t valid;
	uint32_t maybe_trace, n_vectors, offset;
	uint8_t rest[LINE - 16];
	uint32_t buffer_index[FRAME_SIZE], aux_data[FRAME_SIZE];
} vlib_frame_queue_elt_t;

typedef struct {
	vlib_frame_queue_elt_t *elts;
	uint64_t vector_threshold, trace;
	uint32_t nelts;
	uint8_t rest[LINE - 28];
	uint64_t tail;
	uint8_t rest_of_tail[LINE - 8];
	uint64_t head;
	uint8_t rest_of_head[LINE - 8];
} vlib_frame_queue_t;

typedef struct vlib_frame_queue_main vlib_frame_queue_main_t;
typedef uint32_t vlib_frame_queue_dequeue_fn_t(vlib_main_t *, vlib_frame_queue_main_t *);
typedef uint32_t vlib_buffer_enqueue_to_thread_fn_t(vlib_main_t *, vlib_node_runtime_t *, uint32_t queue,
                                                    uint32_t *numbers, uint16_t *threads, uint32_t count,
                                                    int drop_on_congestion);

struct vlib_frame_queue_main {
	uint32_t node_index, frame_queue_nelts;
	vlib_frame_queue_t **vlib_frame_queues; // of each thread
	void *traces, *histogram;
#ifndef DEQUEUE_IN_TABLE
	vlib_frame_queue_dequeue_fn_t *frame_queue_dequeue_fn;
#endif
};

extern struct vlib_buffer_func_main {
	void *enqueue_to_next, *enqueue_to_single_next;
	vlib_buffer_enqueue_to_thread_fn_t *buffer_enqueue_to_thread_fn;
#ifdef DEQUEUE_IN_TABLE
	vlib_frame_queue_dequeue_fn_t *frame_queue_dequeue_fn;
#endif
} vlib_buffer_func_main;

extern struct vlib_thread_main {
	void *next, *registrations, *by_name, *worker_threads;
	uint32_t numbers[8];
	vlib_frame_queue_main_t *frame_queue_mains;
	uint64_t rest[4];
} vlib_thread_main;

typedef struct {
	volatile uint32_t *wait_at_barrier, *workers_at_barrier;
	uint8_t rest[LINE - 16];
	uint64_t of_thread[5];
	uint64_t recursion_level, rest_of_thread[7];
	const char *barrier_caller, *barrier_context;
	uint64_t lwp; // the kernel's number of the thread
	uint64_t more[8];
} vlib_worker_thread_t;
extern vlib_worker_thread_t *vlib_worker_threads; // one for each thread
_Static_assert(sizeof(vlib_worker_thread_t) == 4 * LINE, "whole lines");
typedef struct {
	uint8_t *buffer; // a vector
	uint64_t index;
	void *rest[5];
} unformat_input_t;

void vlib_worker_thread_barrier_sync_int(vlib_main_t *, const char *function);
void vlib_worker_thread_barrier_release(vlib_main_t *);
int vlib_cli_input(vlib_main_t *, unformat_input_t *, void *function, uint64_t argument);

// Of this double.
void barrier_check(void); // of a worker, once a turn
void set_workers(uint32_t running); // which the main thread waits for
extern void (*cli_command)(vlib_main_t *, const char *line);
extern int overflows, is_hostile;
extern struct queue_counts {
	uint32_t handed_over, dropped, taken_over;
} queue_counts;

void tell_truth(vlib_main_t *vm); // after a call that took packets over
void make_queues(vlib_main_t *const *mains, const uint32_t *nodes, uint32_t count,
                 void (*free_one)(uint32_t));
vlib_frame_queue_dequeue_fn_t *dequeue_fn(const vlib_frame_queue_main_t *queues);
#endif
