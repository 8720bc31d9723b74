// SPDX-License-Identifier: Apache-2.0
// Batches: the log of calls that is open moves from batch to batch at each receive call. A call that is
// open across such a move is cut: each batch that it encloses has a row of it, marked CLIPPED.
// See stream.h.
#include "arrival.h"
#include "packet_id.h"
#include "stream.h"
#include <string.h>

// The batches that a thread has begun last, by the entry of their receive call, for packets that say which one they came
// from. Who names a batch has received it a few hundred packets ago at most (NFP_LATE_POINTERS of native/probe/late.h); what
// another thread has sent is looked for when that thread's records are read, too.

enum {
	LATE_STEPS = 8, // how many may have begun after one that is said to have begun before them
};

static struct nfp_recent_batch *at(const struct nfp_recent *recent, uint64_t number)
{
	return &recent->items[number % NFP_RECENT_BATCHES];
}

static uint64_t oldest(const struct nfp_recent *recent)
{
	return recent->count > NFP_RECENT_BATCHES ? recent->count - NFP_RECENT_BATCHES : 0;
}

// They stand in the order of their entries. One that is far from its place is not remembered, nor one that took its packets
// over: none says that it came from there.
static __attribute__((noinline)) void recent_add(struct nfp_recent *recent, struct nfp_pending *pending)
{
	if (pending->batch.flags & NFP_BATCH_TAKEN_OVER)
		return;
	uint64_t place = recent->count, first = oldest(recent);
	struct nfp_recent_batch batch = {pending->batch.start_ticks, pending->batch.id, pending};
	while (place > first && at(recent, place - 1)->start_ticks > batch.start_ticks)
		if (recent->count - --place > LATE_STEPS)
			return;
	for (uint64_t i = recent->count++; i > place; i--)
		*at(recent, i) = *at(recent, i - 1);
	*at(recent, place) = batch;
}

// A stream whose packets begin to say where they came from.
static int begin(struct nfp_stream *stream)
{
	stream->recent.items = calloc(NFP_RECENT_BATCHES, sizeof(*stream->recent.items));
	if (!stream->recent.items)
		return 0;
	for (struct nfp_pending *pending = stream->ended; pending; pending = pending->next)
		recent_add(&stream->recent, pending);
	if (stream->batch)
		recent_add(&stream->recent, stream->batch);
	return 1;
}

uint64_t nfp_recent_search(const struct nfp_recent *recent, uint64_t start_ticks)
{
	uint64_t low = oldest(recent), high = recent->count;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (at(recent, middle)->start_ticks < start_ticks)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct nfp_pending *nfp_recent_find(struct nfp_stream *stream, uint64_t start_ticks)
{
	struct nfp_recent *recent = &stream->recent;
	if (!start_ticks || (!recent->items && !begin(stream)))
		return NULL;
	uint64_t low = nfp_recent_search(recent, start_ticks);
	if (low == recent->count || at(recent, low)->start_ticks != start_ticks)
		return NULL;
	// Delivered batches no longer have a number, and their memory may be another batch's.
	struct nfp_pending *pending = at(recent, low)->pending;
	return pending->batch.id == at(recent, low)->id ? pending : NULL;
}

enum {
	ROW_STEPS = 8, // moving a row of a log, in looks at an open call
	CLIPPED_STEPS = 16, // and having one more in every batch, until it is exported
	CLIPPED_FEW = 4, // rows around a batch of a stream that cannot pay for more
};

static int row_reported(const struct nfp_call *row)
{
	return row->end_ticks && row->function != NFP_NONE;
}

// The first row that begins at `start_ticks` or after. Where that is more than can be paid for, the receive call begins
// later, with the first that can.
static uint32_t find_moved(struct nfp_stream *stream, uint64_t *start_ticks)
{
	const struct nfp_log *log = stream->log;
	uint32_t first = log->count;
	while (first && log->items[first - 1].start_ticks >= *start_ticks &&
	       nfp_calltree_affords(&stream->tree, 1, ROW_STEPS))
		first--;
	if (first && log->items[first - 1].start_ticks > *start_ticks)
		*start_ticks = log->items[first - 1].start_ticks;
	return first;
}

// Calls that began inside the receive call were written before it: they go behind it in its batch.
static void take_moved(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t *start_ticks)
{
	struct nfp_log *log = stream->log, *moved = &pipeline->moved;
	uint32_t first = find_moved(stream, start_ticks);
	moved->count = moved->irregular = 0;
	uint32_t count = log->count - first;
	if (!count || !NFP_ARRAY_RESERVE(moved, count))
		return;
	memcpy(moved->items, log->items + first, count * sizeof(*moved->items));
	moved->count = count;
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_call *row = &moved->items[i];
		row->parent = row->parent == NFP_NONE || row->parent < first ? NFP_NONE : row->parent - first;
		if (!row_reported(row))
			nfp_log_kill(moved, i);
	}
	nfp_calltree_spend(&stream->tree, stream->tree.count);
	for (uint32_t i = 0; i < stream->tree.count; i++)
		if (stream->tree.items[i].row != NFP_NONE && stream->tree.items[i].row >= first)
			stream->tree.items[i].row = NFP_NONE;
	log->count = first;
	if (log == &stream->outside && stream->outside_seen > first)
		stream->outside_seen = first;
}

