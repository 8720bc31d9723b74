// SPDX-License-Identifier: Apache-2.0
// Matches what the threads received with what they handed on, merged by time, by buffer address, through one
// hash table. A buffer that is handed on is matched with its latest receive before that. Where several
// threads describe packets, only events before the last take are matched: a later one's partner may be in
// a ring that was drained too early in this round. An event that matches nothing is tried once more after
// the next whole round, because the thread that received the packet may be held up at a hole in its ring.
// See stream.h.
#include "stream.h"
#include <string.h>

// Absorbed packets: a call has taken them in, and does not say what it did with them. Reassembly keeps fragments over turns:
// one of them comes out again as the whole packet, in the buffer of the first one, and the others are in it or behind it.
// Fragmentation sends new packets in new buffers, and frees the one that it was given. So a packet that such a call has
// taken in counts as absorbed until it is seen to leave. Its buffer may be used for another packet at once: the digest tells
// whether it is the same one, except for the first fragment, which has become another.

void nfp_handed_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_open *open,
                    enum nfp_event_kind kind)
{
	for (uint32_t i = open->handed; i < stream->handed.count; i++)
		(void)nfp_event_append(pipeline, stream,
		                       (struct nfp_event){.ticks = open->start_ticks,
		                                          .done_ticks = stream->last_ticks,
		                                          .buffer = stream->handed.items[i].buffer,
		                                          .function = open->function,
		                                          .kind = (uint16_t)kind});
	nfp_handed_cut(stream, open->handed);
}

static void absorb(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	struct nfp_buffer_entry *entry = nfp_buffer_here(pipeline, event->buffer);
	if (!entry)
		return; // one that was made here
	struct nfp_pending *pending = pipeline->slots.items[entry->slot];
	struct nfp_packet *packet = &pending->packets.items[entry->index];
	if (packet->receive_ticks > event->ticks || !nfp_packet_is_here(packet))
		return; // a message that was sent may be sent again
	if (packet->disposition == NFP_UNKNOWN)
		nfp_count_done(pipeline, pending, NFP_ABSORBED, 1);
	packet->disposition = NFP_ABSORBED;
	packet->done_ticks = event->done_ticks;
	packet->done_function = event->function;
	packet->done_digest = event->kind == NFP_EVENT_REPLACE ? packet->digest : 0;
}

// Whether what is handed on can be the packet that was absorbed, and not another one in the same buffer.
static int absorbed_may_leave(const struct nfp_packet *packet, const struct nfp_event *event)
{
	if (packet->disposition != NFP_ABSORBED || event->digest == packet->digest)
		return 1;
	return !packet->done_digest && !(packet->flags & NFP_PACKET_FRAGMENT);
}

// It is no longer absorbed.
static void absorbed_leaves(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                            struct nfp_packet *packet)
{
	if (packet->disposition != NFP_ABSORBED)
		return;
	packet->disposition = NFP_UNKNOWN;
	pending->absorbed--;
	pipeline->counts.absorbed--;
}

// The entry's packet or message will not be looked up again.
static void leave_entry(struct nfp_pipeline *pipeline, const struct nfp_buffer_entry *entry)
{
	if (entry->slot == NFP_SLOT_LATE) {
		pipeline->late--;
		return;
	}
	struct nfp_pending *pending = pipeline->slots.items[entry->slot];
	if (nfp_packet_is_here(&pending->packets.items[entry->index]))
		pending->undone--;
}

// The buffer holds another packet: the old one was freed, unless it was handed on unseen. When is not known.
static void match_reuse(struct nfp_pipeline *pipeline, const struct nfp_buffer_entry *entry,
                        const struct nfp_event *event)
{
	if (!pipeline->pooled || entry->slot == NFP_SLOT_LATE)
		return;
	struct nfp_pending *pending = pipeline->slots.items[entry->slot];
	struct nfp_packet *packet = &pending->packets.items[entry->index];
	uint64_t digest = pipeline->slots.items[event->slot]->packets.items[event->index].digest;
	if (packet->disposition != NFP_UNKNOWN || packet->digest == digest ||
	    packet->receive_ticks <= pipeline->lost_ticks || packet->receive_ticks <= pipeline->made_ticks)
		return;
	pending->undone--;
	packet->disposition = NFP_DROPPED;
	nfp_count_done(pipeline, pending, NFP_DROPPED, 1);
	pipeline->counts.freed++;
}

static void match_receive(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	struct nfp_table *buffers = &pipeline->buffers;
	if (!nfp_buffers_make_room(buffers)) {
		pipeline->slots.items[event->slot]->undone--;
		return;
	}
	struct nfp_buffer_entry *entry = nfp_buffers_find(buffers, event->buffer);
	if (entry->slot == NFP_NONE)
		buffers->count++;
	else {
		if (entry->slot != NFP_SLOT_LATE)
			nfp_handover_drop(pipeline, pipeline->slots.items[entry->slot], entry->index);
		match_reuse(pipeline, entry, event);
		leave_entry(pipeline, entry); // the NF freed it on a way that is not probed
	}
	*entry = (struct nfp_buffer_entry){event->buffer, event->slot, event->index};
}

