// SPDX-License-Identifier: Apache-2.0
// Detail: what the pipeline does about functions whose gate was closed while they were open (native/probe/detail.c).
// Only calls around the receive call can be: one end of theirs was recorded and the other was not. They are counted
// apart, because nothing was lost. See stream.h.
#include "stream.h"

// A batch begins whose inner functions are not timed.
void nfp_detail_close(struct nfp_pipeline *pipeline, struct nfp_stream *stream)
{
	uint64_t before = stream->tree.unpaired_entries;
	nfp_calltree_give_up(&stream->tree, stream->log, NFP_ROLE_CALL);
	pipeline->counts.ungated += stream->tree.unpaired_entries - before;
	stream->tree.unpaired_entries = before;
	stream->closes = 1;
}

// An exit without its entry. 0: it is none of those.
int nfp_detail_is_ungated(struct nfp_pipeline *pipeline, const struct nfp_stream *stream, uint32_t role)
{
	if (!stream->closes || role != NFP_ROLE_CALL)
		return 0;
	pipeline->counts.ungated++;
	return 1;
}
