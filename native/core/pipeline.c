// SPDX-License-Identifier: Apache-2.0
// See pipeline.h. Makes a pipeline and the streams of its threads, reads the records one by one, and bounds what is pending.
// The work is done in calltree.c and, by way of stream.h, where that says.
#include "pipeline.h"
#include "stream.h"
#include "sweep.h"
#include <string.h>

// What is rare is kept out of the loop that reads records.
#define SELDOM __attribute__((noinline))

// A pipeline and the streams of its threads: made, told about functions, given back.

struct nfp_pipeline *nfp_pipeline_create(const uint8_t *roles, uint32_t functions)
{
	struct nfp_pipeline *pipeline = calloc(1, sizeof(*pipeline));
	if (!pipeline)
		return NULL;
	pipeline->next_batch_id = 1;
	nfp_hash_init(&pipeline->buffers.hash);
	nfp_topics_init(&pipeline->topics);
	if (nfp_pipeline_roles(pipeline, roles, functions) == 0)
		return pipeline;
	free(pipeline);
	return NULL;
}

static void stream_destroy(struct nfp_stream *stream)
{
	nfp_calltree_deinit(&stream->tree);
	free(stream->outside.items);
	free(stream->handed.items);
	free(stream->chosen.items);
	free(stream->recent.items);
	free(stream->takes.items);
	free(stream->events.items);
	free(stream);
}

void nfp_pipeline_destroy(struct nfp_pipeline *pipeline)
{
	if (!pipeline)
		return;
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (pipeline->streams[i])
			stream_destroy(pipeline->streams[i]);
	for (uint32_t i = 0; i < pipeline->slots.count; i++) {
		free(pipeline->slots.items[i]->log.items);
		free(pipeline->slots.items[i]->packets.items);
		free(pipeline->slots.items[i]->handovers.items);
		free(pipeline->slots.items[i]);
	}
	free(pipeline->slots.items);
	free(pipeline->roles.items);
	free(pipeline->costs.items);
	nfp_table_deinit(&pipeline->buffers);
	free(pipeline->unmatched.items);
	free(pipeline->still_unmatched.items);
	free(pipeline->calls.items);
	free(pipeline->batches.items);
	free(pipeline->packets.items);
	free(pipeline->given_topics.items);
	free(pipeline->handovers.items);
	free(pipeline->reemitted_batches.items);
	free(pipeline->reemitted_calls.items);
	nfp_topics_deinit(&pipeline->topics);
	free(pipeline->remap.items);
	nfp_counted_deinit(&pipeline->counted);
	free(pipeline->travellers.items);
	free(pipeline->moved.items);
	free(pipeline);
}

int nfp_pipeline_roles(struct nfp_pipeline *pipeline, const uint8_t *roles, uint32_t functions)
{
	if (functions > NFP_FUNCTION_MASK + 1 || !NFP_ARRAY_RESERVE(&pipeline->roles, functions + 1))
		return -1;
	if (functions > pipeline->roles.count)
		pipeline->roles.count = functions;
	for (uint32_t i = 0; i < functions; i++) {
		int pooled = roles[i] == NFP_ROLE_RECEIVE_POOLED;
		pipeline->pooled |= pooled;
		pipeline->sees_handovers |= roles[i] == NFP_ROLE_HAND_OVER;
		pipeline->roles.items[i] = pooled                      ? NFP_ROLE_RECEIVE
		                           : roles[i] <= NFP_ROLE_LAST ? roles[i]
		                                                       : NFP_ROLE_CALL;
	}
	return 0;
}

int nfp_pipeline_costs(struct nfp_pipeline *pipeline, const struct nfp_cost *costs, uint32_t functions)
{
	if (functions > NFP_FUNCTION_MASK + 1 || !NFP_ARRAY_RESERVE(&pipeline->costs, functions + 1))
		return -1;
	memcpy(pipeline->costs.items, costs, functions * sizeof(*costs));
	pipeline->costs.count = functions;
	return 0;
}

int nfp_pipeline_counter_costs(struct nfp_pipeline *pipeline, const struct nfp_counter_cost *costs,
                               uint32_t functions)
{
	if (functions > NFP_FUNCTION_MASK + 1 || !NFP_ARRAY_RESERVE(&pipeline->counted.costs, functions + 1))
		return -1;
	memcpy(pipeline->counted.costs.items, costs, functions * sizeof(*costs));
	pipeline->counted.costs.count = functions;
	return 0;
}

void nfp_pipeline_count_anew(struct nfp_pipeline *pipeline, uint32_t set)
{
	pipeline->counted.set = set;
	pipeline->counted.costs.count = 0;
}