static enum nfp_disposition disposition_of(const struct nfp_event *event)
{
	if (event->kind == NFP_EVENT_PUNT)
		return NFP_PUNTED;
	return event->kind == NFP_EVENT_TRANSMIT ? NFP_TRANSMITTED : NFP_DROPPED;
}

static int match_done(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	struct nfp_buffer_entry *entry = nfp_buffer_here(pipeline, event->buffer);
	if (!entry) // copies share the buffer that was received, behind one of their own: the first that leaves is the packet
		entry = nfp_buffer_here(pipeline, event->next);
	if (!entry)
		return 0;
	struct nfp_pending *pending = pipeline->slots.items[entry->slot];
	struct nfp_packet *packet = &pending->packets.items[entry->index];
	if (packet->receive_ticks > event->ticks)
		return 0;
	int freed = event->kind == NFP_EVENT_FREE;
	if (freed && packet->receive_ticks <= pipeline->lost_ticks)
		return 0; // it may have been sent
	if (!absorbed_may_leave(packet, event))
		return 0;
	absorbed_leaves(pipeline, pending, packet);
	pipeline->counts.freed += (uint64_t)freed;
	packet->done_ticks = event->done_ticks;
	packet->done_function = event->function;
	packet->done_number = event->number;
	packet->done_digest = event->digest;
	packet->disposition = disposition_of(event);
	pending->undone--;
	nfp_count_done(pipeline, pending, packet->disposition, 1);
	nfp_buffers_remove(&pipeline->buffers, entry);
	return 1;
}

static struct nfp_buffer_entry *entry_of(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	return pipeline->buffers.capacity ? nfp_buffers_find(&pipeline->buffers, event->buffer) : NULL;
}

// The packet stays: it will be handed on, or was dropped where it should have been handed over.
static int match_stay(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	struct nfp_buffer_entry *entry = entry_of(pipeline, event);
	if (!entry || entry->slot >= NFP_SLOT_LATE)
		return 0;
	struct nfp_pending *pending = pipeline->slots.items[entry->slot];
	if (pending->packets.items[entry->index].receive_ticks > event->ticks)
		return 0;
	absorbed_leaves(pipeline, pending, &pending->packets.items[entry->index]);
	if (event->kind == NFP_EVENT_REFUSED)
		nfp_handover_refuse(pending, entry->index, event);
	else
		nfp_handover_note(pipeline, pending, entry->index, event);
	return 1;
}

// The message stays: it may be sent to more receivers, and ends with the last.
static int match_send(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	struct nfp_buffer_entry *entry = entry_of(pipeline, event);
	if (!entry || entry->slot == NFP_NONE)
		return 0;
	if (entry->slot == NFP_SLOT_LATE) {
		pipeline->counts.resent += entry->index;
		entry->index = 1;
		pipeline->counts.transmitted++;
		return 1;
	}
	struct nfp_pending *pending = pipeline->slots.items[entry->slot];
	struct nfp_packet *packet = &pending->packets.items[entry->index];
	if (packet->receive_ticks > event->ticks)
		return 0;
	absorbed_leaves(pipeline, pending, packet);
	if (packet->disposition == NFP_UNKNOWN) {
		pending->undone--;
		pending->batch.transmitted++;
	} else {
		pipeline->counts.resent++;
	}
	packet->disposition = NFP_TRANSMITTED;
	packet->done_ticks = event->done_ticks;
	packet->done_function = event->function;
	packet->done_number = event->number;
	pipeline->counts.transmitted++;
	return 1;
}

static void match_made(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	struct nfp_buffer_entry *entry = entry_of(pipeline, event);
	if (!entry || entry->slot == NFP_NONE)
		return;
	leave_entry(pipeline, entry);
	nfp_buffers_remove(&pipeline->buffers, entry);
}

