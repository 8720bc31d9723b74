// SPDX-License-Identifier: Apache-2.0
// A double of FD.io VPP's vlib, made from facts about its layout and its way of calling nodes because VPP is not
// packaged here; none of its code is in it. RELEASE says which layout: 2606 is VPP 26.06's as it was measured, 1903
// stands for early releases: other offsets, vlib_mains apart, n_vectors elsewhere, no node "drop".
#ifndef NFPROBE_TESTS_VLIB_H
#define NFPROBE_TESTS_VLIB_H
#include <stddef.h>
#include <stdint.h>

#ifndef RELEASE
#define RELEASE 2606
#endif

enum { NODES = 300, FRAME_SIZE = 256, THREADS = 3 };
enum node_type { INTERNAL = 0, INPUT = 1, PRE_INPUT = 2, PROCESS = 3, TYPES = 5 };
#if RELEASE == 2606
enum {
	NODE_MAIN = 344,
	BUFFER_MAIN = 296,
	NODE_TYPE = 120,
	BY_TYPE = 24,
	NODE_INDEX = 40,
	N_VECTORS = 10,
	NEXT = 112
};
#else
enum {
	NODE_MAIN = 1128,
	BUFFER_MAIN = 96,
	NODE_TYPE = 168,
	BY_TYPE = 40,
	NODE_INDEX = 52,
	N_VECTORS = 6,
	NEXT = 128
};
#endif
enum { FRAME_PENDING = 4 };
#define NO_NEXT_FRAME 0xffffffffu

typedef struct vlib_main vlib_main_t;
typedef struct vlib_node_runtime vlib_node_runtime_t;
typedef struct vlib_frame {
#if RELEASE == 2606
	uint16_t flags[2], scalar_offset, vector_offset, aux_offset;
#else
	uint16_t flags[2];
	uint8_t scalar_size, vector_size;
#endif
	uint16_t n_vectors;
	uint8_t arguments[32 - N_VECTORS - 2 + 4 * FRAME_SIZE]; // numbers of buffers, from 16 or 32 on
} vlib_frame_t;
typedef uint64_t vlib_node_function_t(vlib_main_t *, vlib_node_runtime_t *, vlib_frame_t *);

struct vlib_node_runtime {
	vlib_node_function_t *function;
	void *errors;
	uint32_t clocks, max_clock, max_clock_n, calls, vectors;
	uint32_t gap[(NODE_INDEX - 36) / 4];
	uint32_t node_index;
	uint8_t rest[128 - NODE_INDEX - 4];
};

typedef struct vlib_node {
	vlib_node_function_t *function;
	uint8_t *name; // a vector of bytes
	uint64_t name_number;
	uint64_t total[(NODE_TYPE - 24) / 16], cleared[(NODE_TYPE - 24) / 16]; // calls, vectors and more
	uint32_t type, index, runtime_index;
	uint32_t gap[10], error_heap_index;
	uint8_t rest[212];
} vlib_node_t;

typedef struct { // the frame that is being filled for a node
	vlib_frame_t *frame;
	uint32_t node_runtime_index, flags, vectors_since_last_overflow;
} vlib_next_frame_t;

typedef struct {
#if RELEASE == 2606
	vlib_frame_t *frame;
	uint32_t node_runtime_index, next_frame_index;
#else
	uint32_t node_runtime_index;
	vlib_frame_t *frame;
	uint32_t next_frame_index;
#endif
} vlib_pending_frame_t;

struct vlib_node_main {
	vlib_node_t **nodes;
	uint8_t gap[BY_TYPE - 8];
	vlib_node_runtime_t *nodes_by_type[TYPES];
	uint8_t gap_of_next[NEXT - BY_TYPE - 8 * TYPES];
	vlib_next_frame_t *next_frames; // in this double one for each node
	vlib_pending_frame_t *pending_frames;
	uint64_t gap_of_errors[20];
	uint32_t *node_by_error;
};

typedef struct {
	char *name, *desc;
	uint32_t severity, stats_entry_index;
} vlib_error_desc_t;

struct vlib_buffer_main {
	uintptr_t buffer_mem_start;
	uintptr_t buffer_mem_size;
};

struct vlib_main {
	uint8_t before[BUFFER_MAIN];
	struct vlib_buffer_main *buffer_main;
	uint8_t between[NODE_MAIN - BUFFER_MAIN - 8];
	struct vlib_node_main node_main;
	uint8_t after[480];
	struct {
		uint64_t *counters, *counters_last_clear;
		vlib_error_desc_t *counters_heap;
	} error_main;
	// Of this double.
	uint64_t left; // packets that are still to be received
	uint32_t received, transmitted, dropped, punted;
	vlib_frame_t frames[NODES], *free_frames[NODES];
	uint32_t free_count;
	uint32_t crypto[1024], crypto_count, crypto_done; // packets that are encrypted; the first ones are done
	uint32_t piped[1024], piped_count; // packets that wait at the other end of a pipe
	uint32_t thread_index;
};

void vlib_put_next_frame(vlib_main_t *, vlib_node_runtime_t *, uint32_t next_index, uint32_t vectors_left);
void vlib_put_frame_to_node(vlib_main_t *, uint32_t node_index, vlib_frame_t *);
void *vector(uint32_t count, size_t element_bytes); // the length stands eight bytes before the first element
uint32_t vector_length(const void *elements);
void vector_set_length(void *elements, uint32_t count);
vlib_pending_frame_t *vector_with_room(vlib_pending_frame_t *frames); // for one more

#if RELEASE == 2606
struct vlib_global_main {
	vlib_main_t **vlib_mains;
	uint8_t rest[256];
};
extern struct vlib_global_main vlib_global_main;
#else
extern vlib_main_t vlib_global_main;
extern vlib_main_t **vlib_mains;
#endif

_Static_assert(sizeof(vlib_node_runtime_t) == 128, "a runtime is two cache lines");
_Static_assert(offsetof(vlib_frame_t, n_vectors) == N_VECTORS, "a frame");
_Static_assert(offsetof(vlib_main_t, node_main) == NODE_MAIN, "the main structure");
_Static_assert(offsetof(vlib_node_t, type) == NODE_TYPE, "a node");
#endif
