// SPDX-License-Identifier: Apache-2.0
// Trace ids of many packets at once, for sampling.py, which compares their low 56 bits with its threshold.
#include "otlp_id.h"

void nfp_otlp_trace_ids(const struct nfp_otlp_job *job, const uint32_t *packets, uint32_t count,
                        uint64_t *ids)
{
	struct nfp_clock_cursor clock = {job->anchors, job->anchor_count, 0};
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_trace_id id = {0, 0};
		const struct nfp_packet *packet =
		    packets[i] < job->packet_count ? &job->packets[packets[i]] : NULL;
		if (packet && packet->batch < job->batch_count)
			nfp_id_trace(job, packet, job->batches[packet->batch].id, &clock, &id);
		ids[2 * (size_t)i] = id.high;
		ids[2 * (size_t)i + 1] = id.low;
	}
}