static void append_moved(struct nfp_log *log, const struct nfp_log *moved, uint32_t receive)
{
	if (!moved->count || !NFP_ARRAY_RESERVE(log, log->count + moved->count))
		return;
	uint32_t base = log->count;
	for (uint32_t i = 0; i < moved->count; i++) {
		struct nfp_call *row = &log->items[log->count++];
		*row = moved->items[i];
		row->parent = row->parent == NFP_NONE ? receive : row->parent + base;
		row->depth = (uint16_t)(row->parent == NFP_NONE ? 0 : log->items[row->parent].depth + 1);
	}
	log->irregular |= moved->irregular;
}

static uint64_t last_end(const struct nfp_log *log)
{
	uint64_t end = 0;
	for (uint32_t i = 0; i < log->count; i++)
		if (row_reported(&log->items[i]) && log->items[i].end_ticks > end)
			end = log->items[i].end_ticks;
	return end;
}

// No call of the stream has a row after this. Open calls with nothing reported behind them leave no row;
// other open calls are cut in a batch and not reported outside of one.
static void close_log(struct nfp_stream *stream)
{
	struct nfp_log *log = stream->log;
	struct nfp_calltree *tree = &stream->tree;
	int outside = log == &stream->outside;
	nfp_calltree_spend(tree, 2 * (uint64_t)tree->count);
	for (uint32_t i = 0; i < tree->count; i++)
		if (outside || tree->items[i].flags & NFP_OPEN_DOUBTFUL)
			nfp_log_kill(log, tree->items[i].row);
	while (log->count && !row_reported(&log->items[log->count - 1]))
		log->count--;
	if (outside && stream->outside_seen > log->count)
		stream->outside_seen = log->count;
	uint64_t end = outside ? 0 : last_end(log);
	for (uint32_t i = 0; i < tree->count; i++) {
		uint32_t row = tree->items[i].row;
		tree->items[i].row = NFP_NONE;
		if (row == NFP_NONE || row >= log->count || log->items[row].function == NFP_NONE)
			continue;
		log->items[row].end_ticks = end;
		log->items[row].flags |= NFP_CALL_CLIPPED;
	}
	if (!outside)
		stream->batch->batch.end_ticks = end;
}

