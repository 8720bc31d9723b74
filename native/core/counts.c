// SPDX-License-Identifier: Apache-2.0
// What became of the records and packets, over all threads of a pipeline. See pipeline.h.
#include "pipeline.h"
#include "stream.h"

static uint64_t not_done(const struct nfp_pending *pending)
{
	const struct nfp_batch *batch = &pending->batch;
	if (batch->flags & NFP_BATCH_TAKEN_OVER)
		return 0; // they are counted where they were received
	uint64_t done = (uint64_t)batch->transmitted + batch->dropped + pending->punted + pending->absorbed;
	return done < batch->size ? batch->size - done : 0;
}

void nfp_count_done(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                    enum nfp_disposition disposition, uint64_t packets)
{
	struct nfp_pipeline_counts *counts = &pipeline->counts;
	*(disposition == NFP_PUNTED     ? &counts->punted
	  : disposition == NFP_DROPPED  ? &counts->dropped
	  : disposition == NFP_ABSORBED ? &counts->absorbed
	                                : &counts->transmitted) += packets;
	if (!pending)
		return;
	if (disposition == NFP_PUNTED)
		pending->punted += packets;
	else if (disposition == NFP_ABSORBED)
		pending->absorbed += packets;
	else if (disposition == NFP_DROPPED)
		pending->batch.dropped += (uint32_t)packets;
	else
		pending->batch.transmitted += (uint32_t)packets;
}

void nfp_pipeline_count(const struct nfp_pipeline *pipeline, struct nfp_pipeline_counts *counts)
{
	*counts = pipeline->counts;
	for (uint32_t i = 0; i < NFP_THREAD_COUNT; i++) {
		const struct nfp_stream *stream = pipeline->streams[i];
		if (!stream)
			continue;
		counts->calls += stream->tree.paired;
		counts->unpaired_entries += stream->tree.unpaired_entries + stream->tree.doubtful;
		counts->unpaired_exits += stream->tree.unpaired_exits;
		counts->open += stream->tree.count - stream->tree.doubtful;
		counts->pending += stream->batch ? not_done(stream->batch) : 0;
		for (const struct nfp_pending *pending = stream->ended; pending; pending = pending->next)
			counts->pending += not_done(pending);
	}
	uint64_t known = counts->transmitted - counts->resent + counts->dropped + counts->punted +
	                 counts->absorbed + counts->pending;
	counts->unknown = counts->received > known ? counts->received - known : 0;
}
