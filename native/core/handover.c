// SPDX-License-Identifier: Apache-2.0
// Handovers: a packet that one batch has received goes on in another one, mostly of another thread. A call of role
// TAKE_OVER begins a batch that has no packets of its own; each buffer that it takes holds it until the packet is
// delivered. A packet's row is delivered when all the batches that it was in have ended, and together with them: a
// batch that an earlier take has given is given once more, apart. Called by packet.c, settle.c, deliver.c; see stream.h.
#include "stream.h"
#include <nfprobe/record.h>

// It describes its packets only where it dropped some, and does not say which: those are that nobody takes over.
void nfp_handover_call_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                           const struct nfp_open *open)
{
	uint32_t first = open->handed < stream->handed.count ? open->handed : stream->handed.count;
	uint64_t value = open->flags & NFP_OPEN_VALUE ? open->value : 0, accepted = value & UINT32_MAX;
	uint64_t asked = value >> 32 > accepted ? value >> 32 : accepted, described = 0;
	for (uint32_t i = first; accepted < asked && i < stream->handed.count; i++) {
		struct nfp_event event = {.ticks = open->start_ticks,
		                          .done_ticks = stream->last_ticks,
		                          .buffer = stream->handed.items[i].buffer,
		                          .function = open->function,
		                          .kind = accepted ? NFP_EVENT_REFUSED : NFP_EVENT_DROP};
		described += (uint64_t)nfp_event_append(pipeline, stream, event);
	}
	nfp_handed_cut(stream, first);
	pipeline->counts.handed_over += accepted;
	if (accepted < asked && described < asked) {
		nfp_share_count(pipeline, stream, open, NFP_DROPPED,
		                accepted ? asked - accepted : asked - described);
		pipeline->lossy = 1; // which ones these were is not known
	}
	nfp_chosen_count(stream, asked);
	if (stream->batch)
		stream->batch->handed += asked;
}

void nfp_handover_refuse(struct nfp_pending *pending, uint32_t index, const struct nfp_event *event)
{
	struct nfp_packet *packet = &pending->packets.items[index];
	if (packet->disposition != NFP_UNKNOWN)
		return;
	packet->done_ticks = event->done_ticks;
	packet->done_function = event->function;
	packet->done_digest = packet->digest;
}

void nfp_handover_drop(struct nfp_pipeline *pipeline, struct nfp_pending *pending, uint32_t index)
{
	struct nfp_packet *packet = &pending->packets.items[index];
	if (packet->disposition != NFP_UNKNOWN || packet->done_function == NFP_NONE)
		return;
	packet->disposition = NFP_DROPPED;
	pending->undone--;
	pending->batch.dropped++;
	pipeline->counts.dropped++;
}

void nfp_handovers_drop(struct nfp_pipeline *pipeline, struct nfp_pending *pending)
{
	for (uint32_t i = 0; pending->undone && pipeline->sees_handovers && i < pending->packets.count; i++) {
		uint32_t undone = pending->undone;
		nfp_handover_drop(pipeline, pending, i);
		if (pending->undone < undone)
			nfp_packet_forget(pipeline, pending, i);
	}
}

int nfp_handover_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                       const struct nfp_record *record)
{
	struct nfp_pending *pending = stream->batch;
	if (!pending || pending->batch.function != nfp_record_function(record) ||
	    !(pending->batch.flags & NFP_BATCH_TAKEN_OVER) || pending->taken >= pending->batch.size)
		return 0;
	struct nfp_event event = {.ticks = pending->receive_ticks,
	                          .buffer = record->word,
	                          .slot = pending->slot,
	                          .index = record->rsp >> 16,
	                          .kind = NFP_EVENT_TAKE_OVER};
	if (!nfp_event_append(pipeline, stream, event))
		return 0;
	pending->taken++;
	pending->held++;
	return 1;
}

void nfp_handover_leave(struct nfp_pipeline *pipeline, uint32_t slot)
{
	pipeline->slots.items[slot]->held--;
}

void nfp_handover_note(struct nfp_pipeline *pipeline, struct nfp_pending *pending, uint32_t index,
                       const struct nfp_event *event)
{
	if (!NFP_ARRAY_RESERVE(&pending->handovers, pending->handovers.count + 1)) {
		nfp_handover_leave(pipeline, event->slot);
		return;
	}
	pending->handovers.items[pending->handovers.count++] = (struct nfp_pending_handover){
	    .ticks = event->ticks, .packet = index, .slot = event->slot, .index = event->index};
	pipeline->counts.taken_over++;
	struct nfp_packet *packet = &pending->packets.items[index];
	if (packet->disposition == NFP_UNKNOWN) { // no queue has refused it
		packet->done_function = NFP_NONE;
		packet->done_ticks = packet->done_digest = 0;
	}
}

// Those that have ended stay so until they are let go: they are not looked at again.
int nfp_handovers_wait(const struct nfp_pipeline *pipeline, struct nfp_pending *pending)
{
	for (; pending->handovers_ended < pending->handovers.count; pending->handovers_ended++)
		if (!pipeline->slots.items[pending->handovers.items[pending->handovers_ended].slot]->number)
			return 1;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct nfp_pending_handover *first = a, *second = b;
	if (first->packet != second->packet)
		return first->packet < second->packet ? -1 : 1;
	return first->ticks < second->ticks ? -1 : first->ticks > second->ticks;
}

// Where the columns of this take have the batch. Its `batch` is NFP_NONE when they have no room for it.
static struct nfp_handover find_row(struct nfp_pipeline *pipeline, struct nfp_pending *pending)
{
	uint64_t take = pipeline->given + 1;
	if (!pending->given_take)
		nfp_batch_deliver(pipeline, pending);
	if (pending->given_take == take)
		return (struct nfp_handover){.batch = pending->given_index};
	if (pending->again_take != take)
		nfp_batch_deliver_again(pipeline, pending);
	return (struct nfp_handover){.batch = pending->again_index, .flags = NFP_HANDOVER_AGAIN};
}

void nfp_handovers_deliver(struct nfp_pipeline *pipeline, struct nfp_pending *pending, uint32_t first_packet)
{
	uint32_t count = pending->handovers.count;
	if (!count || !NFP_ARRAY_RESERVE(&pipeline->handovers, pipeline->handovers.count + count))
		return;
	qsort(pending->handovers.items, count, sizeof(*pending->handovers.items), compare);
	for (uint32_t i = 0; i < count; i++) {
		const struct nfp_pending_handover *item = &pending->handovers.items[i];
		struct nfp_pending *taker = pipeline->slots.items[item->slot];
		if (!taker->number)
			continue; // given up: it goes on and on
		struct nfp_handover row = find_row(pipeline, taker);
		row.packet = first_packet + item->packet;
		row.index = item->index;
		if (row.batch != NFP_NONE)
			pipeline->handovers.items[pipeline->handovers.count++] = row;
	}
}

void nfp_handovers_release(struct nfp_pipeline *pipeline, struct nfp_pending *pending)
{
	for (uint32_t i = 0; i < pending->handovers.count; i++)
		nfp_handover_leave(pipeline, pending->handovers.items[i].slot);
	pending->handovers.count = pending->handovers_ended = 0;
}