// Gives the calls that are open around `sp` rows in the stream's log. Returns the innermost one's.
static uint32_t open_log(struct nfp_stream *stream, uint64_t ticks, uint32_t sp)
{
	struct nfp_open *items = stream->tree.items;
	uint32_t chain[NFP_CLIPPED_MAX], count = 0, parent = NFP_NONE, i = stream->tree.count;
	while (i-- > 0 && count < NFP_CLIPPED_MAX) {
		if (items[i].flags & NFP_OPEN_DOUBTFUL || !nfp_sp_encloses(items[i].sp, sp))
			continue;
		if (count >= CLIPPED_FEW && !nfp_calltree_affords(&stream->tree, 1, CLIPPED_STEPS))
			break;
		chain[count++] = i;
		sp = items[i].sp;
	}
	nfp_calltree_spend(&stream->tree, stream->tree.count - (i + 1));
	while (count-- > 0) {
		struct nfp_open *open = &items[chain[count]];
		open->row = nfp_log_open(stream->log, ticks, open->function, parent);
		if (open->row == NFP_NONE)
			continue;
		parent = open->row;
		stream->log->items[parent].flags = NFP_CALL_CLIPPED | nfp_role_flag(open->role);
	}
	return parent;
}

static struct nfp_pending *pending_create(struct nfp_pipeline *pipeline)
{
	struct nfp_pending *pending = pipeline->idle;
	if (pending) {
		pipeline->idle = pending->next;
		return pending;
	}
	if (!NFP_ARRAY_RESERVE(&pipeline->slots, pipeline->slots.count + 1))
		return NULL;
	pending = calloc(1, sizeof(*pending));
	if (!pending)
		return NULL;
	pending->slot = pipeline->slots.count++;
	pipeline->slots.items[pending->slot] = pending;
	return pending;
}

static void pending_init(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                         const struct nfp_batch *batch)
{
	pending->batch = *batch;
	pending->kind = NFP_PENDING_BURST;
	pending->batch.id = pipeline->next_batch_id++;
	pending->log.count = pending->log.irregular = 0;
	pending->packets.count = pending->undone = 0;
	pending->handovers.count = pending->handovers_ended = pending->taken = pending->held = 0;
	pending->given_take = pending->reemitted_take = pending->number = 0;
	pending->handed = pending->punted = pending->absorbed = 0;
	pending->received_total = pending->turn = pending->queued_mark = 0;
	pending->next = NULL;
}

static void append_ended(struct nfp_pipeline *pipeline, struct nfp_stream *stream)
{
	struct nfp_pending *pending = stream->batch;
	pending->round = pipeline->round;
	pending->next = NULL;
	*stream->ended_last = pending;
	stream->ended_last = &pending->next;
	pipeline->pending_batches++;
	stream->ended_total += !(pending->batch.flags & NFP_BATCH_TAKEN_OVER);
	pipeline->taken_ended += pending->batch.flags & NFP_BATCH_TAKEN_OVER ? pending->batch.size : 0;
	pending->number = stream->ended_total + 1;
	stream->batch = NULL;
	stream->tree.enclosing = 0;
}

// The innermost log of the stream ends here, and with it the batch; the next one is chosen by the caller.
static void leave_log(struct nfp_pipeline *pipeline, struct nfp_stream *stream)
{
	stream->gone_ticks = stream->last_ticks;
	close_log(stream);
	if (stream->log != &stream->outside)
		pipeline->pending_calls += stream->log->count;
	if (stream->batch)
		append_ended(pipeline, stream);
	stream->log = &stream->outside;
}

// Whether the packets of a batch can have waited since before its thread's records began, as those do that came while the
// threads were stopped for the probes: until its queue is seen empty, but not for longer than NFP_PRIOR_TICKS, since some
// queues never are.
static int is_prior(struct nfp_stream *stream, const struct nfp_batch *batch)
{
	uint64_t queue = 1ull << (batch->queue & 63);
	if (!batch->earliest_ticks) // its polls say nothing of queues
		return 0;
	if (!stream->prior.since_ticks)
		stream->prior.since_ticks = batch->start_ticks;
	if (stream->prior.emptied & queue || batch->start_ticks - stream->prior.since_ticks > NFP_PRIOR_TICKS)
		return 0;
	int is_bounded = !(batch->flags & NFP_BATCH_SATURATED);
	int was_empty = is_bounded && batch->earliest_ticks >= stream->prior.since_ticks;
	if (was_empty || !(batch->flags & NFP_BATCH_FULL))
		stream->prior.emptied |= queue;
	return !was_empty;
}

