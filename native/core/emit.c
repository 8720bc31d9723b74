// SPDX-License-Identifier: Apache-2.0
// What is complete is copied from logs and pending batches into the columns that a take gives;
// dead rows are left out and indices rewritten. See stream.h.
#include "packet_id.h"
#include "stream.h"
#include <string.h>

static uint32_t *remap_reserve(struct nfp_pipeline *pipeline, uint32_t count)
{
	return NFP_ARRAY_RESERVE(&pipeline->remap, count) ? pipeline->remap.items : NULL;
}

// Room in all three columns for one more batch with these numbers of calls and packets.
static int delivered_reserve(struct nfp_pipeline *pipeline, uint32_t calls, uint32_t packets)
{
	return pipeline->calls.count + calls <= NFP_DELIVERED_CALLS_MAX &&
	       pipeline->packets.count + packets <= NFP_DELIVERED_PACKETS_MAX &&
	       NFP_ARRAY_RESERVE(&pipeline->calls, pipeline->calls.count + calls) &&
	       NFP_ARRAY_RESERVE(&pipeline->packets, pipeline->packets.count + packets) &&
	       NFP_ARRAY_RESERVE(&pipeline->batches, pipeline->batches.count + 1);
}

// Own time is what is left of a call's duration when those of its children are taken off.
static void charge_parent(struct nfp_call *calls, struct nfp_call *call)
{
	uint64_t duration = call->end_ticks - call->start_ticks;
	call->self_ticks = duration > call->self_ticks ? duration - call->self_ticks : 0;
	if (call->parent == NFP_NONE)
		return;
	uint64_t *self = &calls[call->parent].self_ticks;
	*self -= duration < *self ? duration : *self;
}

// What was counted in a call goes with its row in the calls of all batches.
static void deliver_counted(struct nfp_pipeline *pipeline, const struct nfp_log *out,
                            const struct nfp_call *call, uint32_t index)
{
	if (out == &pipeline->calls)
		nfp_counted_deliver(&pipeline->counted, call, index);
}

static void deliver_regular(struct nfp_pipeline *pipeline, struct nfp_log *out, const struct nfp_log *log,
                            uint32_t batch, uint32_t thread)
{
	uint32_t base = out->count;
	struct nfp_call *calls = out->items;
	for (uint32_t i = 0; i < log->count; i++) {
		struct nfp_call *call = &calls[base + i];
		*call = log->items[i];
		deliver_counted(pipeline, out, call, base + i);
		call->thread = thread;
		call->batch = batch;
		if (call->parent != NFP_NONE)
			call->parent += base;
		charge_parent(calls, call);
	}
	out->count += log->count;
}

// As above for a log with rows that are dead or have outlived their parents.
static void deliver_irregular(struct nfp_pipeline *pipeline, struct nfp_log *out, const struct nfp_log *log,
                              uint32_t batch, uint32_t thread, uint32_t *remap)
{
	struct nfp_call *calls = out->items;
	for (uint32_t i = 0; i < log->count; i++) {
		const struct nfp_call *row = &log->items[i];
		uint32_t parent = row->parent == NFP_NONE ? NFP_NONE : remap[row->parent];
		remap[i] = parent;
		if (row->function == NFP_NONE)
			continue;
		parent = nfp_parent_climb(calls, parent, row->end_ticks);
		remap[i] = out->count++;
		struct nfp_call *call = &calls[remap[i]];
		*call = *row;
		deliver_counted(pipeline, out, call, remap[i]);
		call->thread = thread;
		call->batch = batch;
		call->parent = parent;
		call->depth = (uint16_t)(parent == NFP_NONE ? 0 : calls[parent].depth + 1);
		charge_parent(calls, call);
	}
}

// A topic whose text is no longer known is left out.
static void deliver_topic(struct nfp_pipeline *pipeline, uint64_t digest)
{
	struct nfp_topic_entry *entry = nfp_topics_find(&pipeline->topics, digest);
	if (!entry || entry->given == pipeline->given + 1 ||
	    !NFP_ARRAY_RESERVE(&pipeline->given_topics, pipeline->given_topics.count + 1))
		return;
	entry->given = pipeline->given + 1;
	pipeline->given_topics.items[pipeline->given_topics.count++] = entry->topic;
}

static void deliver_packets(struct nfp_pipeline *pipeline, const struct nfp_pending *pending, uint32_t batch)
{
	struct nfp_packet *packets = pipeline->packets.items + pipeline->packets.count;
	for (uint32_t i = 0; i < pending->packets.count; i++) {
		packets[i] = pending->packets.items[i];
		packets[i].batch = batch;
		packets[i].id = nfp_packet_id(&packets[i]);
		if (packets[i].ip_version == NFP_VERSION_MESSAGE)
			deliver_topic(pipeline, packets[i].digest);
	}
	pipeline->packets.count += pending->packets.count;
}

static void deliver_calls(struct nfp_pipeline *pipeline, struct nfp_log *out,
                          const struct nfp_pending *pending, struct nfp_batch *batch, uint32_t index)
{
	uint32_t *remap = pending->log.irregular ? pipeline->remap.items : NULL;
	*batch = pending->batch;
	batch->first_call = out->count;
	if (remap)
		deliver_irregular(pipeline, out, &pending->log, index, batch->thread, remap);
	else
		deliver_regular(pipeline, out, &pending->log, index, batch->thread);
	batch->calls = out->count - batch->first_call;
}

