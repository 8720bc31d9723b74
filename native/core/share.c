// SPDX-License-Identifier: Apache-2.0
// Shares: a call whose frame holds packets of other batches of its turn than the last one, or of several of them, goes to
// those batches (native/probe/share.c). One that belongs to a single batch moves there with all that is inside it. One that
// belongs to several is cut at the times that their packets take of it, in the order in which they stand in the frame: each
// batch gets its part, with its packets as the value's lower half. A call with probed calls inside is not cut; the batch
// with most of its packets has it. See stream.h.
#include "stream.h"
#include "abi/record.h"
#include <string.h>

enum { ROW_STEPS = 2, BATCHES_BEHIND = 64 }; // later batches of a turn for which one that has ended waits

void nfp_share_note(struct nfp_stream *stream, const struct nfp_record *record)
{
	struct nfp_shares *shares = &stream->shares;
	if (shares->sp != record->sp || shares->function != nfp_record_function(record))
		shares->count = 0;
	shares->sp = record->sp;
	shares->function = nfp_record_function(record);
	shares->seen = 1;
	shares->found = 0;
	if (shares->count == NFP_SHARES_MAX)
		return;
	shares->items[shares->count++] =
	    (struct nfp_share){.ticks = record->value >> 16, .packets = record->value & 0xffff};
}

// Calls of a batch stand in the order of their start.
static int takes(const struct nfp_log *log, uint64_t start_ticks)
{
	return !log->count || log->items[log->count - 1].start_ticks <= start_ticks;
}

static int is_last(const struct nfp_stream *stream, const struct nfp_pending *pending)
{
	return !pending || pending == stream->batch;
}

// Finds the batches of the call's shares, once. What is not here any more is left with the last one.
static void find_batches(struct nfp_stream *stream)
{
	struct nfp_shares *shares = &stream->shares;
	for (uint32_t i = 0; i < shares->count && !shares->found; i++) {
		struct nfp_share *share = &shares->items[i];
		share->pending = nfp_recent_find(stream, nfp_whole_ticks(stream, share->ticks));
		if (share->pending && share->pending->given_take)
			share->pending = NULL;
	}
	shares->found = 1;
}

// Leaves with the last batch what cannot stand behind the calls of its own one. Returns the packets.
static uint32_t leave_earlier(struct nfp_shares *shares, uint64_t start_ticks)
{
	uint32_t packets = 0;
	for (uint32_t i = 0; i < shares->count; i++) {
		struct nfp_share *share = &shares->items[i];
		if (share->pending && !takes(&share->pending->log, start_ticks))
			share->pending = NULL;
		packets += share->packets;
	}
	return packets;
}

static const struct nfp_share *largest(const struct nfp_shares *shares)
{
	const struct nfp_share *found = &shares->items[0];
	for (uint32_t i = 1; i < shares->count; i++)
		if (shares->items[i].packets > found->packets)
			found = &shares->items[i];
	return found;
}

static void reach(struct nfp_batch *batch, uint64_t end_ticks)
{
	if (batch->end_ticks < end_ticks)
		batch->end_ticks = end_ticks;
}

// The rows of the last batch from `row` on go behind those of another batch.
static void move_rows(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t row,
                      struct nfp_pending *to)
{
	struct nfp_log *log = stream->log;
	uint32_t count = log->count - row, base = to->log.count;
	if (base + count > NFP_BATCH_CALLS_MAX || !NFP_ARRAY_RESERVE(&to->log, base + count))
		return;
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_call *moved = &to->log.items[base + i];
		*moved = log->items[row + i];
		moved->parent = i && moved->parent != NFP_NONE ? moved->parent - row + base : NFP_NONE;
		moved->depth =
		    (uint16_t)(moved->parent == NFP_NONE ? 0 : to->log.items[moved->parent].depth + 1);
	}
	to->log.count += count;
	to->log.irregular |= log->irregular;
	reach(&to->batch, to->log.items[base].end_ticks);
	pipeline->pending_calls += count;
	log->count = row;
}

