// SPDX-License-Identifier: Apache-2.0
// Steps in a thread's records: time steps back, or records are missing whose stamps could not be. What is open is given up
// and the batch ends, since either may be true of calls of before and of after; what follows is read as ever. See stream.h.
#include "stream.h"

void nfp_stream_interrupt(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t records)
{
	pipeline->counts.mistimed += records;
	pipeline->lossy = stream->poll.lossy = 1;
	if (stream->batch)
		stream->batch->batch.flags |= NFP_BATCH_LOSSY;
	nfp_calltree_clear(&stream->tree, stream->log);
	nfp_handed_cut(stream, 0);
	nfp_batch_end(pipeline, stream, 0);
}

// The counter was set back, as when a machine goes on elsewhere, or a stamp before was wrong.
void nfp_stream_step_back(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t ticks)
{
	nfp_stream_interrupt(pipeline, stream, 1);
	nfp_stream_match(pipeline, stream);
	nfp_outside_deliver(pipeline, stream, 1);
	stream->last_ticks = stream->gone_ticks = ticks ? ticks : 1; // 0 means open in a row
	if (pipeline->lost_ticks > stream->last_ticks)
		pipeline->lost_ticks = stream->last_ticks; // found anew: records were lost
	if (pipeline->made_ticks > stream->last_ticks)
		pipeline->made_ticks = stream->last_ticks;
}
