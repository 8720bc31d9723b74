// SPDX-License-Identifier: Apache-2.0
// See pipeline.h. This file reads the records one by one and leaves the work to calltree.h and, by way of
// stream.h, to batch.c, packet.c, match.c, emit.c and outside.c.
#include "pipeline.h"
#include "stream.h"
#include "sweep.h"
#include <string.h>

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

// Only the records of signal handlers stand out of order: the interrupted probe had read its time before. What is much
// earlier is another time line. It may change all that is open: to be called first.
static uint64_t ticks_of(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                         const struct nfp_record *record)
{
	if (record->word > stream->last_ticks)
		stream->last_ticks = record->word;
	else if (UNLIKELY(stream->last_ticks - record->word > NFP_STEP_TICKS))
		nfp_stream_step_back(pipeline, stream, record->word);
	return stream->last_ticks;
}

static void read_entry(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                       const struct nfp_record *record)
{
	uint64_t ticks = ticks_of(pipeline, stream, record);
	uint32_t function = nfp_record_function(record), role = pipeline->roles.items[function];
	if (stream->log == &stream->outside) {
		if (UNLIKELY(stream->log->count >= stream->outside_limit))
			nfp_outside_deliver(pipeline, stream, 1);
	} else if (UNLIKELY(stream->log->count >= NFP_BATCH_CALLS_MAX)) {
		nfp_batch_close(pipeline, stream, record->rsp);
	}
	if (UNLIKELY(role && stream->tree.credit < 0))
		nfp_calltree_pay(&stream->tree, stream->log);
	if (UNLIKELY(role == NFP_ROLE_TURN))
		nfp_turn_begin(pipeline, stream, ticks, function, record->rsp);
	struct nfp_open *open = nfp_calltree_enter(&stream->tree, stream->log, ticks, function, record->rsp);
	if (UNLIKELY(stream->readings.pairs) && open)
		nfp_counted_enter(&pipeline->counted, &stream->readings, stream->log, open->row, record->rsp);
	if (!role || !open)
		return;
	open->role = (uint16_t)role;
	if (role == NFP_ROLE_AROUND && !(stream->batch && stream->batch->kind == NFP_PENDING_AROUND))
		stream->facts.length = stream->facts.number = 0;
	if (open->row != NFP_NONE)
		stream->log->items[open->row].flags = nfp_role_flag(role);
	if (stream->tree.count == 1)
		nfp_handed_cut(stream, 0);
	open->handed = stream->handed.count;
}

static void read_exit(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                      const struct nfp_record *record, uint16_t flags)
{
	struct nfp_calltree *tree = &stream->tree;
	uint64_t ticks = ticks_of(pipeline, stream, record);
	uint32_t index = nfp_calltree_find(tree, nfp_record_function(record), record->rsp);
	if (UNLIKELY(index == NFP_NONE)) {
		uint32_t role = pipeline->roles.items[nfp_record_function(record)];
		tree->unpaired_exits += !nfp_detail_is_ungated(pipeline, stream, role);
		nfp_calltree_displace(tree, stream->log, record->rsp, 0);
		return;
	}
	if (UNLIKELY(tree->items[index].role == NFP_ROLE_SEND))
		nfp_message_sent(pipeline, stream, index);
	else if (UNLIKELY(nfp_role_hands_on(tree->items[index].role)))
		nfp_packet_call_end(pipeline, stream, index);
	else if (UNLIKELY(tree->items[index].role >= NFP_ROLE_COMMAND))
		nfp_hold_call_end(pipeline, stream, &tree->items[index], ticks);
	int enclosing = index < tree->enclosing;
	uint32_t row = tree->items[index].row;
	nfp_calltree_leave(tree, stream->log, index, ticks, flags);
	if (UNLIKELY(pipeline->counted.items) && row != NFP_NONE)
		nfp_counted_leave(&pipeline->counted, &stream->readings, stream->log, row, record->rsp);
	if (UNLIKELY(nfp_share_is_of(stream, nfp_record_function(record), record->rsp)))
		nfp_share_end(pipeline, stream, row);
	// A call around the batch has returned and its packets are gone: what follows is another matter.
	if (UNLIKELY(enclosing) && stream->batch &&
	    (stream->batch->kind == NFP_PENDING_AROUND || stream->batch->handed >= stream->batch->batch.size))
		nfp_batch_end(pipeline, stream, record->rsp);
}