// The part of a call that begins behind `before` of its packets.
static struct nfp_call part_of(const struct nfp_call *call, uint64_t before, uint64_t packets, uint64_t all)
{
	uint64_t ticks = call->end_ticks - call->start_ticks;
	struct nfp_call part = *call;
	part.start_ticks = call->start_ticks + (uint64_t)((unsigned __int128)ticks * before / all);
	part.end_ticks = call->start_ticks + (uint64_t)((unsigned __int128)ticks * (before + packets) / all);
	part.cost_ticks = (uint32_t)(call->cost_ticks * packets / all);
	part.value = (call->value & ~(uint64_t)UINT32_MAX) | packets;
	part.flags |= NFP_CALL_SHARED | (before ? NFP_CALL_CONTINUED : 0);
	part.thread = before ? 0 : call->thread; // what was counted stays with the first part
	return part;
}

// The call, the last row of its log, is cut into parts.
static void cut_row(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t row, uint32_t all)
{
	const struct nfp_shares *shares = &stream->shares;
	const struct nfp_call call = stream->log->items[row];
	uint64_t before = 0;
	for (uint32_t i = 0; i < shares->count; i++) // all or nothing
		if (!is_last(stream, shares->items[i].pending) &&
		    !NFP_ARRAY_RESERVE(&shares->items[i].pending->log,
		                       shares->items[i].pending->log.count + shares->count))
			return;
	if (!NFP_ARRAY_RESERVE(stream->log, row + shares->count))
		return;
	stream->log->count = row;
	for (uint32_t i = 0; i < shares->count; i++) {
		const struct nfp_share *share = &shares->items[i];
		int stays = is_last(stream, share->pending);
		struct nfp_log *log = stays ? stream->log : &share->pending->log;
		struct nfp_call *part = &log->items[log->count++];
		*part = part_of(&call, before, share->packets, all);
		before += share->packets;
		if (stays)
			continue;
		part->parent = NFP_NONE;
		part->depth = 0;
		reach(&share->pending->batch, part->end_ticks);
		pipeline->pending_calls++;
	}
}

// Whether the row's call was the innermost one, so that all rows behind it are inside it.
static int is_whole(struct nfp_stream *stream, uint32_t row)
{
	const struct nfp_calltree *tree = &stream->tree;
	uint32_t innermost = tree->count ? tree->items[tree->count - 1].row : NFP_NONE;
	return (innermost == NFP_NONE || innermost < row) && !stream->log->irregular;
}

int nfp_share_is_of(const struct nfp_stream *stream, uint32_t function, uint32_t sp)
{
	return stream->shares.count && stream->shares.sp == sp && stream->shares.function == function;
}

void nfp_share_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t row)
{
	struct nfp_shares *shares = &stream->shares;
	if (row != NFP_NONE && stream->log != &stream->outside && row < stream->log->count &&
	    is_whole(stream, row) &&
	    nfp_calltree_affords(&stream->tree, stream->log->count - row + shares->count, ROW_STEPS)) {
		find_batches(stream);
		uint32_t all = leave_earlier(shares, stream->log->items[row].start_ticks);
		struct nfp_pending *most = largest(shares)->pending;
		if (shares->count > 1 && all && stream->log->count == row + 1)
			cut_row(pipeline, stream, row, all);
		else if (!is_last(stream, most))
			move_rows(pipeline, stream, row, most);
	}
	shares->count = 0;
}

void nfp_share_count(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_open *open,
                     enum nfp_disposition disposition, uint64_t packets)
{
	struct nfp_shares *shares = &stream->shares;
	const uint32_t count = nfp_share_is_of(stream, open->function, open->sp) ? shares->count : 0;
	uint64_t left = packets;
	if (count)
		find_batches(stream);
	for (uint32_t i = 0; i < count && left; i++) {
		const struct nfp_share *share = &shares->items[i];
		uint64_t part = share->packets < left ? share->packets : left;
		if (is_last(stream, share->pending))
			continue;
		nfp_count_done(pipeline, share->pending, disposition, part);
		left -= part;
	}
	nfp_count_done(pipeline, stream->batch, disposition, left);
}

int nfp_share_waits(const struct nfp_stream *stream, const struct nfp_pending *pending)
{
	return stream->shares.seen && stream->batch && stream->batch->turn == pending->turn &&
	       stream->ended_total < pending->number + BATCHES_BEHIND;
}