static void append_receive(struct nfp_stream *stream, uint32_t parent, const struct nfp_pending *pending,
                           uint64_t end_ticks, uint64_t value)
{
	uint32_t receive =
	    nfp_log_open(stream->log, pending->batch.start_ticks, pending->batch.function, parent);
	if (receive == NFP_NONE)
		return;
	struct nfp_call *row = &stream->log->items[receive];
	row->end_ticks = end_ticks;
	row->value = value;
	row->flags = NFP_CALL_RECEIVE | NFP_CALL_VALUE;
}

// What its probe and those inside it count is known if all calls inside it are in the log, behind its row.
static void count_receive(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t receive,
                          int has_all)
{
	if (!stream->poll.readings.pairs || receive == NFP_NONE)
		return;
	if (!has_all || stream->poll.lossy)
		stream->readings.pairs = 0;
	nfp_counted_receive(&pipeline->counted, &stream->poll.readings, &stream->readings, stream->log,
	                    receive, stream->poll.sp);
}

void nfp_batch_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t end_ticks,
                     uint32_t size, uint32_t requested)
{
	struct nfp_pending scratch = {.batch = {.start_ticks = stream->poll.start_ticks,
	                                        .thread = stream->thread,
	                                        .function = stream->poll.function,
	                                        .size = size,
	                                        .requested = requested}};
	if (scratch.batch.start_ticks > end_ticks)
		scratch.batch.start_ticks = end_ticks;
	scratch.batch.flags = requested && size >= requested ? NFP_BATCH_FULL : 0;
	nfp_batch_wait(&scratch.batch, stream->poll.earliest_ticks, stream->poll.queue);
	if (stream->poll.arrival_ticks <= scratch.batch.start_ticks) // otherwise it is rejected
		scratch.batch.arrival_ticks = stream->poll.arrival_ticks;
	nfp_calltree_displace(&stream->tree, stream->log, stream->poll.sp, 1);
	take_moved(pipeline, stream, &scratch.batch.start_ticks);
	int has_all = scratch.batch.start_ticks > stream->gone_ticks;
	leave_log(pipeline, stream);
	int takes_over = pipeline->roles.items[scratch.batch.function] == NFP_ROLE_DEQUEUE;
	scratch.batch.flags |= takes_over ? NFP_BATCH_TAKEN_OVER : 0;
	if (!takes_over && is_prior(stream, &scratch.batch))
		scratch.batch.flags |= NFP_BATCH_PRIOR;
	struct nfp_pending *pending = size ? pending_create(pipeline) : NULL;
	if (pending) {
		pending_init(pipeline, pending, &scratch.batch);
		pending->receive_ticks = end_ticks;
		stream->batch = pending;
		stream->log = &pending->log;
		stream->tree.enclosing = stream->tree.count;
		pipeline->counts.batches++;
		pipeline->hands_over |= takes_over;
		pending->batch.flags |=
		    (takes_over ? stream->poll.queue & NFP_QUEUE_RECEIVED : stream->chooses)
		        ? NFP_BATCH_CHOSEN
			: 0;
		if (takes_over)
			nfp_handover_add(stream, pending);
		if (stream->recent.items)
			recent_add(&stream->recent, pending);
	}
	uint32_t received = takes_over ? 0 : size;
	stream->received_total += pipeline->sees_handovers ? size : received; // those are handed on, too
	if (pending) {
		pending->received_total = stream->received_total;
		pending->turn = stream->turn;
	}
	uint32_t parent = open_log(stream, scratch.batch.start_ticks, stream->poll.sp);
	uint32_t receive = stream->log->count;
	append_receive(stream, parent, &scratch, end_ticks, size | (uint64_t)requested << 32);
	receive = receive < stream->log->count ? receive : NFP_NONE;
	append_moved(stream->log, &pipeline->moved, receive);
	count_receive(pipeline, stream, receive, has_all);
	pipeline->counts.received += received;
}