static void read_mark(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                      const struct nfp_record *record)
{
	read_entry(pipeline, stream, record);
	uint32_t index = nfp_calltree_find(&stream->tree, nfp_record_function(record), record->rsp);
	if (index == NFP_NONE)
		return; // no memory: counted
	uint32_t row = stream->tree.items[index].row;
	nfp_calltree_leave(&stream->tree, stream->log, index, ticks_of(pipeline, stream, record),
	                   NFP_CALL_MARK);
	if (UNLIKELY(pipeline->counted.items) && row != NFP_NONE)
		nfp_counted_mark(&pipeline->counted, stream->log, row);
	stream->tree.paired--;
	pipeline->counts.marked++;
}

static void read_value(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                       const struct nfp_record *record)
{
	uint32_t index = nfp_calltree_find(&stream->tree, nfp_record_function(record), record->rsp);
	if (index == NFP_NONE) {
		pipeline->counts.invalid++;
		return;
	}
	uint32_t role = stream->tree.items[index].role;
	// Readings before a snippet's value are no exit's; the value of these is written together with the exit.
	if (!nfp_role_hands_on(role) || role == NFP_ROLE_SEND || role == NFP_ROLE_FREE)
		stream->readings.pairs = 0;
	if (!nfp_message_value(stream, stream->tree.items[index].role, record->word))
		return;
	stream->tree.items[index].value = record->word;
	stream->tree.items[index].flags |= NFP_OPEN_VALUE;
}

static void read_poll_entry(struct nfp_stream *stream, const struct nfp_record *record)
{
	stream->tree.unpaired_entries += stream->poll.valid;
	stream->poll.start_ticks = record->word;
	stream->poll.function = nfp_record_function(record);
	stream->poll.rsp = record->rsp;
	stream->poll.valid = 1;
	stream->poll.earliest_ticks = stream->poll.arrival_ticks = stream->poll.queue = 0;
	stream->poll.readings.pairs = 0;
	if (UNLIKELY(stream->readings.pairs))
		stream->poll.readings = stream->readings;
	stream->readings.pairs = 0;
}

static void read_poll_queue(struct nfp_stream *stream, const struct nfp_record *record)
{
	if (!stream->poll.valid || stream->poll.function != nfp_record_function(record))
		return; // its POLL_ENTRY was lost: so is the poll
	stream->poll.earliest_ticks = record->word;
	stream->poll.queue = record->rsp;
}

static void read_batch_arrival(struct nfp_stream *stream, const struct nfp_record *record)
{
	if (stream->poll.valid && stream->poll.function == nfp_record_function(record))
		stream->poll.arrival_ticks = record->word;
}

static void end_poll(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                     const struct nfp_record *record)
{
	if (!stream->poll.valid || stream->poll.function != nfp_record_function(record)) {
		stream->tree.unpaired_exits++;
		return;
	}
	uint64_t ticks = ticks_of(pipeline, stream, record);
	stream->poll.valid = 0;
	stream->tree.paired++;
	// A receive call around one that has begun a batch (a bonded port) returned the same packets again.
	if (stream->batch && stream->poll.start_ticks <= stream->batch->batch.start_ticks)
		return;
	if (stream->poll.queue & NFP_QUEUE_UNDETAILED)
		nfp_detail_close(pipeline, stream);
	nfp_batch_begin(pipeline, stream, ticks, record->rsp & 0xffff, record->rsp >> 16);
	stream->poll.lossy = 0;
	if (UNLIKELY(stream->outside.count >= stream->outside_limit && stream->log == &stream->outside))
		nfp_outside_deliver(pipeline, stream, 1); // polls that return nothing have rows there, too
	nfp_pending_bound(pipeline);
}

static void read_poll_exit(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                           const struct nfp_record *record)
{
	end_poll(pipeline, stream, record);
	stream->readings.pairs = 0; // of this call or of none
}

static void read_lost(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                      const struct nfp_record *record)
{
	struct nfp_calltree *tree = &stream->tree;
	if (record->rsp == NFP_LOST_MISTIMED) {
		nfp_stream_interrupt(pipeline, stream, record->word);
		return;
	}
	if (record->rsp >= NFP_LOST_CLASSES) {
		pipeline->counts.invalid++;
		return;
	}
	pipeline->counts.lost[record->rsp] += record->word;
	pipeline->lossy = stream->poll.lossy = 1;
	if (stream->batch)
		stream->batch->batch.flags |= NFP_BATCH_LOSSY;
	if (record->rsp == NFP_LOST_CALL) {
		// An exit and the next entry of the same function may be missing: nothing open can be trusted.
		nfp_calltree_clear(tree, stream->log);
		nfp_handed_cut(stream, 0);
		stream->hold.level = 0;
	} else if (record->rsp == NFP_LOST_POLL) {
		nfp_calltree_spend(tree, tree->count);
		nfp_counted_spoil(&pipeline->counted, tree, stream->log);
		// The calls that follow belong to a batch whose receive call is missing.
		nfp_batch_end(pipeline, stream, tree->count ? tree->items[tree->count - 1].rsp - 1 : 0);
	}
}

