// SPDX-License-Identifier: Apache-2.0
// What became of the records and packets, over all threads of a pipeline. See pipeline.h.
#include "pipeline.h"
#include "stream.h"

static uint64_t not_done(const struct nfp_pending *pending)
{
	const struct nfp_batch *batch = &pending->batch;
	if (batch->flags & NFP_BATCH_TAKEN_OVER)
		return 0; // they are counted where they were received
	uint64_t done = (uint64_t)batch->transmitted + batch->dropped;
	return done < batch->size ? batch->size - done : 0;
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
	uint64_t known = counts->transmitted - counts->resent + counts->dropped + counts->pending;
	counts->unknown = counts->received > known ? counts->received - known : 0;
}