static void match_event(struct nfp_pipeline *pipeline, const struct nfp_event *event)
{
	struct nfp_events *later = &pipeline->still_unmatched;
	if (event->kind == NFP_EVENT_RECEIVE) {
		match_receive(pipeline, event);
		return;
	}
	if (event->kind == NFP_EVENT_MADE) {
		match_made(pipeline, event);
		return;
	}
	if (event->kind == NFP_EVENT_KEEP || event->kind == NFP_EVENT_REPLACE) {
		absorb(pipeline, event);
		return;
	}
	int takes_over = event->kind == NFP_EVENT_DEQUEUE;
	int stays = takes_over || event->kind == NFP_EVENT_REFUSED;
	int is_chosen = event->kind == NFP_EVENT_CHOSEN;
	if (event->kind == NFP_EVENT_SEND ? match_send(pipeline, event)
	    : is_chosen                   ? nfp_handover_place(pipeline, event)
	    : stays                       ? match_stay(pipeline, event)
	                                  : match_done(pipeline, event))
		return;
	if (event->kind == NFP_EVENT_TRANSMIT && event->ticks > pipeline->made_ticks)
		pipeline->made_ticks = event->ticks; // of whatever was received before, it may be a copy
	int tried = event->tries && !pipeline->taking_part;
	if (tried || pipeline->finishing || later->count >= NFP_EVENTS_MAX ||
	    !NFP_ARRAY_RESERVE(later, later->count + 1)) {
		pipeline->counts.generated += event->kind != NFP_EVENT_FREE && !stays && !is_chosen;
		if (is_chosen)
			nfp_handover_give_up(pipeline, event);
		if (takes_over)
			nfp_handover_leave(pipeline, event->slot);
		return;
	}
	later->items[later->count] = *event;
	later->items[later->count++].tries = event->tries || !pipeline->taking_part;
}

struct source {
	struct nfp_events *events;
	uint32_t next;
	uint32_t end;
};

static uint64_t source_ticks(const struct source *source)
{
	return source->events->items[source->next].ticks;
}

static int is_before(const struct source *one, const struct source *other)
{
	uint64_t ticks = source_ticks(one), other_ticks = source_ticks(other);
	return ticks < other_ticks || (ticks == other_ticks && one < other);
}

// A heap, as a thousand threads may write by turns: the source with the earliest event is the first.
static void sink(struct source **heap, uint32_t from, uint32_t count)
{
	struct source *source = heap[from];
	for (uint32_t child; (child = 2 * from + 1) < count; from = child) {
		if (child + 1 < count && is_before(heap[child + 1], heap[child]))
			child++;
		if (!is_before(heap[child], source))
			break;
		heap[from] = heap[child];
	}
	heap[from] = source;
}

// The table is larger than a cache when many packets wait: the entry that comes next but some is fetched meanwhile.
static void ask_for(const struct nfp_table *buffers, const struct source *source)
{
	const uint32_t ahead = 8;
	if (source->end - source->next > ahead && buffers->capacity)
		nfp_buffers_fetch(buffers, source->events->items[source->next + ahead].buffer);
}

// Matches all events in the order of time, those of one source up to the earliest of the others.
static void match_all(struct nfp_pipeline *pipeline, struct source *sources, uint32_t source_count)
{
	struct source *heap[NFP_THREAD_COUNT + 1];
	uint32_t count = 0;
	for (uint32_t i = 0; i < source_count; i++)
		if (sources[i].next < sources[i].end)
			heap[count++] = &sources[i];
	for (uint32_t i = count / 2; i-- > 0;)
		sink(heap, i, count);
	while (count) {
		struct source *first = heap[0];
		uint64_t until = UINT64_MAX;
		for (uint32_t i = 1; i < count && i < 3; i++)
			until = source_ticks(heap[i]) < until ? source_ticks(heap[i]) : until;
		do {
			ask_for(&pipeline->buffers, first);
			match_event(pipeline, &first->events->items[first->next++]);
		} while (first->next < first->end && source_ticks(first) <= until);
		if (first->next == first->end)
			heap[0] = heap[--count];
		if (count)
			sink(heap, 0, count);
	}
}

// Keeps what comes after the matched events.
static void drop_matched(struct nfp_events *events, uint32_t matched)
{
	events->count -= matched;
	if (events->count && matched)
		memmove(events->items, events->items + matched, events->count * sizeof(*events->items));
	if (events->count || events->capacity <= NFP_HANDED_MAX)
		return;
	free(events->items);
	*events = (struct nfp_events){0};
}

static struct source source_of(struct nfp_events *events, uint64_t until_ticks)
{
	uint32_t end = events->count;
	while (end && events->items[end - 1].ticks > until_ticks)
		end--;
	return (struct source){events, 0, end};
}

// Records were lost, and when is not known: until now.
static void doubt(struct nfp_pipeline *pipeline)
{
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (pipeline->streams[i] && pipeline->streams[i]->last_ticks > pipeline->lost_ticks)
			pipeline->lost_ticks = pipeline->streams[i]->last_ticks;
	pipeline->lossy = 0;
}

// A call that hands packets on and is not waited for: what it does is seen too late.
static int is_held_up(const struct nfp_stream *stream)
{
	for (uint32_t i = 0; i < stream->tree.count; i++)
		if (nfp_role_hands_on(stream->tree.items[i].role) &&
		    stream->tree.items[i].flags & NFP_OPEN_AGED)
			return 1;
	return 0;
}