// The rows from `first` on go to pipeline->moved as they are, if that can be paid for; their open calls have no row until
// they are placed.
static void take_rows(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t first)
{
	struct nfp_log *log = stream->log, *moved = &pipeline->moved;
	moved->count = 0;
	moved->irregular = log->irregular;
	for (uint32_t i = 0; i < stream->tree.count; i++)
		stream->tree.items[i].moved = NFP_NONE;
	nfp_calltree_spend(&stream->tree, 3 * (uint64_t)stream->tree.count);
	if (first >= log->count || !nfp_calltree_affords(&stream->tree, log->count - first, ROW_STEPS) ||
	    !NFP_ARRAY_RESERVE(moved, log->count - first))
		return;
	moved->count = log->count - first;
	memcpy(moved->items, log->items + first, moved->count * sizeof(*moved->items));
	for (uint32_t i = 0; i < moved->count; i++) {
		uint32_t *parent = &moved->items[i].parent;
		*parent = *parent == NFP_NONE || *parent < first ? NFP_NONE : *parent - first;
	}
	for (uint32_t i = 0; i < stream->tree.count; i++) {
		struct nfp_open *open = &stream->tree.items[i];
		if (open->row == NFP_NONE || open->row < first)
			continue;
		open->moved = open->row - first;
		open->row = NFP_NONE;
	}
	log->count = first;
	if (log == &stream->outside && stream->outside_seen > first)
		stream->outside_seen = first;
}

// Appends what was taken; rows that are open go back to their calls, and those that no call has are dead.
static void place_rows(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t parent)
{
	const uint32_t not_claimed = NFP_NONE - 1; // instead of the batch, which no row of a log has
	struct nfp_log *log = stream->log, *moved = &pipeline->moved;
	uint32_t base = log->count;
	append_moved(log, moved, parent);
	for (uint32_t i = base; i < log->count; i++)
		if (!row_reported(&log->items[i]) && log->items[i].function != NFP_NONE)
			log->items[i].batch = not_claimed;
	for (uint32_t i = 0; i < stream->tree.count && base < log->count; i++) {
		struct nfp_open *open = &stream->tree.items[i];
		if (open->row != NFP_NONE || open->moved == NFP_NONE ||
		    log->items[base + open->moved].batch != not_claimed)
			continue;
		open->row = base + open->moved;
		log->items[open->row].batch = NFP_NONE;
	}
	for (uint32_t i = base; i < log->count; i++) {
		if (log->items[i].batch == not_claimed)
			nfp_log_kill(log, i);
		log->items[i].batch = NFP_NONE;
	}
}

struct nfp_pending *nfp_batch_begin_inside(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                                           const struct nfp_batch *batch, uint32_t first, uint32_t sp)
{
	take_rows(pipeline, stream, first);
	leave_log(pipeline, stream);
	struct nfp_pending *pending = pending_create(pipeline);
	if (pending) {
		pending_init(pipeline, pending, batch);
		pending->receive_ticks = batch->start_ticks;
		stream->batch = pending;
		stream->log = &pending->log;
		stream->tree.enclosing = stream->tree.count;
		pipeline->counts.batches++;
		pipeline->counts.received += batch->size;
	}
	place_rows(pipeline, stream, open_log(stream, batch->start_ticks, sp));
	return pending;
}

