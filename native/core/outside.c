// SPDX-License-Identifier: Apache-2.0
// Calls outside any batch: delivered when their outermost call has ended, by the second take that sees them
// (until then they may turn out to be inside a receive call, whose record comes after them). A call that
// stays open over a whole interval between two takes (main, an event loop) does not hold the calls below it
// back, and neither does any call once 4,096 rows have gathered: they are delivered with parent NONE, and the
// open call's own time still leaves them out. See stream.h.
#include "stream.h"

enum { KEPT = 0x80000000u }; // in the remap table: the index is one of the log, not of the columns

// The first row that has to wait: one not seen before, or that of the outermost call which is open for the
// first time.
static uint32_t first_waiting(struct nfp_stream *stream)
{
	uint32_t seen = stream->outside_seen;
	for (uint32_t i = 0; i < stream->tree.count; i++) {
		struct nfp_open *open = &stream->tree.items[i];
		if (!(open->flags & NFP_OPEN_AGED) && open->row != NFP_NONE)
			return open->row < seen ? open->row : seen;
	}
	return seen;
}

// A call that has ended waits together with the calls inside it.
static uint32_t keep_together(const struct nfp_log *log, uint32_t waiting)
{
	if (waiting >= log->count)
		return log->count;
	for (uint32_t parent = log->items[waiting].parent; parent != NFP_NONE;
	     parent = log->items[parent].parent)
		if (log->items[parent].end_ticks)
			waiting = parent;
	return waiting;
}

static void deliver_row(struct nfp_pipeline *pipeline, struct nfp_log *log, const struct nfp_call *row,
                        uint32_t parent, uint32_t thread)
{
	struct nfp_call *calls = pipeline->calls.items;
	struct nfp_call *call = &calls[pipeline->calls.count++];
	uint64_t duration = row->end_ticks - row->start_ticks;
	if (parent == NFP_NONE || !(parent & KEPT))
		parent = nfp_parent_climb(calls, parent, row->end_ticks);
	*call = *row;
	nfp_counted_deliver(&pipeline->counted, call, pipeline->calls.count - 1);
	call->thread = thread;
	call->self_ticks = duration > row->self_ticks ? duration - row->self_ticks : 0;
	call->parent = parent == NFP_NONE || parent & KEPT ? NFP_NONE : parent;
	call->depth = (uint16_t)(call->parent == NFP_NONE ? 0 : calls[parent].depth + 1);
	if (parent == NFP_NONE)
		return;
	if (parent & KEPT) {
		log->items[parent & ~KEPT].self_ticks += duration;
	} else {
		uint64_t *self = &calls[parent].self_ticks;
		*self -= duration < *self ? duration : *self;
	}
}

static void keep_row(struct nfp_log *log, const struct nfp_call *row, uint32_t parent)
{
	struct nfp_call kept = *row;
	kept.parent = parent != NFP_NONE && parent & KEPT ? parent & ~KEPT : NFP_NONE;
	kept.depth = (uint16_t)(kept.parent == NFP_NONE ? 0 : log->items[kept.parent].depth + 1);
	log->items[log->count++] = kept;
}

static void deliver_before(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t waiting,
                           uint32_t *remap)
{
	struct nfp_log *log = &stream->outside;
	uint32_t count = log->count;
	log->count = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_call row = log->items[i];
		uint32_t parent = row.parent == NFP_NONE ? NFP_NONE : remap[row.parent];
		remap[i] = parent;
		if (row.function == NFP_NONE)
			continue;
		if (row.end_ticks && i < waiting) {
			if (row.start_ticks > stream->gone_ticks)
				stream->gone_ticks = row.start_ticks;
			remap[i] = pipeline->calls.count;
			deliver_row(pipeline, log, &row, parent, stream->thread);
		} else {
			remap[i] = log->count | KEPT;
			keep_row(log, &row, parent);
		}
	}
	for (uint32_t i = 0; stream->log == log && i < stream->tree.count; i++) {
		uint32_t *row = &stream->tree.items[i].row;
		if (*row != NFP_NONE)
			*row = remap[*row] & ~KEPT;
	}
	log->irregular = 0;
}

void nfp_outside_deliver(struct nfp_pipeline *pipeline, struct nfp_stream *stream, int all)
{
	struct nfp_log *log = &stream->outside;
	uint32_t waiting = all || stream->log != log ? log->count : keep_together(log, first_waiting(stream));
	uint32_t *remap = nfp_remap_reserve(pipeline, log->count);
	if (log->count && remap && pipeline->calls.count + log->count <= NFP_DELIVERED_CALLS_MAX &&
	    NFP_ARRAY_RESERVE(&pipeline->calls, pipeline->calls.count + log->count)) {
		deliver_before(pipeline, stream, waiting, remap);
	} else if (log->count) {
		pipeline->counts.discarded += log->count;
		stream->gone_ticks = stream->last_ticks;
		for (uint32_t i = 0; stream->log == log && i < stream->tree.count; i++)
			stream->tree.items[i].row = NFP_NONE;
		log->count = log->irregular = 0;
	}
	stream->outside_limit = log->count + NFP_OUTSIDE_CALLS;
	stream->outside_seen = log->count;
	for (uint32_t i = 0; !all && i < stream->tree.count; i++)
		stream->tree.items[i].flags |= NFP_OPEN_AGED;
}
