// SPDX-License-Identifier: Apache-2.0
// Writes the wait of a packet between two batches (otlp_span.h): from the end of the batch that it was in to the start
// of the one that took it over. Where they overlap, the first went on with other packets: then the wait is not known,
// and its span has no length. The caller has checked the room.
#include "otlp_span.h"
#include "otlp_wire.h"

static const struct nfp_key DURATION = NFP_KEY("nf.duration_ns");
static const struct nfp_key HANDOVER = NFP_KEY("nf.handover");

void nfp_span_find_handovers(struct nfp_trace *trace, uint32_t packet)
{
	const struct nfp_otlp_job *job = trace->job;
	uint32_t low = 0, high = job->handovers ? job->handover_count : 0;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (job->handovers[middle].packet < packet)
			low = middle + 1;
		else
			high = middle;
	}
	trace->handovers = job->handovers + low;
	trace->handover_count = 0;
	while (low < job->handover_count && job->handovers && trace->handover_count < NFP_HANDOVERS_MAX &&
	       job->handovers[low].packet == packet && job->handovers[low].batch < job->batch_count) {
		trace->handover_count++;
		low++;
	}
}

int nfp_span_find_taker(const struct nfp_otlp_job *job, uint32_t packet, uint32_t number,
                        struct nfp_trace_id *trace, uint64_t *span)
{
	struct nfp_trace found = {.job = job};
	nfp_span_find_handovers(&found, packet);
	if (number > found.handover_count)
		return 0;
	struct nfp_trace_id unique;
	const struct nfp_packet *row = &job->packets[packet];
	if (job->is_linked) {
		nfp_id_batch(job->session_id, job->batches[found.handovers[number - 1].batch].id, trace);
		*span = nfp_id_span(trace, NFP_SPAN_BATCH);
	} else {
		nfp_id_unique(job->session_id, row, job->batches[row->batch].id, &unique);
		*span = nfp_id_span(&unique, nfp_id_handover(number) + NFP_SPAN_BATCH);
	}
	return 1;
}

uint8_t *nfp_span_write_handover_number(uint8_t *p, const struct nfp_trace *trace)
{
	return trace->handover ? nfp_wire_int(p, &HANDOVER, trace->handover) : p;
}

uint8_t *nfp_span_write_handover(uint8_t *p, struct nfp_trace *trace, uint64_t since_ticks)
{
	static const char head[] = "\x2a\x0a"
	                           "queue wait\x30\x01";
	const struct nfp_otlp_job *job = trace->job;
	uint64_t end_ns = nfp_clock_unix_ns(&trace->clock, trace->batch->start_ticks);
	uint64_t start_ns = nfp_clock_unix_ns(&trace->clock, since_ticks);
	if (start_ns > end_ns)
		start_ns = end_ns;
	uint8_t *start = p;
	p = nfp_span_begin(p, trace, trace->ordinal + NFP_SPAN_QUEUE, NFP_SPAN_PACKET);
	p = nfp_wire_bytes(p, head, sizeof(head) - 1);
	p = nfp_span_times(p, trace, start_ns, end_ns);
	p = nfp_wire_int(p, &DURATION, end_ns - start_ns);
	p = nfp_span_write_handover_number(p, trace);
	if (job->is_linked) {
		struct nfp_trace_id id;
		nfp_id_batch(job->session_id, trace->batch->id, &id);
		p = nfp_span_link_to(p, trace, id.high, id.low, nfp_id_span(&id, NFP_SPAN_BATCH));
	}
	return nfp_span_end(start, p);
}