// The stream of a thread table entry, made when it is not there. NULL: there is no such entry, or no memory.
static SELDOM struct nfp_stream *stream_of(struct nfp_pipeline *pipeline, uint32_t thread)
{
	if (thread >= NFP_THREAD_COUNT)
		return NULL;
	struct nfp_stream *stream = pipeline->streams[thread];
	if (stream)
		return stream;
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return NULL;
	stream->thread = thread;
	stream->tree.costs = &pipeline->costs;
	stream->log = &stream->outside;
	stream->outside_limit = NFP_OUTSIDE_CALLS;
	stream->tree.credit = NFP_STEPS_SAVED;
	stream->ended_last = &stream->ended;
	stream->last_ticks = 1; // 0 means open in a row
	pipeline->streams[thread] = stream;
	pipeline->stream_count++;
	pipeline->newest_round = pipeline->round;
	return stream;
}

// How much may be pending between two takes, of all threads together. What is over a bound is delivered before its time, or
// given up.

// Matches what happened up to then and delivers what is complete; all: every batch that has ended.
static SELDOM void pending_collect(struct nfp_pipeline *pipeline, uint64_t until_ticks, int all)
{
	nfp_packets_match(pipeline, until_ticks);
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		struct nfp_stream *stream = pipeline->streams[i];
		if (stream)
			stream->ended_matched =
			    until_ticks == UINT64_MAX ? stream->ended_total : stream->ended_taken;
	}
	nfp_queues_look(pipeline, until_ticks == UINT64_MAX);
	nfp_batches_deliver(pipeline, all);
}

// Whether more is pending than all but `less` parts of what may be.
static int too_much_pending(const struct nfp_pipeline *pipeline, uint32_t less)
{
	uint64_t parts = NFP_PENDING_PARTS - less;
	return pipeline->pending_batches > NFP_PENDING_BATCHES_MAX / NFP_PENDING_PARTS * parts ||
	       pipeline->pending_calls > NFP_PENDING_CALLS_MAX / NFP_PENDING_PARTS * parts ||
	       pipeline->pending_packets > NFP_PENDING_PACKETS_MAX / NFP_PENDING_PARTS * parts ||
	       pipeline->events > NFP_EVENTS_MAX / NFP_PENDING_PARTS * parts;
}

// As if each thread's next records were not of its batch.
static void end_batches(struct nfp_pipeline *pipeline)
{
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		struct nfp_stream *stream = pipeline->streams[i];
		if (!stream || !stream->batch)
			continue;
		if (stream->describing == NFP_DESCRIBING_RECEIVED)
			stream->describing = NFP_DESCRIBING_STRAY;
		const struct nfp_calltree *tree = &stream->tree;
		nfp_batch_end(pipeline, stream, tree->count ? tree->items[tree->count - 1].sp - 1 : 0);
	}
}

// All that is pending is looked at here: unless that makes enough room for a while, more is given up, down to the batches
// that have not ended; those that took their packets over are held by packets, hence twice.
static SELDOM void pending_bound(struct nfp_pipeline *pipeline)
{
	if (!too_much_pending(pipeline, 0))
		return;
	pending_collect(pipeline, UINT64_MAX, 0);
	if (too_much_pending(pipeline, 1))
		pending_collect(pipeline, UINT64_MAX, 1);
	if (!too_much_pending(pipeline, 1))
		return;
	end_batches(pipeline);
	pending_collect(pipeline, UINT64_MAX, 1);
	pending_collect(pipeline, UINT64_MAX, 1);
}

// Steps in a thread's records: time steps back, or records are missing whose stamps could not be. What is open is given up
// and the batch ends, since either may be true of calls of before and of after; what follows is read as ever.

// So many records are missing, of whatever kind: nothing open can be trusted.
static SELDOM void stream_interrupt(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                                    uint64_t records)
{
	pipeline->counts.mistimed += records;
	pipeline->lossy = stream->poll.lossy = 1;
	if (stream->batch)
		stream->batch->batch.flags |= NFP_BATCH_LOSSY;
	nfp_calltree_clear(&stream->tree, stream->log);
	nfp_handed_cut(stream, 0);
	nfp_batch_end(pipeline, stream, 0);
}

// The counter was set back, as when a machine goes on elsewhere, or a stamp before was wrong.
static SELDOM void stream_step_back(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t ticks)
{
	stream_interrupt(pipeline, stream, 1);
	nfp_stream_match(pipeline, stream);
	nfp_outside_deliver(pipeline, stream, 1);
	stream->last_ticks = stream->gone_ticks = ticks ? ticks : 1; // 0 means open in a row
	if (pipeline->lost_ticks > stream->last_ticks)
		pipeline->lost_ticks = stream->last_ticks; // to be found again: records were lost
	if (pipeline->made_ticks > stream->last_ticks)
		pipeline->made_ticks = stream->last_ticks;
}