// What was tried comes before what was later than the matched events, so that all is in the order of time.
static void keep_unmatched(struct nfp_pipeline *pipeline)
{
	struct nfp_events tried = pipeline->still_unmatched, later = pipeline->unmatched;
	if (later.count && NFP_ARRAY_RESERVE(&tried, tried.count + later.count)) {
		memcpy(tried.items + tried.count, later.items, later.count * sizeof(*later.items));
		tried.count += later.count;
	} else {
		pipeline->counts.generated += later.count; // no memory for them
	}
	later.count = 0;
	pipeline->unmatched = tried;
	pipeline->still_unmatched = later;
}

void nfp_packets_match(struct nfp_pipeline *pipeline, uint64_t until_ticks)
{
	for (uint32_t i = 0; pipeline->pooled && i < NFP_THREAD_COUNT; i++)
		pipeline->lossy |= pipeline->streams[i] && is_held_up(pipeline->streams[i]);
	if (pipeline->lossy)
		doubt(pipeline);
	struct source sources[NFP_THREAD_COUNT + 1];
	uint32_t count = 0;
	sources[count++] = source_of(&pipeline->unmatched, until_ticks);
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++)
		if (pipeline->streams[i] && pipeline->streams[i]->events.count)
			sources[count++] = source_of(&pipeline->streams[i]->events, until_ticks);
	match_all(pipeline, sources, count);
	pipeline->events = 0;
	for (uint32_t i = 0; i < count; i++) {
		drop_matched(sources[i].events, sources[i].end);
		pipeline->events += sources[i].events->count;
	}
	keep_unmatched(pipeline);
}

// What the thread has queued is matched without the others' events: its time steps back, and they could not be put in
// order any more.
void nfp_stream_match(struct nfp_pipeline *pipeline, struct nfp_stream *stream)
{
	for (uint32_t i = 0; i < stream->events.count; i++)
		match_event(pipeline, &stream->events.items[i]);
	pipeline->events -= stream->events.count;
	stream->events.count = 0;
}

static uint64_t earliest_handing_on(const struct nfp_stream *stream)
{
	for (uint32_t i = 0; i < stream->tree.count; i++) {
		const struct nfp_open *open = &stream->tree.items[i];
		if (nfp_role_hands_on(open->role) && !(open->flags & (NFP_OPEN_DOUBTFUL | NFP_OPEN_AGED)))
			return open->start_ticks;
	}
	return UINT64_MAX;
}

// Whether there are new threads that may describe packets: their earlier records have not been read yet. For a buffer that
// went from one of them to another, the receive that is read last would be taken for the latest. The same holds in the
// middle of the first round, where only one thread may have been read.
static int has_new_streams(const struct nfp_pipeline *pipeline)
{
	if (pipeline->taking_part && !pipeline->round)
		return 1;
	return pipeline->stream_count > 1 && pipeline->round < pipeline->newest_round + 2;
}

// Up to where nothing older can still arrive: every thread has been drained since the last take, and no
// call that hands packets on is open (one that was open at the last take is not waited for).
uint64_t nfp_packets_horizon(const struct nfp_pipeline *pipeline)
{
	uint64_t horizon = pipeline->taken_ticks;
	uint32_t describing = 0;
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		const struct nfp_stream *stream = pipeline->streams[i];
		if (!stream)
			continue;
		describing += stream->describes;
		uint64_t handing_on = earliest_handing_on(stream);
		if (handing_on <= horizon)
			horizon = handing_on - 1;
	}
	int alone = describing <= 1 && !has_new_streams(pipeline);
	return alone || pipeline->finishing ? UINT64_MAX : horizon;
}

// The packet will not be looked up again.
void nfp_packet_forget(struct nfp_pipeline *pipeline, const struct nfp_pending *pending, uint32_t index)
{
	if (!pipeline->buffers.capacity)
		return;
	struct nfp_buffer_entry *entry =
	    nfp_buffers_find(&pipeline->buffers, pending->packets.items[index].buffer);
	if (entry->slot == pending->slot && entry->index == index)
		nfp_buffers_remove(&pipeline->buffers, entry);
}

void nfp_message_late(struct nfp_pipeline *pipeline, const struct nfp_pending *pending, uint32_t index)
{
	if (!pipeline->buffers.capacity)
		return;
	const struct nfp_packet *packet = &pending->packets.items[index];
	struct nfp_buffer_entry *entry = nfp_buffers_find(&pipeline->buffers, packet->buffer);
	if (entry->slot != pending->slot || entry->index != index)
		return;
	if (pipeline->late >= NFP_LATE_MAX) {
		nfp_buffers_remove(&pipeline->buffers, entry);
		return;
	}
	pipeline->late++;
	entry->slot = NFP_SLOT_LATE;
	entry->index = packet->disposition != NFP_UNKNOWN;
}
