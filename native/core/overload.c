// SPDX-License-Identifier: Apache-2.0
// How much may be pending between two takes, of all threads together. What is over a bound is delivered before its time, or
// given up. See stream.h.
#include "stream.h"

void nfp_pending_collect(struct nfp_pipeline *pipeline, uint64_t until_ticks, int all)
{
	nfp_packets_match(pipeline, until_ticks);
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		struct nfp_stream *stream = pipeline->streams[i];
		if (stream)
			stream->ended_matched =
			    until_ticks == UINT64_MAX ? stream->ended_total : stream->ended_taken;
	}
	nfp_queues_look(pipeline, until_ticks == UINT64_MAX);
	nfp_batches_deliver(pipeline, all);
}

// Whether more is pending than all but `less` parts of what may be.
static int too_much_pending(const struct nfp_pipeline *pipeline, uint32_t less)
{
	uint64_t parts = NFP_PENDING_PARTS - less;
	return pipeline->pending_batches > NFP_PENDING_BATCHES_MAX / NFP_PENDING_PARTS * parts ||
	       pipeline->pending_calls > NFP_PENDING_CALLS_MAX / NFP_PENDING_PARTS * parts ||
	       pipeline->pending_packets > NFP_PENDING_PACKETS_MAX / NFP_PENDING_PARTS * parts ||
	       pipeline->events > NFP_EVENTS_MAX / NFP_PENDING_PARTS * parts;
}

// As if each thread's next records were not of its batch.
static void end_batches(struct nfp_pipeline *pipeline)
{
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		struct nfp_stream *stream = pipeline->streams[i];
		if (!stream || !stream->batch)
			continue;
		if (stream->describing == NFP_DESCRIBING_RECEIVED)
			stream->describing = NFP_DESCRIBING_STRAY;
		const struct nfp_calltree *tree = &stream->tree;
		nfp_batch_end(pipeline, stream, tree->count ? tree->items[tree->count - 1].rsp - 1 : 0);
	}
}

// All that is pending is looked at here: unless that makes enough room for a while, more is given up, down to the batches
// that have not ended; those that took their packets over are held by packets, hence twice.
void nfp_pending_bound(struct nfp_pipeline *pipeline)
{
	if (!too_much_pending(pipeline, 0))
		return;
	nfp_pending_collect(pipeline, UINT64_MAX, 0);
	if (too_much_pending(pipeline, 1))
		nfp_pending_collect(pipeline, UINT64_MAX, 1);
	if (!too_much_pending(pipeline, 1))
		return;
	end_batches(pipeline);
	nfp_pending_collect(pipeline, UINT64_MAX, 1);
	nfp_pending_collect(pipeline, UINT64_MAX, 1);
}
