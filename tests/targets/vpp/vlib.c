// SPDX-License-Identifier: Apache-2.0
// The double's libvlib: exports what VPP's exports, and holds the data that it leads to. See vlib.h.
#include "vlib.h"
#include <stdlib.h>
#include <string.h>

#if RELEASE == 2606
struct vlib_global_main vlib_global_main;
const char *vlib_plugin_app_version = "26.06-release"; // what plugins are compared with
#else
vlib_main_t vlib_global_main;
vlib_main_t **vlib_mains;
#endif

enum { LENGTH_AT = -8, ROOM_AT = -16 }; // of a vector, from its first element on

void *vector(uint32_t count, size_t element_bytes)
{
	uint8_t *memory = aligned_alloc(64, (64 + count * element_bytes + 63) / 64 * 64);
	if (!memory)
		abort();
	memset(memory, 0, 64 + count * element_bytes);
	memcpy(memory + 64 + ROOM_AT, &count, sizeof(count));
	memcpy(memory + 64 + LENGTH_AT, &count, sizeof(count));
	return memory + 64;
}

uint32_t vector_length(const void *elements)
{
	return *(const uint32_t *)((const uint8_t *)elements + LENGTH_AT);
}

void vector_set_length(void *elements, uint32_t count)
{
	memcpy((uint8_t *)elements + LENGTH_AT, &count, sizeof(count));
}

vlib_pending_frame_t *vector_with_room(vlib_pending_frame_t *frames)
{
	uint32_t count = vector_length(frames), room;
	memcpy(&room, (const uint8_t *)frames + ROOM_AT, sizeof(room));
	if (count < room)
		return frames;
	vlib_pending_frame_t *more = vector(2 * room, sizeof(*more));
	memcpy(more, frames, count * sizeof(*more));
	vector_set_length(more, count);
	free((uint8_t *)frames - 64);
	return more;
}

static void make_pending(struct vlib_node_main *graph, vlib_pending_frame_t pending)
{
	vlib_pending_frame_t *frames = vector_with_room(graph->pending_frames);
	if (frames != graph->pending_frames)
		graph->pending_frames = frames;
	uint32_t count = vector_length(frames);
	frames[count] = pending;
	vector_set_length(frames, count + 1);
	pending.frame->flags[0] |= FRAME_PENDING;
}

void vlib_put_frame_to_node(vlib_main_t *vm, uint32_t node_index, vlib_frame_t *frame)
{
	struct vlib_node_main *graph = &vm->node_main;
	make_pending(graph, (vlib_pending_frame_t){
	                        .frame = frame,
	                        .node_runtime_index = graph->nodes[node_index]->runtime_index,
	                        .next_frame_index = NO_NEXT_FRAME});
}

void vlib_put_next_frame(vlib_main_t *vm, vlib_node_runtime_t *node, uint32_t next_index,
                         uint32_t vectors_left)
{
	struct vlib_node_main *graph = &vm->node_main;
	vlib_next_frame_t *next = &graph->next_frames[next_index];
	vlib_frame_t *frame = next->frame;
	frame->n_vectors = (uint16_t)(FRAME_SIZE - vectors_left);
	node->rest[0] = (uint8_t)next_index;
	if (frame->flags[0] & FRAME_PENDING || !frame->n_vectors)
		return;
	vlib_pending_frame_t *frames = vector_with_room(graph->pending_frames);
	if (frames != graph->pending_frames)
		graph->pending_frames = frames;
	uint32_t count = vector_length(frames);
	frames[count].frame = frame;
	frames[count].node_runtime_index = next->node_runtime_index;
	frames[count].next_frame_index = next_index;
	vector_set_length(frames, count + 1);
	frame->flags[0] |= FRAME_PENDING;
}
