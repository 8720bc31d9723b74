// SPDX-License-Identifier: Apache-2.0
// Messages of a broker. A call with role MESSAGE_SCOPE reads one network packet; when a message is described inside it,
// that call becomes a batch, from its own entry to its exit, and the message is received. A message may be sent
// to several receivers, by calls of role SEND; it is the address of its topic that tells which. A message that is
// described outside of MESSAGE_SCOPE was made by the program itself: its sendings are not those of a received one.
// See stream.h.
#include "stream.h"
#include "abi/record.h"
#include <string.h>

_Static_assert(NFP_TOPIC_RECORDS *NFP_TEXT_BYTES == NFP_TOPIC_TEXT_BYTES, "a text is what its records hold");

enum { NUMBER_BITS = 16 }; // a captured SEND holds buffer << 16 | message id: the buffer's low 48 bits

static uint64_t buffer_of(uint64_t topic)
{
	return topic & (UINT64_MAX >> NUMBER_BITS);
}

static uint32_t find_open(struct nfp_calltree *tree, uint32_t function)
{
	uint32_t i = tree->count;
	while (i-- > 0)
		if (tree->items[i].function == function)
			break;
	nfp_calltree_spend(tree, tree->count - (i + 1));
	return i; // NFP_NONE when there is none
}

// The outermost call of role MESSAGE_SCOPE that encloses the open call `index`, or NFP_NONE.
static uint32_t find_around(struct nfp_calltree *tree, uint32_t index)
{
	nfp_calltree_spend(tree, index);
	for (uint32_t i = 0; i < index; i++)
		if (tree->items[i].role == NFP_ROLE_MESSAGE_SCOPE &&
		    !(tree->items[i].flags & NFP_OPEN_DOUBTFUL) &&
		    nfp_sp_encloses(tree->items[i].sp, tree->items[index].sp))
			return i;
	return NFP_NONE;
}

// The call's row has begun before the call itself only when records are not what they should be.
static uint64_t start_of(const struct nfp_stream *stream, const struct nfp_open *call)
{
	if (call->row == NFP_NONE || stream->log->items[call->row].start_ticks > call->start_ticks)
		return call->start_ticks;
	return stream->log->items[call->row].start_ticks;
}

// The batch of the call `around`, which has one more message. NULL when there is no memory.
static struct nfp_pending *batch_of(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t around)
{
	const struct nfp_open *call = &stream->tree.items[around];
	struct nfp_pending *pending = stream->batch;
	if (pending && pending->kind == NFP_PENDING_MESSAGE_SCOPE && stream->tree.enclosing == around + 1 &&
	    pending->batch.start_ticks <= call->start_ticks) {
		pending->batch.size++;
		pipeline->counts.received++;
		return pending;
	}
	struct nfp_batch batch = {.start_ticks = start_of(stream, call),
	                          .thread = stream->thread,
	                          .function = call->function,
	                          .size = 1};
	pending = nfp_batch_begin_inside(pipeline, stream, &batch, call->row, call->sp);
	if (!pending)
		return NULL;
	pending->kind = NFP_PENDING_MESSAGE_SCOPE;
	stream->tree.enclosing = around + 1;
	return pending;
}

void nfp_message_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                       const struct nfp_record *record)
{
	struct nfp_calltree *tree = &stream->tree;
	uint32_t index = find_open(tree, nfp_record_function(record));
	stream->describing = NFP_DESCRIBING_STRAY;
	if (index == NFP_NONE) {
		pipeline->counts.stray_packets++;
		return;
	}
	uint64_t ticks = tree->items[index].start_ticks, buffer = buffer_of(record->value);
	uint32_t around = find_around(tree, index);
	if (around == NFP_NONE) {
		struct nfp_event event = {.ticks = ticks, .buffer = buffer, .kind = NFP_EVENT_MADE};
		(void)nfp_event_append(pipeline, stream, event);
		return;
	}
	struct nfp_pending *pending = batch_of(pipeline, stream, around);
	if (pending && nfp_packet_receive(pipeline, stream, pending, ticks, buffer))
		stream->describing = NFP_DESCRIBING_RECEIVED;
	else
		pipeline->counts.discarded++;
}

