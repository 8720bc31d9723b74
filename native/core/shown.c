// SPDX-License-Identifier: Apache-2.0
// Shown packets: a receive call has only said how many it returned, and the functions that get them first show which
// ones they are (native/probe/show.c). Each says which receive call it came from; it is put into that batch, or counted
// as stray when the batch is not here any more. Called by packet.c and deliver.c; see stream.h.
#include "stream.h"

enum { TURN_BATCHES = 8 }; // receive calls of a thread, one after another, whose packets are shown after them

void nfp_shown_begin(struct nfp_stream *stream, const struct nfp_record *record)
{
	stream->shows = 1;
	stream->showing = NULL;
	stream->shown = (struct nfp_packet){
	    .buffer = record->word, .length = (uint16_t)record->rsp, .done_function = NFP_NONE};
}

static int place(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_record *origin)
{
	struct nfp_pending *pending = nfp_recent_find(stream, origin->word);
	if (!pending || pending->kind != NFP_PENDING_BURST || pending->batch.flags & NFP_BATCH_TAKEN_OVER ||
	    origin->rsp >= pending->batch.size || pending->packets.count >= pending->batch.size ||
	    !NFP_ARRAY_RESERVE(&pending->packets, pending->packets.count + 1))
		return 0;
	struct nfp_event event = {.ticks = pending->receive_ticks,
	                          .buffer = stream->shown.buffer,
	                          .slot = pending->slot,
	                          .index = pending->packets.count,
	                          .kind = NFP_EVENT_RECEIVE};
	if (!nfp_event_append(pipeline, stream, event))
		return 0;
	struct nfp_packet *packet = &pending->packets.items[pending->packets.count++];
	*packet = stream->shown;
	packet->index = origin->rsp;
	packet->receive_ticks = pending->receive_ticks;
	pending->undone++;
	pipeline->pending_packets++;
	stream->showing = pending;
	return 1;
}

// 0: the kind is not a fact.
int nfp_shown_fact(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_record *record)
{
	struct nfp_pending *pending = stream->showing;
	if (nfp_record_kind(record) == NFP_PACKET_ORIGIN && !pending)
		pipeline->counts.stray_packets += (uint64_t)!place(pipeline, stream, record);
	else if (pending)
		nfp_packet_put_fact(&pending->packets.items[pending->packets.count - 1], record);
	return 1;
}

int nfp_shown_waits(const struct nfp_stream *stream, const struct nfp_pending *pending)
{
	return stream->shows && pending->kind == NFP_PENDING_BURST &&
	       pending->packets.count < pending->batch.size &&
	       stream->ended_total + 1 - pending->number < TURN_BATCHES;
}
