// SPDX-License-Identifier: Apache-2.0
// Tail-sampled packets: where not every packet is identified (native/probe/late.c) some are described when they are handed
// on, and say which receive call they came from. That batch is still here, or the packet is only counted: no packet
// is put into a batch that it may not have been in. A thread's batches wait for their packets by count, taking them
// to leave turn by turn: what was received before anything was handed on may leave in any order. An NF that keeps
// packets back (a buffer for each port) may let later turns pass: while any packet has not left, batches wait for one
// round more. See stream.h.
#include "stream.h"
#include "abi/record.h"

// A batch waits while fewer have been received after it. Where packets are named by pointers none that is older than
// NFP_LATE_POINTERS of native/probe/late.h says where it came from; where they are named by numbers a turn has full frames of
// several queues.
enum {
	CHOSEN_HISTORY_PACKETS = 4096,
	QUEUED_ROUNDS_MIN = 2,
	QUEUED_ROUNDS_MAX = 256, // a second or two
	QUEUED_BATCHES_MAX = NFP_RECENT_BATCHES - 24,
};

int nfp_tail_sampled_begin(struct nfp_stream *stream, const struct nfp_record *record)
{
	if (!NFP_ARRAY_RESERVE(&stream->chosen, stream->chosen.count + 1))
		return 0;
	struct nfp_handed *handed = &stream->handed.items[stream->handed.count - 1];
	handed->chosen = stream->chosen.count;
	stream->chosen.items[stream->chosen.count++] = (struct nfp_tail_sampled){
	    .origin_ticks = record->value,
	    .packet = {.buffer = handed->buffer, .length = handed->length, .index = record->sp},
	};
	return 1;
}

void nfp_handed_cut(struct nfp_stream *stream, uint32_t first)
{
	for (uint32_t i = first; i < stream->handed.count; i++)
		if (stream->handed.items[i].chosen != NFP_NONE) { // and all behind it are chosen later
			stream->chosen.count = stream->handed.items[i].chosen;
			break;
		}
	if (first < stream->handed.count)
		stream->handed.count = first;
}

int nfp_tail_sampled_done(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                          const struct nfp_open *open, uint32_t chosen, const struct nfp_event *event)
{
	struct nfp_tail_sampled *item = &stream->chosen.items[chosen];
	pipeline->counts.identified++;
	item->packet.done_ticks = stream->last_ticks;
	item->packet.done_function = open->function;
	item->packet.done_digest = item->packet.digest;
	item->packet.disposition = nfp_role_disposition(open->role);
	if (item->went ? nfp_handover_chosen(pipeline, stream, event, item)
	               : nfp_tail_sampled_place(pipeline, nfp_recent_find(stream, item->origin_ticks),
	                                        &item->packet))
		return 1;
	pipeline->counts.unplaced++;
	return 0;
}

int nfp_tail_sampled_place(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                           const struct nfp_packet *packet)
{
	if (!pending || packet->index >= pending->batch.size ||
	    pending->packets.count >= pending->batch.size ||
	    !NFP_ARRAY_RESERVE(&pending->packets, pending->packets.count + 1))
		return 0;
	pending->packets.items[pending->packets.count] = *packet;
	pending->packets.items[pending->packets.count++].receive_ticks = pending->receive_ticks;
	nfp_count_done(pipeline, pending, packet->disposition, 1);
	pipeline->pending_packets++;
	return 1;
}

void nfp_tail_sampled_taken(struct nfp_stream *stream, const struct nfp_record *record)
{
	struct nfp_tail_sampled *item = &stream->chosen.items[stream->chosen.count - 1];
	if (nfp_record_kind(record) == NFP_PACKET_VIA) {
		if (item->via_count < NFP_VIAS_MAX)
			item->via[item->via_count++] = record->value;
		return;
	}
	item->went = 1;
	item->taken_ticks = record->value >> 16;
	item->origin_thread = record->value & 0xffff;
	item->taken_index = record->sp;
}

void nfp_tail_sampled_note(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                           const struct nfp_record *record)
{
	if (record->sp & NFP_NOTE_LATE)
		stream->chooses = 1;
	if (!stream->batch) {
		pipeline->counts.invalid++;
		return;
	}
	stream->batch->batch.flags |= record->sp & NFP_NOTE_LATE ? NFP_BATCH_CHOSEN : 0;
	stream->batch->batch.flags |= record->sp & NFP_NOTE_DRAWN ? NFP_BATCH_DRAWN : 0;
}