static void put_body(struct nfp_packet *packet, uint64_t bytes)
{
	struct nfp_message message;
	memcpy(&message, packet->source, sizeof(message));
	message.body_bytes = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
	memcpy(packet->source, &message, sizeof(message));
	packet->length = bytes < UINT16_MAX ? (uint16_t)bytes : UINT16_MAX;
}

uint32_t nfp_message_begin_text(struct nfp_stream *stream, uint32_t bytes)
{
	const uint32_t most = NFP_TOPIC_RECORDS * NFP_TEXT_BYTES;
	bytes = bytes < NFP_TOPIC_READ_BYTES ? bytes : NFP_TOPIC_READ_BYTES;
	stream->topic =
	    (struct nfp_topic_reader){.topic_bytes = bytes, .expected = bytes < most ? bytes : most};
	return bytes;
}

static void put_topic(struct nfp_stream *stream, struct nfp_packet *packet, const struct nfp_record *record)
{
	struct nfp_message message = {.topic_bytes = nfp_message_begin_text(stream, record->sp)};
	memcpy(packet->source, &message, sizeof(message));
	put_body(packet, stream->facts.length);
	packet->ip_id = (uint16_t)stream->facts.number;
	packet->ip_version = NFP_VERSION_MESSAGE;
}

void nfp_message_text(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t digest,
                      const struct nfp_record *record)
{
	struct nfp_topic_reader *topic = &stream->topic;
	uint8_t piece[NFP_TEXT_BYTES];
	uint32_t rest = topic->expected - topic->bytes;
	uint32_t bytes = rest < NFP_TEXT_BYTES ? rest : NFP_TEXT_BYTES;
	memcpy(piece, &record->value, 8);
	memcpy(piece + 8, &record->sp, 4);
	memcpy(topic->text + topic->bytes, piece, bytes);
	topic->bytes += bytes;
	if (bytes && topic->bytes == topic->expected)
		nfp_topics_add(&pipeline->topics, digest, topic);
}

void nfp_message_fact(struct nfp_pipeline *pipeline, struct nfp_stream *stream, struct nfp_packet *packet,
                      const struct nfp_record *record)
{
	if (nfp_record_kind(record) == NFP_PACKET_TOPIC)
		put_topic(stream, packet, record);
	else if (packet->ip_version == NFP_VERSION_MESSAGE)
		nfp_message_text(pipeline, stream, packet->digest, record);
}

// The length of a message that was released later is known only when it is routed.
static void put_length(struct nfp_stream *stream, uint64_t length)
{
	struct nfp_pending *pending = stream->batch;
	stream->facts.length = length;
	if (!pending || pending->kind != NFP_PENDING_MESSAGE_SCOPE || !pending->packets.count)
		return;
	struct nfp_packet *packet = &pending->packets.items[pending->packets.count - 1];
	if (packet->ip_version == NFP_VERSION_MESSAGE && !packet->length)
		put_body(packet, length);
}

// A value that a call captured. Returns 0 when it is no value of the call itself.
int nfp_message_value(struct nfp_stream *stream, uint32_t role, uint64_t value)
{
	if (role == NFP_ROLE_LENGTH)
		put_length(stream, value);
	else if (role == NFP_ROLE_NUMBER)
		stream->facts.number = value;
	return role != NFP_ROLE_MESSAGE;
}

void nfp_message_sent(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t index)
{
	struct nfp_open *open = &stream->tree.items[index];
	if (!(open->flags & NFP_OPEN_VALUE)) {
		pipeline->counts.generated++;
		return;
	}
	struct nfp_event event = {.ticks = open->start_ticks,
	                          .done_ticks = stream->last_ticks,
	                          .buffer = open->value >> NUMBER_BITS,
	                          .function = open->function,
	                          .kind = NFP_EVENT_SEND};
	if (!nfp_event_append(pipeline, stream, event))
		pipeline->counts.generated++;
	open->value &= (1u << NUMBER_BITS) - 1;
	if (stream->batch)
		stream->batch->handed++;
}