void nfp_batch_deliver_again(struct nfp_pipeline *pipeline, struct nfp_pending *pending)
{
	uint32_t calls = pending->log.count, index = pipeline->reemitted_batches.count;
	pending->reemitted_take = pipeline->given + 1;
	pending->reemitted_index = NFP_NONE;
	if ((pending->log.irregular && !remap_reserve(pipeline, calls)) ||
	    !NFP_ARRAY_RESERVE(&pipeline->reemitted_calls, pipeline->reemitted_calls.count + calls) ||
	    !NFP_ARRAY_RESERVE(&pipeline->reemitted_batches, index + 1))
		return;
	pending->reemitted_index = pipeline->reemitted_batches.count++;
	deliver_calls(pipeline, &pipeline->reemitted_calls, pending,
	              &pipeline->reemitted_batches.items[index], index);
}

void nfp_batch_deliver(struct nfp_pipeline *pipeline, struct nfp_pending *pending)
{
	uint32_t *remap = pending->log.irregular ? remap_reserve(pipeline, pending->log.count) : NULL;
	pending->given_take = pipeline->given + 1;
	pending->given_index = NFP_NONE;
	if (!delivered_reserve(pipeline, pending->log.count, pending->packets.count) ||
	    (pending->log.irregular && !remap)) {
		pipeline->counts.discarded += pending->log.count + pending->packets.count;
		return;
	}
	uint32_t index = pending->given_index = pipeline->batches.count++;
	uint32_t first_packet = pipeline->packets.count;
	struct nfp_batch *batch = &pipeline->batches.items[index];
	deliver_calls(pipeline, &pipeline->calls, pending, batch, index);
	batch->first_packet = first_packet;
	batch->packets = pending->packets.count;
	deliver_packets(pipeline, pending, index);
	nfp_handovers_deliver(pipeline, pending, first_packet);
}

static void release(struct nfp_pipeline *pipeline, struct nfp_pending *pending)
{
	for (uint32_t i = 0; pending->kind == NFP_PENDING_MESSAGE_SCOPE && i < pending->packets.count; i++)
		nfp_message_late(pipeline, pending, i);
	for (uint32_t i = 0; pending->undone && i < pending->packets.count; i++)
		if (nfp_packet_is_here(&pending->packets.items[i]))
			nfp_packet_forget(pipeline, pending, i);
	nfp_handovers_release(pipeline, pending);
	pipeline->pending_batches--;
	pipeline->pending_calls -= pending->log.count;
	pipeline->pending_packets -= pending->packets.count;
	pending->batch.id = 0; // batch.c
	pending->next = pipeline->idle;
	pipeline->idle = pending;
}

uint64_t nfp_stream_deliver(struct nfp_pipeline *pipeline, struct nfp_stream *stream, int all)
{
	// Count only batches that had ended when the newest events that are matched were taken: what hands the packets on may
	// have been read since.
	uint64_t ended = stream->ended_matched;
	uint64_t patience = !pipeline->hands_over      ? NFP_LATER_BATCHES
	                    : pipeline->sees_handovers ? NFP_LATER_QUEUED
	                                               : NFP_LATER_HANDED;
	struct nfp_pending **link = &stream->ended;
	uint64_t left = 0;
	stream->turn_end.known = 0;
	while (*link) {
		struct nfp_pending *pending = *link;
		int given_up = pending->number + patience <= ended + 1 && pending->round < pipeline->round;
		int waits = pending->undone || nfp_tail_sampled_waits(pipeline, stream, pending) ||
		            nfp_handovers_wait(pipeline, pending) || nfp_share_waits(stream, pending) ||
		            nfp_handover_may_name(pipeline, stream, pending);
		if (pending->given_take ? pending->held : (waits || pending->held) && !given_up && !all) {
			link = &pending->next;
			left++;
			continue;
		}
		nfp_tail_sampled_give_up(stream, pending);
		if (!pending->given_take) {
			nfp_handovers_drop(pipeline, pending);
			nfp_batch_deliver(pipeline, pending);
		}
		if (pending->held) { // by packets that are not delivered
			link = &pending->next;
			left++;
			continue;
		}
		*link = pending->next;
		release(pipeline, pending);
	}
	stream->ended_last = link;
	return left;
}

void nfp_batches_deliver(struct nfp_pipeline *pipeline, int all)
{
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (pipeline->streams[i] && pipeline->streams[i]->ended)
			nfp_stream_deliver(pipeline, pipeline->streams[i], all);
}

// Calls outside any batch: delivered when their outermost call has ended, by the second take that sees them
// (until then they may turn out to be inside a receive call, whose record comes after them). A call that
// stays open over a whole interval between two takes (main, an event loop) does not hold the calls below it
// back, and neither does any call once 4,096 rows have gathered: they are delivered with parent NONE, and the
// open call's own time still leaves them out.

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
	uint32_t *remap = remap_reserve(pipeline, log->count);
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