// What was handed on beyond what was received is the NF's own.
void nfp_tail_sampled_count(struct nfp_stream *stream, uint64_t handed)
{
	uint64_t open = stream->received_total - stream->handed_total;
	stream->handed_total += handed < open ? handed : open;
	stream->turn += handed != 0;
}

// Packets of the thread up to the last one of the batch's turn. It is the same for all batches of the turn, which are asked
// for one after the other.
static uint64_t turn_total(struct nfp_stream *stream, const struct nfp_pending *pending)
{
	if (stream->turn_end.known && stream->turn_end.turn == pending->turn)
		return stream->turn_end.received_total;
	stream->turn_end.turn = pending->turn;
	stream->turn_end.known = 1;
	while (pending->next && pending->next->turn == pending->turn)
		pending = pending->next;
	if (!pending->next && stream->batch && stream->batch->turn == pending->turn)
		pending = stream->batch;
	return stream->turn_end.received_total = pending->received_total;
}

// Whether packets may say that they came with this batch (native/probe/late.c), however many others there are in a turn.
static int is_received(const struct nfp_pending *pending)
{
	return pending->kind == NFP_PENDING_BURST && !(pending->batch.flags & NFP_BATCH_TAKEN_OVER);
}

static struct nfp_queues find_queues(const struct nfp_pipeline *pipeline)
{
	struct nfp_queues found = {pipeline->taken_ended, UINT64_MAX};
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		const struct nfp_stream *stream = pipeline->streams[i];
		if (!stream || !stream->takes.count)
			continue;
		const struct nfp_pending *last = stream->batch;
		if (last && last->batch.flags & NFP_BATCH_TAKEN_OVER && last->handed >= last->batch.size)
			found.taken += last->batch.size;
		if (stream->last_ticks < found.reached_ticks)
			found.reached_ticks = stream->last_ticks;
	}
	return found;
}

void nfp_queues_look(struct nfp_pipeline *pipeline, int all)
{
	if (!pipeline->sees_handovers)
		return;
	struct nfp_queues found = find_queues(pipeline);
	pipeline->queues = all ? found : pipeline->queues_read;
	pipeline->queues_read = found;
}

static void mark_queues(const struct nfp_pipeline *pipeline, const struct nfp_stream *stream,
                        struct nfp_pending *pending)
{
	pending->queued_mark = pipeline->counts.handed_over + 1;
	pending->queued_ticks = stream->last_ticks;
}

// Whether all that had been put into queues then was taken out. Which packets were taken out is not known: so all threads
// that do so must have gone on since, or the queues be empty.
static int is_taken(const struct nfp_pipeline *pipeline, const struct nfp_pending *pending)
{
	const struct nfp_queues *queues = &pipeline->queues;
	return queues->taken + 1 >= pending->queued_mark && (queues->taken >= pipeline->counts.handed_over ||
	                                                     queues->reached_ticks >= pending->queued_ticks);
}

// Its packets may have been put into queues: it waits until as many packets as had been put there were taken out, by batches
// that have ended, and what these have said was read; and once more, for those that were put into another one then. No
// longer than it can be found by its time (batch.c).
int nfp_queues_wait(const struct nfp_pipeline *pipeline, const struct nfp_stream *stream,
                    struct nfp_pending *pending)
{
	if (!pipeline->sees_handovers)
		return 0;
	if (!pending->queued_mark) {
		mark_queues(pipeline, stream, pending);
		pending->queued_round = pipeline->round;
		pending->queued_again = 0;
	}
	uint64_t rounds = pipeline->round - pending->queued_round;
	if (rounds >= QUEUED_ROUNDS_MAX || stream->ended_total + 1 - pending->number >= QUEUED_BATCHES_MAX)
		return 0;
	if (rounds < QUEUED_ROUNDS_MIN || !is_taken(pipeline, pending))
		return 1;
	if (pending->queued_again++ || pipeline->queues.taken >= pipeline->counts.handed_over)
		return 0;
	mark_queues(pipeline, stream, pending);
	return 1;
}

int nfp_tail_sampled_waits(const struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                           struct nfp_pending *pending)
{
	if (!stream->chooses || !is_received(pending))
		return 0;
	if (stream->handed_total >= stream->received_total ||
	    stream->received_total - pending->received_total >= CHOSEN_HISTORY_PACKETS)
		return nfp_queues_wait(pipeline, stream, pending);
	return pending->round == pipeline->round || stream->handed_total < turn_total(stream, pending) ||
	       nfp_queues_wait(pipeline, stream, pending);
}

void nfp_tail_sampled_give_up(struct nfp_stream *stream, const struct nfp_pending *pending)
{
	if (is_received(pending) && stream->handed_total < pending->received_total)
		stream->handed_total = pending->received_total;
}