// What became of the records and packets, over all threads of a pipeline.

static uint64_t not_done(const struct nfp_pending *pending)
{
	const struct nfp_batch *batch = &pending->batch;
	if (batch->flags & NFP_BATCH_TAKEN_OVER)
		return 0; // they are counted where they were received
	uint64_t done = (uint64_t)batch->transmitted + batch->dropped + pending->punted + pending->absorbed;
	return done < batch->size ? batch->size - done : 0;
}

void nfp_count_done(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                    enum nfp_disposition disposition, uint64_t packets)
{
	struct nfp_pipeline_counts *counts = &pipeline->counts;
	*(disposition == NFP_PUNTED     ? &counts->punted
	  : disposition == NFP_DROPPED  ? &counts->dropped
	  : disposition == NFP_ABSORBED ? &counts->absorbed
	                                : &counts->transmitted) += packets;
	if (!pending)
		return;
	if (disposition == NFP_PUNTED)
		pending->punted += packets;
	else if (disposition == NFP_ABSORBED)
		pending->absorbed += packets;
	else if (disposition == NFP_DROPPED)
		pending->batch.dropped += (uint32_t)packets;
	else
		pending->batch.transmitted += (uint32_t)packets;
}

void nfp_pipeline_count(const struct nfp_pipeline *pipeline, struct nfp_pipeline_counts *counts)
{
	*counts = pipeline->counts;
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		const struct nfp_stream *stream = pipeline->streams[i];
		if (!stream)
			continue;
		counts->calls += stream->tree.paired;
		counts->unpaired_entries += stream->tree.unpaired_entries + stream->tree.doubtful;
		counts->unpaired_exits += stream->tree.unpaired_exits;
		counts->open += stream->tree.count - stream->tree.doubtful;
		counts->pending += stream->batch ? not_done(stream->batch) : 0;
		for (const struct nfp_pending *pending = stream->ended; pending; pending = pending->next)
			counts->pending += not_done(pending);
	}
	uint64_t known = counts->transmitted - counts->resent + counts->dropped + counts->punted +
	                 counts->absorbed + counts->pending;
	counts->unknown = counts->received > known ? counts->received - known : 0;
}

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

// Only the records of signal handlers stand out of order: the interrupted probe had read its time before. What is much
// earlier is another time line. It may change all that is open: to be called first.
static uint64_t ticks_of(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                         const struct nfp_record *record)
{
	if (record->value > stream->last_ticks)
		stream->last_ticks = record->value;
	else if (UNLIKELY(stream->last_ticks - record->value > NFP_STEP_TICKS))
		stream_step_back(pipeline, stream, record->value);
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
		nfp_batch_close(pipeline, stream, record->sp);
	}
	if (UNLIKELY(role && stream->tree.credit < 0))
		nfp_calltree_pay(&stream->tree, stream->log);
	if (UNLIKELY(role == NFP_ROLE_LOOP_ITERATION))
		nfp_loop_iteration_begin(pipeline, stream, ticks, function, record->sp);
	struct nfp_open *open = nfp_calltree_enter(&stream->tree, stream->log, ticks, function, record->sp);
	if (UNLIKELY(stream->readings.pairs) && open)
		nfp_counted_enter(&pipeline->counted, &stream->readings, stream->log, open->row, record->sp);
	if (!role || !open)
		return;
	open->role = (uint16_t)role;
	if (role == NFP_ROLE_MESSAGE_SCOPE &&
	    !(stream->batch && stream->batch->kind == NFP_PENDING_MESSAGE_SCOPE))
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
	uint32_t index = nfp_calltree_find(tree, nfp_record_function(record), record->sp);
	if (UNLIKELY(index == NFP_NONE)) {
		uint32_t role = pipeline->roles.items[nfp_record_function(record)];
		tree->unpaired_exits += !nfp_detail_is_ungated(pipeline, stream, role);
		nfp_calltree_displace(tree, stream->log, record->sp, 0);
		return;
	}
	if (UNLIKELY(tree->items[index].role == NFP_ROLE_SEND))
		nfp_message_sent(pipeline, stream, index);
	else if (UNLIKELY(nfp_role_hands_on(tree->items[index].role)))
		nfp_packet_call_end(pipeline, stream, index);
	else if (UNLIKELY(nfp_role_is_of_barrier(tree->items[index].role)))
		nfp_hold_call_end(pipeline, stream, &tree->items[index], ticks);
	int enclosing = index < tree->enclosing;
	uint32_t row = tree->items[index].row;
	nfp_calltree_leave(tree, stream->log, index, ticks, flags);
	if (UNLIKELY(pipeline->counted.items) && row != NFP_NONE)
		nfp_counted_leave(&pipeline->counted, &stream->readings, stream->log, row, record->sp);
	if (UNLIKELY(nfp_share_is_of(stream, nfp_record_function(record), record->sp)))
		nfp_share_end(pipeline, stream, row);
	// A call around the batch has returned and its packets are gone: what follows is another matter.
	if (UNLIKELY(enclosing) && stream->batch &&
	    (stream->batch->kind == NFP_PENDING_MESSAGE_SCOPE ||
	     stream->batch->handed >= stream->batch->batch.size))
		nfp_batch_end(pipeline, stream, record->sp);
}