static void read_record(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                        const struct nfp_record *record)
{
	switch (nfp_record_kind(record)) {
	case NFP_UNWOUND:
		read_exit(pipeline, stream, record, NFP_CALL_UNWOUND);
		break;
	case NFP_MARK:
		read_mark(pipeline, stream, record);
		break;
	case NFP_POLL_ENTRY:
		read_poll_entry(stream, record);
		break;
	case NFP_POLL_QUEUE:
		read_poll_queue(stream, record);
		break;
	case NFP_BATCH_ARRIVAL:
		read_batch_arrival(stream, record);
		break;
	case NFP_POLL_EXIT:
		read_poll_exit(pipeline, stream, record);
		break;
	case NFP_VALUE:
		read_value(pipeline, stream, record);
		break;
	case NFP_PACKET:
		nfp_packet_begin(pipeline, stream, record);
		break;
	case NFP_SHARE:
		nfp_share_note(stream, record);
		break;
	case NFP_BATCH_NOTE:
		nfp_tail_sampled_note(pipeline, stream, record);
		break;
	default:
		pipeline->counts.invalid++;
	}
}

static void read_rare(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                      const struct nfp_record *record)
{
	uint32_t kind = nfp_record_kind(record);
	if (UNLIKELY(stream->tree.credit < 0))
		nfp_calltree_pay(&stream->tree, stream->log);
	if (kind >= NFP_COUNTERS && kind <= NFP_COUNTERS_LAST) {
		nfp_readings_take(&stream->readings, record);
		return;
	}
	if (nfp_packet_fact(pipeline, stream, record))
		return;
	stream->describing = NFP_DESCRIBING_NONE;
	if (kind == NFP_LOST)
		read_lost(pipeline, stream, record);
	else if (nfp_record_function(record) >= pipeline->roles.count)
		pipeline->counts.invalid++;
	else if (kind == NFP_ENTRY)
		read_entry(pipeline, stream, record);
	else if (kind == NFP_EXIT)
		read_exit(pipeline, stream, record, 0);
	else
		read_record(pipeline, stream, record);
}

static void begin_feed(struct nfp_pipeline *pipeline)
{
	if (!pipeline->taken)
		return;
	pipeline->taken = 0;
	pipeline->calls.count = pipeline->batches.count = pipeline->packets.count = 0;
	pipeline->given_topics.count = pipeline->counted.given.count = 0;
	pipeline->handovers.count = pipeline->reemitted_batches.count = pipeline->reemitted_calls.count = 0;
}

static void read_records(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                         const struct nfp_record *records, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		const struct nfp_record *record = &records[i];
		uint32_t kind = nfp_record_kind(record);
		if (UNLIKELY(kind > NFP_EXIT || stream->describing ||
		             nfp_record_function(record) >= pipeline->roles.count))
			read_rare(pipeline, stream, record);
		else if (kind == NFP_ENTRY)
			read_entry(pipeline, stream, record);
		else
			read_exit(pipeline, stream, record, 0);
	}
}

// What waits for nobody needs no room of its own until the take, and only the largest number of batches that ever had
// some stays in memory: a full ring holds a hundred thousand. Those that wait are not looked at again and again.
static void deliver_early(struct nfp_pipeline *pipeline, struct nfp_stream *stream, int at_end)
{
	if (!stream->ended)
		return;
	uint64_t fresh = stream->ended_total - stream->ended_seen;
	if (!at_end && fresh < NFP_EARLY_BATCHES + stream->ended_left)
		return;
	if (stream->ended_left > NFP_WAITING_MANY && fresh < stream->ended_left)
		return;
	stream->ended_seen = stream->ended_total;
	stream->ended_left = nfp_stream_deliver(pipeline, stream, 0);
}

int nfp_pipeline_feed(struct nfp_pipeline *pipeline, uint32_t thread, const struct nfp_record *records,
                      uint64_t count)
{
	struct nfp_stream *stream = nfp_stream_of(pipeline, thread);
	if (!stream)
		return -1;
	begin_feed(pipeline);
	pipeline->counts.records += count;
	for (uint64_t done = 0; done < count; done += NFP_EARLY_RECORDS) {
		uint64_t left = count - done;
		nfp_calltree_earn(&stream->tree, left < NFP_EARLY_RECORDS ? left : NFP_EARLY_RECORDS);
		read_records(pipeline, stream, records + done,
		             left < NFP_EARLY_RECORDS ? left : NFP_EARLY_RECORDS);
		nfp_pending_bound(pipeline); // not only receive calls make something pending
		deliver_early(pipeline, stream, left <= NFP_EARLY_RECORDS);
	}
	return 0;
}

