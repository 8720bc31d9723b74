// SPDX-License-Identifier: Apache-2.0
// Turns: of a program that nothing else is known of, a batch is what a thread runs from one call of a chosen
// function to the next (an event loop's turn). It holds one packet without headers, which is done when the batch
// ends. See stream.h.
#include "stream.h"

// A call inside another one of the same function ends no turn.
static int is_nested(struct nfp_calltree *tree, uint32_t rsp)
{
	nfp_calltree_spend(tree, tree->count);
	for (uint32_t i = 0; i < tree->count; i++)
		if (tree->items[i].role == NFP_ROLE_TURN && !(tree->items[i].flags & NFP_OPEN_DOUBTFUL) &&
		    nfp_rsp_encloses(tree->items[i].rsp, rsp))
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
	uint64_t x = (ticks ^ (uint64_t)thread << 48) + 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

void nfp_turn_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t ticks,
                    uint32_t function, uint32_t rsp)
{
	if (is_nested(&stream->tree, rsp))
		return;
	nfp_calltree_displace(&stream->tree, stream->log, rsp, 1);
	struct nfp_pending *before = stream->batch;
	struct nfp_batch batch = {
	    .start_ticks = ticks, .thread = stream->thread, .function = function, .size = 1};
	struct nfp_pending *pending = nfp_batch_begin_inside(pipeline, stream, &batch, NFP_NONE, rsp);
	if (before && before->kind == NFP_PENDING_TURN && before->packets.count)
		end_turn(pipeline, before, ticks);
	if (!pending)
		return;
	pending->kind = NFP_PENDING_TURN;
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