void nfp_batch_close(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t sp)
{
	if (stream->log == &stream->outside)
		return;
	stream->gone_ticks = stream->last_ticks;
	close_log(stream);
	pipeline->pending_calls += stream->log->count;
	stream->log = &stream->outside;
	open_log(stream, stream->last_ticks, sp);
}

void nfp_batch_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t sp)
{
	nfp_batch_close(pipeline, stream, sp);
	if (stream->batch)
		append_ended(pipeline, stream);
}

// Turns: of a program that nothing else is known of, a batch is what a thread runs from one call of a chosen
// function to the next (an event loop's turn). It holds one packet without headers, which is done when the batch
// ends.

// A call inside another one of the same function ends no turn.
static int is_nested(struct nfp_calltree *tree, uint32_t sp)
{
	nfp_calltree_spend(tree, tree->count);
	for (uint32_t i = 0; i < tree->count; i++)
		if (tree->items[i].role == NFP_ROLE_LOOP_ITERATION &&
		    !(tree->items[i].flags & NFP_OPEN_DOUBTFUL) && nfp_sp_encloses(tree->items[i].sp, sp))
			return 1;
	return 0;
}

static void end_turn(struct nfp_pipeline *pipeline, struct nfp_pending *pending, uint64_t ticks)
{
	struct nfp_packet *packet = &pending->packets.items[0];
	packet->done_ticks = ticks;
	packet->disposition = NFP_TRANSMITTED;
	pending->batch.end_ticks = ticks;
	pending->batch.transmitted = 1;
	pending->handed = 1;
	pipeline->counts.transmitted++;
}

// Turns have no content that could tell them apart: their id is when and where they began.
static uint64_t turn_digest(uint64_t ticks, uint32_t thread)
{
	return nfp_mix((ticks ^ (uint64_t)thread << 48) + 0x9e3779b97f4a7c15u);
}

void nfp_loop_iteration_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t ticks,
                              uint32_t function, uint32_t sp)
{
	if (is_nested(&stream->tree, sp))
		return;
	nfp_calltree_displace(&stream->tree, stream->log, sp, 1);
	struct nfp_pending *before = stream->batch;
	struct nfp_batch batch = {
	    .start_ticks = ticks, .thread = stream->thread, .function = function, .size = 1};
	struct nfp_pending *pending = nfp_batch_begin_inside(pipeline, stream, &batch, NFP_NONE, sp);
	if (before && before->kind == NFP_PENDING_LOOP_ITERATION && before->packets.count)
		end_turn(pipeline, before, ticks);
	if (!pending)
		return;
	pending->kind = NFP_PENDING_LOOP_ITERATION;
	if (!NFP_ARRAY_RESERVE(&pending->packets, 1))
		return;
	pending->packets.items[0] = (struct nfp_packet){
	    .digest = turn_digest(ticks, stream->thread),
	    .receive_ticks = ticks,
	    .done_function = NFP_NONE,
	};
	pending->packets.count = 1;
	pipeline->pending_packets++;
}

// Detail: what the pipeline does about functions whose gate was closed while they were open (native/probe/detail.c).
// Only calls around the receive call can be: one end of theirs was recorded and the other was not. They are counted
// apart, because nothing was lost.

// A batch begins whose inner functions are not timed.
void nfp_detail_close(struct nfp_pipeline *pipeline, struct nfp_stream *stream)
{
	uint64_t before = stream->tree.unpaired_entries;
	nfp_calltree_give_up(&stream->tree, stream->log, NFP_ROLE_CALL);
	pipeline->counts.ungated += stream->tree.unpaired_entries - before;
	stream->tree.unpaired_entries = before;
	stream->closes = 1;
}

// An exit without its entry. 0: it is none of those.
int nfp_detail_is_ungated(struct nfp_pipeline *pipeline, const struct nfp_stream *stream, uint32_t role)
{
	if (!stream->closes || role != NFP_ROLE_CALL)
		return 0;
	pipeline->counts.ungated++;
	return 1;
}
