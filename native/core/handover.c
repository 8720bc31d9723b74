// SPDX-License-Identifier: Apache-2.0
// Handovers: a packet that one batch has received goes on in another one, mostly of another thread. A call of role
// DEQUEUE begins a batch that has no packets of its own; each buffer that it takes holds it until the packet is
// delivered. A packet's row is delivered when all the batches that it was in have ended, and together with them: a
// batch that an earlier take has given is given once more, apart. See stream.h.
#include "stream.h"
#include "abi/record.h"

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
	stream->hands_over = 1;
	nfp_tail_sampled_count(stream, asked);
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
	                          .buffer = record->value,
	                          .slot = pending->slot,
	                          .index = record->sp >> 16,
	                          .kind = NFP_EVENT_DEQUEUE};
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

// ---- of chosen packets: the batch that took one over is named when it leaves ------------------------------------------

void nfp_handover_add(struct nfp_stream *stream, struct nfp_pending *pending)
{
	struct nfp_recent *takes = &stream->takes;
	if (!takes->items)
		takes->items = calloc(NFP_RECENT_BATCHES, sizeof(*takes->items));
	if (takes->items)
		takes->items[takes->count++ % NFP_RECENT_BATCHES] =
		    (struct nfp_recent_batch){pending->batch.start_ticks, pending->batch.id, pending};
}

// Delivered packets no longer have a number.
static struct nfp_pending *find_taker(const struct nfp_stream *stream, uint64_t ticks, uint32_t index)
{
	const struct nfp_recent *takes = &stream->takes;
	uint64_t start_ticks = nfp_whole_ticks(stream, ticks);
	uint64_t number = ticks ? nfp_recent_search(takes, start_ticks) : takes->count;
	if (number == takes->count)
		return NULL;
	const struct nfp_recent_batch *take = &takes->items[number % NFP_RECENT_BATCHES];
	int is_here = take->start_ticks == start_ticks && take->pending->batch.id == take->id &&
	              !take->pending->given_take;
	return is_here && index < take->pending->batch.size ? take->pending : NULL;
}

static struct nfp_traveller *make_traveller(struct nfp_pipeline *pipeline)
{
	struct nfp_traveller *items = pipeline->travellers.items;
	if (pipeline->idle_traveller) {
		struct nfp_traveller *idle = &items[pipeline->idle_traveller - 1];
		pipeline->idle_traveller = idle->next;
		return idle;
	}
	if (!NFP_ARRAY_RESERVE(&pipeline->travellers, pipeline->travellers.count + 1))
		return NULL;
	return &pipeline->travellers.items[pipeline->travellers.count++];
}

static void forget_traveller(struct nfp_pipeline *pipeline, uint32_t index)
{
	pipeline->travellers.items[index].next = pipeline->idle_traveller;
	pipeline->idle_traveller = index + 1;
}

int nfp_handover_chosen(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                        const struct nfp_event *event, const struct nfp_tail_sampled *chosen)
{
	struct nfp_pending *taker = find_taker(stream, chosen->taken_ticks, chosen->taken_index);
	struct nfp_traveller *traveller = make_traveller(pipeline);
	if (!traveller)
		return 0;
	traveller->chosen = *chosen;
	uint32_t index = (uint32_t)(traveller - pipeline->travellers.items);
	struct nfp_event own = *event;
	own.kind = NFP_EVENT_CHOSEN;
	own.slot = taker ? taker->slot : NFP_NONE;
	own.index = index;
	if (!nfp_event_append(pipeline, stream, own)) {
		forget_traveller(pipeline, index);
		return 0;
	}
	if (taker)
		taker->held++;
	return 1;
}

static struct nfp_pending *find_via(const struct nfp_pipeline *pipeline, uint64_t via)
{
	uint32_t thread = via & 0xffff;
	const struct nfp_stream *stream = thread < NFP_THREAD_COUNT ? pipeline->streams[thread] : NULL;
	return stream ? find_taker(stream, via >> 16, 0) : NULL;
}

// The last packet of `pending` went on in a batch that is held by it.
static void note_chosen(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                        const struct nfp_pending *taker, uint32_t index)
{
	struct nfp_event event = {.ticks = taker->receive_ticks, .slot = taker->slot, .index = index};
	nfp_handover_note(pipeline, pending, pending->packets.count - 1, &event);
}

// What it went on in may not have been read yet.
static int may_find_more(const struct nfp_pipeline *pipeline, const struct nfp_event *event,
                         const struct nfp_tail_sampled *chosen)
{
	uint32_t found = 0;
	for (uint32_t i = 0; i < chosen->via_count; i++)
		found += find_via(pipeline, chosen->via[i]) != NULL;
	return found < chosen->via_count && !event->tries && !pipeline->finishing;
}

int nfp_handover_place(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	const struct nfp_tail_sampled *chosen = &pipeline->travellers.items[event->index].chosen;
	struct nfp_stream *stream =
	    chosen->origin_thread < NFP_THREAD_COUNT ? pipeline->streams[chosen->origin_thread] : NULL;
	struct nfp_pending *pending = stream ? nfp_recent_find(stream, chosen->origin_ticks) : NULL;
	if (!pending || pending->given_take || pending->receive_ticks > event->ticks ||
	    may_find_more(pipeline, event, chosen) ||
	    !nfp_tail_sampled_place(pipeline, pending, &chosen->packet))
		return 0;
	for (uint32_t i = 0; i < chosen->via_count; i++) {
		struct nfp_pending *taker = find_via(pipeline, chosen->via[i]);
		if (!taker)
			continue;
		taker->held++;
		note_chosen(pipeline, pending, taker, NFP_NONE);
	}
	if (event->slot != NFP_NONE)
		note_chosen(pipeline, pending, pipeline->slots.items[event->slot], chosen->taken_index);
	forget_traveller(pipeline, event->index);
	return 1;
}

void nfp_handover_give_up(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	const struct nfp_packet *packet = &pipeline->travellers.items[event->index].chosen.packet;
	nfp_count_done(pipeline, NULL, packet->disposition, 1);
	pipeline->counts.unplaced++;
	if (event->slot != NFP_NONE)
		nfp_handover_leave(pipeline, event->slot);
	forget_traveller(pipeline, event->index);
}

int nfp_handover_may_name(const struct nfp_pipeline *pipeline, const struct nfp_stream *stream,
                          struct nfp_pending *pending)
{
	const uint32_t both = NFP_BATCH_TAKEN_OVER | NFP_BATCH_CHOSEN;
	if ((pending->batch.flags & both) != both)
		return 0;
	return pending->round == pipeline->round || (stream->batch && stream->batch->turn == pending->turn) ||
	       (stream->hands_over && nfp_queues_wait(pipeline, stream, pending));
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
	if (pending->reemitted_take != take)
		nfp_batch_deliver_again(pipeline, pending);
	return (struct nfp_handover){.batch = pending->reemitted_index, .flags = NFP_HANDOVER_AGAIN};
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
