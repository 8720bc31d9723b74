// SPDX-License-Identifier: Apache-2.0
// Packets: puts a PACKET record and its facts together and queues what happened to the packet as an event, at
// once: the next record of the thread may not come for long. match.c matches the events of all threads.
// See stream.h.
#include "stream.h"
#include "abi/record.h"
#include <string.h>

static void put_address(uint8_t *field, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		field[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

static void put_ports(struct nfp_packet *packet, uint32_t ports)
{
	packet->source_port = (uint16_t)ports;
	packet->destination_port = (uint16_t)(ports >> 16);
}

static void put_arrival(struct nfp_packet *packet, const struct nfp_record *record)
{
	packet->arrival_ticks = record->value;
	packet->flags |=
	    record->sp == NFP_ARRIVAL_TICKS ? NFP_PACKET_ARRIVAL_KNOWN : NFP_PACKET_ARRIVAL_UNIX_NS;
}

void nfp_packet_put_fact(struct nfp_packet *packet, const struct nfp_record *record)
{
	switch (nfp_record_kind(record)) {
	case NFP_PACKET_ID:
		packet->digest = record->value;
		packet->ip_id = (uint16_t)record->sp;
		packet->protocol = (uint8_t)(record->sp >> 16);
		packet->ip_version = record->sp >> NFP_PACKET_VERSION_SHIFT & 15;
		packet->flags |= (uint8_t)(record->sp >> NFP_PACKET_MARKS_SHIFT << NFP_PACKET_MARKS_BIT);
		break;
	case NFP_PACKET_NUMBERS:
		packet->receive_interface = (uint32_t)record->value;
		packet->done_number = (uint32_t)(record->value >> 32);
		break;
	case NFP_PACKET_V4:
		put_address(packet->source, record->value & UINT32_MAX, 4);
		put_address(packet->destination, record->value >> 32, 4);
		put_ports(packet, record->sp);
		break;
	case NFP_PACKET_ARRIVAL:
		put_arrival(packet, record);
		break;
	case NFP_PACKET_SRC6_HIGH:
		put_address(packet->source, record->value, 8);
		put_ports(packet, record->sp);
		break;
	case NFP_PACKET_SRC6_LOW:
		put_address(packet->source + 8, record->value, 8);
		break;
	case NFP_PACKET_DST6_HIGH:
		put_address(packet->destination, record->value, 8);
		break;
	case NFP_PACKET_DST6_LOW:
		put_address(packet->destination + 8, record->value, 8);
		break;
	}
}

// Adds a fact to the packet that is being described. 0 when there is none or the kind is not a fact.
int nfp_packet_fact(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_record *record)
{
	uint32_t kind = nfp_record_kind(record);
	int of_message = kind == NFP_PACKET_TOPIC || kind == NFP_PACKET_TEXT;
	if (stream->describing == NFP_DESCRIBING_NONE || kind <= NFP_PACKET ||
	    (kind > NFP_PACKET_DST6_LOW && !of_message && kind != NFP_PACKET_ORIGIN &&
	     kind != NFP_PACKET_NUMBERS && kind != NFP_PACKET_NEXT && kind != NFP_PACKET_TAKEN &&
	     kind != NFP_PACKET_VIA))
		return 0;
	if (stream->describing == NFP_DESCRIBING_TEXT)
		nfp_hold_fact(pipeline, stream, record);
	else if (stream->describing == NFP_DESCRIBING_RECEIVED && of_message)
		nfp_message_fact(pipeline, stream,
		                 &stream->batch->packets.items[stream->batch->packets.count - 1], record);
	else if (stream->describing == NFP_DESCRIBING_RECEIVED)
		nfp_packet_put_fact(&stream->batch->packets.items[stream->batch->packets.count - 1], record);
	else if (stream->describing == NFP_DESCRIBING_CHOSEN &&
	         (kind == NFP_PACKET_TAKEN || kind == NFP_PACKET_VIA))
		nfp_tail_sampled_taken(stream, record);
	else if (stream->describing == NFP_DESCRIBING_CHOSEN)
		nfp_packet_put_fact(&stream->chosen.items[stream->chosen.count - 1].packet, record);
	else if (stream->describing == NFP_DESCRIBING_HANDED && kind == NFP_PACKET_ORIGIN)
		stream->describing =
		    nfp_tail_sampled_begin(stream, record) ? NFP_DESCRIBING_CHOSEN : NFP_DESCRIBING_STRAY;
	else if (stream->describing == NFP_DESCRIBING_HANDED && kind == NFP_PACKET_ID)
		stream->handed.items[stream->handed.count - 1].digest = record->value;
	else if (stream->describing == NFP_DESCRIBING_HANDED && kind == NFP_PACKET_NUMBERS)
		stream->handed.items[stream->handed.count - 1].number = (uint32_t)(record->value >> 32);
	else if (stream->describing == NFP_DESCRIBING_HANDED && kind == NFP_PACKET_NEXT)
		stream->handed.items[stream->handed.count - 1].next = record->value;
	return 1;
}

// Events of one stream stand in the order of time.
int nfp_event_append(struct nfp_pipeline *pipeline, struct nfp_stream *stream, struct nfp_event event)
{
	struct nfp_events *events = &stream->events;
	if (!NFP_ARRAY_RESERVE(events, events->count + 1))
		return 0;
	if (events->count && events->items[events->count - 1].ticks > event.ticks)
		event.ticks = events->items[events->count - 1].ticks;
	events->items[events->count++] = event;
	pipeline->events++;
	stream->describes = 1;
	return 1;
}

struct nfp_packet *nfp_packet_receive(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                                      struct nfp_pending *pending, uint64_t ticks, uint64_t buffer)
{
	uint32_t index = pending->packets.count;
	struct nfp_event event = {.ticks = ticks,
	                          .buffer = buffer,
	                          .slot = pending->slot,
	                          .index = index,
	                          .kind = NFP_EVENT_RECEIVE};
	if (!NFP_ARRAY_RESERVE(&pending->packets, index + 1) || !nfp_event_append(pipeline, stream, event))
		return NULL;
	struct nfp_packet *packet = &pending->packets.items[index];
	*packet = (struct nfp_packet){
	    .buffer = buffer, .index = index, .receive_ticks = ticks, .done_function = NFP_NONE};
	pending->packets.count++;
	pending->undone++;
	pipeline->pending_packets++;
	return packet;
}

static int received(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_record *record)
{
	struct nfp_pending *pending = stream->batch;
	if (!pending || pending->batch.function != nfp_record_function(record) ||
	    pending->packets.count >= pending->batch.size)
		return 0;
	struct nfp_packet *packet =
	    nfp_packet_receive(pipeline, stream, pending, pending->receive_ticks, record->value);
	if (!packet)
		return 0;
	packet->length = (uint16_t)record->sp;
	packet->index = record->sp >> 16;
	return 1;
}

static int handed(struct nfp_stream *stream, const struct nfp_record *record)
{
	uint32_t i = nfp_calltree_innermost(&stream->tree, nfp_record_function(record));
	if (!i || stream->handed.count >= NFP_HANDED_MAX ||
	    !NFP_ARRAY_RESERVE(&stream->handed, stream->handed.count + 1))
		return 0;
	stream->handed.items[stream->handed.count++] = (struct nfp_handed){.buffer = record->value,
	                                                                   .position = record->sp >> 16,
	                                                                   .length = (uint16_t)record->sp,
	                                                                   .chosen = NFP_NONE};
	return 1;
}

// A PACKET record; its facts follow. One that belongs to no call is counted, and its facts are left out.
void nfp_packet_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                      const struct nfp_record *record)
{
	uint32_t role = pipeline->roles.items[nfp_record_function(record)];
	stream->describing = NFP_DESCRIBING_STRAY;
	if (role == NFP_ROLE_MESSAGE)
		nfp_message_begin(pipeline, stream, record);
	else if (role == NFP_ROLE_COMMAND || role == NFP_ROLE_HOLD)
		nfp_hold_begin_text(pipeline, stream, record);
	else if (role == NFP_ROLE_DEQUEUE && nfp_handover_begin(pipeline, stream, record))
		stream->describing = NFP_DESCRIBING_NONE; // no facts follow
	else if (role == NFP_ROLE_RECEIVE && received(pipeline, stream, record))
		stream->describing = NFP_DESCRIBING_RECEIVED;
	else if (nfp_role_hands_on(role) && role != NFP_ROLE_SEND && handed(stream, record))
		stream->describing = NFP_DESCRIBING_HANDED;
	else
		pipeline->counts.stray_packets++;
}

// A transmit call inside another one (a driver below a bonded port) hands on the same packets.
static int inside_same_role(struct nfp_calltree *tree, uint32_t index)
{
	nfp_calltree_spend(tree, index);
	for (uint32_t i = 0; i < index; i++)
		if (tree->items[i].role == tree->items[index].role &&
		    !(tree->items[i].flags & NFP_OPEN_DOUBTFUL) &&
		    nfp_sp_encloses(tree->items[i].sp, tree->items[index].sp))
			return 1;
	return 0;
}

// What a transmit call frees has been sent, and what another free or drop frees is its own.
static int inside_handing_on(struct nfp_calltree *tree, uint32_t index)
{
	nfp_calltree_spend(tree, index);
	for (uint32_t i = 0; i < index; i++)
		if (nfp_role_hands_on(tree->items[i].role) && !(tree->items[i].flags & NFP_OPEN_DOUBTFUL) &&
		    nfp_sp_encloses(tree->items[i].sp, tree->items[index].sp))
			return 1;
	return 0;
}

static uint16_t event_of(uint32_t role)
{
	if (role == NFP_ROLE_PUNT)
		return NFP_EVENT_PUNT;
	return role == NFP_ROLE_DROP ? NFP_EVENT_DROP : NFP_EVENT_TRANSMIT;
}

// The first `accepted` packets of a call are handed on; those that it did not describe are only counted.
void nfp_packet_call_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t index)
{
	const struct nfp_open *open = &stream->tree.items[index];
	if (open->role == NFP_ROLE_FREE) { // of its packets only those count that are still here (match.c)
		if (inside_handing_on(&stream->tree, index))
			nfp_handed_cut(stream, open->handed);
		else
			nfp_handed_end(pipeline, stream, open, NFP_EVENT_FREE);
		return;
	}
	if (open->role == NFP_ROLE_KEEP || open->role == NFP_ROLE_REPLACE) {
		nfp_handed_end(pipeline, stream, open,
		               open->role == NFP_ROLE_KEEP ? NFP_EVENT_KEEP : NFP_EVENT_REPLACE);
		return;
	}
	if (open->role == NFP_ROLE_HAND_OVER) {
		nfp_handover_call_end(pipeline, stream, open);
		return;
	}
	uint32_t first = open->handed < stream->handed.count ? open->handed : stream->handed.count;
	uint64_t accepted = open->role == NFP_ROLE_DROP ? stream->handed.count - first : 0, described = 0;
	if (open->flags & NFP_OPEN_VALUE)
		accepted = open->value & UINT32_MAX;
	if (inside_same_role(&stream->tree, index))
		accepted = 0;
	for (uint32_t i = first; i < stream->handed.count; i++) {
		const struct nfp_handed *packet = &stream->handed.items[i];
		struct nfp_event event = {.ticks = open->start_ticks,
		                          .done_ticks = stream->last_ticks,
		                          .buffer = packet->buffer,
		                          .next = packet->next,
		                          .digest = packet->digest,
		                          .number = packet->number,
		                          .function = open->function,
		                          .kind = event_of(open->role)};
		if (packet->position >= accepted)
			continue;
		if (packet->chosen != NFP_NONE)
			described +=
			    (uint64_t)nfp_tail_sampled_done(pipeline, stream, open, packet->chosen, &event);
		else if (nfp_event_append(pipeline, stream, event))
			described++;
	}
	nfp_handed_cut(stream, first);
	if (accepted > described) {
		nfp_share_count(pipeline, stream, open, nfp_role_disposition(open->role),
		                accepted - described);
		pipeline->lossy = 1; // which ones these were is not known
	}
	nfp_tail_sampled_count(stream, accepted);
	if (stream->batch)
		stream->batch->handed += accepted;
}