static void read_mark(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                      const struct nfp_record *record)
{
	read_entry(pipeline, stream, record);
	uint32_t index = nfp_calltree_find(&stream->tree, nfp_record_function(record), record->sp);
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
	uint32_t index = nfp_calltree_find(&stream->tree, nfp_record_function(record), record->sp);
	if (index == NFP_NONE) {
		pipeline->counts.invalid++;
		return;
	}
	uint32_t role = stream->tree.items[index].role;
	// Readings before a snippet's value are no exit's; the value of these is written together with the exit.
	if (!nfp_role_hands_on(role) || role == NFP_ROLE_SEND || role == NFP_ROLE_FREE)
		stream->readings.pairs = 0;
	if (!nfp_message_value(stream, stream->tree.items[index].role, record->value))
		return;
	stream->tree.items[index].value = record->value;
	stream->tree.items[index].flags |= NFP_OPEN_VALUE;
}

static void read_poll_entry(struct nfp_stream *stream, const struct nfp_record *record)
{
	stream->tree.unpaired_entries += stream->poll.valid;
	stream->poll.start_ticks = record->value;
	stream->poll.function = nfp_record_function(record);
	stream->poll.sp = record->sp;
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
	stream->poll.earliest_ticks = record->value;
	stream->poll.queue = record->sp;
}

static void read_batch_arrival(struct nfp_stream *stream, const struct nfp_record *record)
{
	if (stream->poll.valid && stream->poll.function == nfp_record_function(record))
		stream->poll.arrival_ticks = record->value;
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
	nfp_batch_begin(pipeline, stream, ticks, record->sp & 0xffff, record->sp >> 16);
	stream->poll.lossy = 0;
	if (UNLIKELY(stream->outside.count >= stream->outside_limit && stream->log == &stream->outside))
		nfp_outside_deliver(pipeline, stream, 1); // polls that return nothing have rows there, too
	pending_bound(pipeline);
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
	if (record->sp == NFP_LOST_MISTIMED) {
		stream_interrupt(pipeline, stream, record->value);
		return;
	}
	if (record->sp >= NFP_LOST_CLASSES) {
		pipeline->counts.invalid++;
		return;
	}
	pipeline->counts.lost[record->sp] += record->value;
	pipeline->lossy = stream->poll.lossy = 1;
	if (stream->batch)
		stream->batch->batch.flags |= NFP_BATCH_LOSSY;
	if (record->sp == NFP_LOST_CALL) {
		// An exit and the next entry of the same function may be missing: nothing open can be trusted.
		nfp_calltree_clear(tree, stream->log);
		nfp_handed_cut(stream, 0);
		stream->hold.level = 0;
	} else if (record->sp == NFP_LOST_POLL) {
		nfp_calltree_spend(tree, tree->count);
		nfp_counted_spoil(&pipeline->counted, tree, stream->log);
		// The calls that follow belong to a batch whose receive call is missing.
		nfp_batch_end(pipeline, stream, tree->count ? tree->items[tree->count - 1].sp - 1 : 0);
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
	struct nfp_stream *stream = stream_of(pipeline, thread);
	if (!stream)
		return -1;
	begin_feed(pipeline);
	pipeline->counts.records += count;
	for (uint64_t done = 0; done < count; done += NFP_EARLY_RECORDS) {
		uint64_t left = count - done;
		nfp_calltree_earn(&stream->tree, left < NFP_EARLY_RECORDS ? left : NFP_EARLY_RECORDS);
		read_records(pipeline, stream, records + done,
		             left < NFP_EARLY_RECORDS ? left : NFP_EARLY_RECORDS);
		pending_bound(pipeline); // not only receive calls make something pending
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
	pending_collect(pipeline, UINT64_MAX, 1);
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
		pending_collect(pipeline, UINT64_MAX, 0);
	pipeline->taking_part = 0;
	give(pipeline, columns);
}

void nfp_pipeline_take(struct nfp_pipeline *pipeline, struct nfp_columns *columns)
{
	begin_feed(pipeline);
	uint64_t horizon = nfp_packets_horizon(pipeline);
	pipeline->taken_ticks = 0;
	pending_collect(pipeline, horizon, pipeline->finishing);
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