int nfp_pipeline_feed_parts(struct nfp_pipeline *pipeline, const struct nfp_sweep_part *parts,
                            uint32_t part_count, const struct nfp_record *records, uint64_t count)
{
	int result = 0;
	for (uint32_t i = 0; i < part_count && parts[i].count <= count; i++) {
		result |= nfp_pipeline_feed(pipeline, parts[i].thread, records, parts[i].count);
		records += parts[i].count;
		count -= parts[i].count;
	}
	return result;
}

static void end_stream(struct nfp_pipeline *pipeline, struct nfp_stream *stream)
{
	stream->describing = NFP_DESCRIBING_NONE;
	// What took packets over may have handed them to others in its turn.
	if (stream->batch && stream->batch->handed < stream->batch->batch.size &&
	    !(stream->batch->batch.flags & NFP_BATCH_TAKEN_OVER))
		stream->batch->batch.flags |= NFP_BATCH_UNFINISHED;
	stream->tree.unpaired_entries += stream->poll.valid;
	stream->poll.valid = 0;
	nfp_batch_end(pipeline, stream, 0);
	// What is open was not left without an exit: the session, or the thread, ended first.
	uint64_t open = stream->tree.count - stream->tree.doubtful;
	nfp_calltree_clear(&stream->tree, stream->log);
	stream->tree.unpaired_entries -= open;
	pipeline->counts.open += open;
	nfp_outside_deliver(pipeline, stream, 1);
}

void nfp_pipeline_end_threads(struct nfp_pipeline *pipeline, const uint32_t *threads, uint32_t count)
{
	begin_feed(pipeline);
	for (uint32_t i = 0; i < count; i++)
		if (threads[i] < NFP_THREAD_COUNT && pipeline->streams[threads[i]])
			end_stream(pipeline, pipeline->streams[threads[i]]);
}

void nfp_pipeline_finish(struct nfp_pipeline *pipeline)
{
	begin_feed(pipeline);
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (pipeline->streams[i])
			end_stream(pipeline, pipeline->streams[i]);
	pipeline->finishing = 1;
	nfp_pending_collect(pipeline, UINT64_MAX, 1);
}

static void give(struct nfp_pipeline *pipeline, struct nfp_columns *columns)
{
	pipeline->given++;
	pipeline->taken = 1;
	*columns = (struct nfp_columns){
	    .calls = pipeline->calls.items,
	    .batches = pipeline->batches.items,
	    .packets = pipeline->packets.items,
	    .topics = pipeline->given_topics.items,
	    .counters = pipeline->counted.given.items,
	    .handovers = pipeline->handovers.items,
	    .reemitted_batches = pipeline->reemitted_batches.items,
	    .reemitted_calls = pipeline->reemitted_calls.items,
	    .holds = pipeline->holds.given,
	    .hold_count = nfp_holds_give(pipeline),
	    .call_count = pipeline->calls.count,
	    .batch_count = pipeline->batches.count,
	    .packet_count = pipeline->packets.count,
	    .topic_count = pipeline->given_topics.count,
	    .counters_count = pipeline->counted.given.count,
	    .handover_count = pipeline->handovers.count,
	    .reemitted_batch_count = pipeline->reemitted_batches.count,
	    .reemitted_call_count = pipeline->reemitted_calls.count,
	};
}

void nfp_pipeline_take_part(struct nfp_pipeline *pipeline, struct nfp_columns *columns)
{
	begin_feed(pipeline);
	// Where one thread describes packets nobody else can have handed them on.
	pipeline->taking_part = 1;
	if (nfp_packets_horizon(pipeline) == UINT64_MAX)
		nfp_pending_collect(pipeline, UINT64_MAX, 0);
	pipeline->taking_part = 0;
	give(pipeline, columns);
}

void nfp_pipeline_take(struct nfp_pipeline *pipeline, struct nfp_columns *columns)
{
	begin_feed(pipeline);
	uint64_t horizon = nfp_packets_horizon(pipeline);
	pipeline->taken_ticks = 0;
	nfp_pending_collect(pipeline, horizon, pipeline->finishing);
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		struct nfp_stream *stream = pipeline->streams[i];
		if (!stream)
			continue;
		stream->ended_taken = stream->ended_total;
		nfp_outside_deliver(pipeline, stream, 0);
		if (stream->last_ticks > pipeline->taken_ticks)
			pipeline->taken_ticks = stream->last_ticks;
	}
	pipeline->round++;
	give(pipeline, columns);
}
