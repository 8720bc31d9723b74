// SPDX-License-Identifier: Apache-2.0
// Absorbed packets: a call has taken them in, and it does not say what became of them. Reassembly keeps fragments over turns:
// one of them comes out again as the whole packet, in the buffer of the first one, and the others are in it or behind it.
// Fragmentation sends new packets in new buffers, and frees the one that it was given. So a packet that such a call has
// taken in counts as absorbed until it is seen to leave. Its buffer may be used for another packet at once: the digest tells
// whether it is the same one, except for the first fragment, which has become another. See stream.h.
#include "stream.h"

void nfp_absorb_call_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t index)
{
	const struct nfp_open *open = &stream->tree.items[index];
	uint32_t first = open->handed < stream->handed.count ? open->handed : stream->handed.count;
	enum nfp_event_kind kind = open->role == NFP_ROLE_KEEP ? NFP_EVENT_KEEP : NFP_EVENT_REPLACE;
	for (uint32_t i = first; i < stream->handed.count; i++)
		(void)nfp_event_append(pipeline, stream,
		                       (struct nfp_event){.ticks = open->start_ticks,
		                                          .done_ticks = stream->last_ticks,
		                                          .buffer = stream->handed.items[i].buffer,
		                                          .function = open->function,
		                                          .kind = (uint16_t)kind});
	nfp_handed_cut(stream, first);
}

void nfp_absorb(struct nfp_pipeline *pipeline, const struct nfp_event *event)
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

int nfp_absorbed_may_leave(const struct nfp_packet *packet, const struct nfp_event *event)
{
	if (packet->disposition != NFP_ABSORBED || event->digest == packet->digest)
		return 1;
	return !packet->done_digest && !(packet->flags & NFP_PACKET_FRAGMENT);
}

void nfp_absorbed_leaves(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                         struct nfp_packet *packet)
{
	if (packet->disposition != NFP_ABSORBED)
		return;
	packet->disposition = NFP_UNKNOWN;
	pending->absorbed--;
	pipeline->counts.absorbed--;
}
