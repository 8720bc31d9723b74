// SPDX-License-Identifier: Apache-2.0
// Holds: one thread keeps all others from running (VPP's barrier). A call of role HOLD returns when they stand still, one of
// role RELEASE lets them go; calls between them may hold and release once more, which changes nothing. What it is done for
// says the text of the innermost call of role COMMAND that is open then, or the call's own. The last ones are given with
// each take: what waited for them may come later. See stream.h.
#include "stream.h"
#include "abi/record.h"

enum { GIVEN_AGAIN = 32 }; // of those that earlier takes have
enum { COMMAND_REACH_BYTES = 1 << 18 }; // of the stack: a coroutine that waits has another one

void nfp_hold_begin_text(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                         const struct nfp_record *record)
{
	uint32_t i = nfp_calltree_innermost(&stream->tree, nfp_record_function(record));
	stream->describing = i ? NFP_DESCRIBING_TEXT : NFP_DESCRIBING_STRAY;
	pipeline->counts.stray_packets += !i;
	stream->hold.described = i - 1;
}

void nfp_hold_fact(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_record *record)
{
	if (stream->hold.described >= stream->tree.count)
		return;
	struct nfp_open *open = &stream->tree.items[stream->hold.described];
	if (nfp_record_kind(record) == NFP_PACKET_ID) {
		open->value = record->value;
		open->flags |= NFP_OPEN_VALUE;
	} else if (nfp_record_kind(record) == NFP_PACKET_TOPIC) {
		nfp_message_begin_text(stream, record->sp);
	} else if (nfp_record_kind(record) == NFP_PACKET_TEXT) {
		nfp_message_text(pipeline, stream, open->value, record);
	}
}

// The digest of the text of what the call is done for; 0: it has none.
static uint64_t find_text(struct nfp_stream *stream, const struct nfp_open *open)
{
	uint64_t own = open->flags & NFP_OPEN_VALUE ? open->value : 0;
	nfp_calltree_spend(&stream->tree, stream->tree.count);
	for (uint32_t i = stream->tree.count; i-- > 0;) {
		const struct nfp_open *outer = &stream->tree.items[i];
		if (outer->role == NFP_ROLE_COMMAND && outer->flags & NFP_OPEN_VALUE &&
		    outer->sp - open->sp - 1 < COMMAND_REACH_BYTES && !(outer->flags & NFP_OPEN_DOUBTFUL))
			return outer->value;
	}
	return own;
}

static void add(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t ticks)
{
	struct nfp_hold *hold = &pipeline->holds.items[pipeline->holds.total++ % NFP_HOLDS_MAX];
	struct nfp_topic_entry *text = nfp_topics_find(&pipeline->topics, stream->hold.digest);
	*hold = (struct nfp_hold){.start_ticks = stream->hold.start_ticks,
	                          .held_ticks = stream->hold.held_ticks,
	                          .end_ticks = ticks,
	                          .thread = stream->thread,
	                          .function = stream->hold.function};
	if (!text || !stream->hold.digest)
		return;
	hold->size = text->topic.size;
	for (uint32_t i = 0; i < sizeof(hold->text); i++)
		hold->text[i] =
		    text->topic.text[i] < ' ' || text->topic.text[i] == 0x7f ? '?' : text->topic.text[i];
}

void nfp_hold_call_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, struct nfp_open *open,
                       uint64_t ticks)
{
	uint64_t digest = open->role == NFP_ROLE_HOLD ? find_text(stream, open) : 0;
	open->flags &= ~NFP_OPEN_VALUE; // a digest is nobody's number
	if (open->role == NFP_ROLE_HOLD && stream->hold.level++ == 0) {
		stream->hold.start_ticks = open->start_ticks;
		stream->hold.held_ticks = ticks;
		stream->hold.function = open->function;
		stream->hold.digest = digest;
	} else if (open->role == NFP_ROLE_RELEASE && stream->hold.level && --stream->hold.level == 0) {
		add(pipeline, stream, ticks);
	}
}

uint32_t nfp_holds_give(struct nfp_pipeline *pipeline)
{
	uint64_t total = pipeline->holds.total, wanted = total - pipeline->holds.given_total + GIVEN_AGAIN;
	uint64_t kept = total < NFP_HOLDS_MAX ? total : NFP_HOLDS_MAX;
	uint32_t count = (uint32_t)(wanted < kept ? wanted : kept);
	pipeline->holds.given_total = total;
	for (uint32_t i = 0; i < count; i++)
		pipeline->holds.given[i] = pipeline->holds.items[(total - count + i) % NFP_HOLDS_MAX];
	return count;
}
