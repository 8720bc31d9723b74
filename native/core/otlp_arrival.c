// SPDX-License-Identifier: Apache-2.0
// Writes when a packet came, and the span of its wait (otlp_span.h). Arrivals are stamped, from a capture file, or
// bounds that the polls give; `nf.arrival.source` says which. The caller has checked the room.
#include "arrival.h"
#include "otlp_span.h"
#include "otlp_wire.h"

static const struct nfp_key DURATION = NFP_KEY("nf.duration_ns");
static const struct nfp_key SOURCE = NFP_KEY("nf.arrival.source");
static const struct nfp_key EARLIEST = NFP_KEY("nf.arrival.earliest");
static const struct nfp_key LATEST = NFP_KEY("nf.arrival.latest");

// In step with arrival.py. NULL: nothing is known.
static const char *find_source(const struct nfp_trace *trace)
{
	static const char *const words[NFP_ORIGINS] = {"mbuf stamp", "capture", "poll", "saturated"};
	enum nfp_origin origin = nfp_life_origin(trace->packet, trace->batch);
	return origin == NFP_FROM_RECEIVE && !trace->batch->earliest_ticks ? NULL : words[origin];
}

uint8_t *nfp_span_write_arrival(uint8_t *p, struct nfp_trace *trace)
{
	const struct nfp_packet *packet = trace->packet;
	const char *source = find_source(trace);
	if (!source)
		return p;
	p = nfp_wire_string(p, &SOURCE, source, strlen(source));
	if (nfp_arrival_known(packet, trace->batch->start_ticks))
		return p;
	if (!(trace->batch->flags & NFP_BATCH_SATURATED))
		p = nfp_wire_int(p, &EARLIEST,
		                 nfp_clock_unix_ns(&trace->clock, trace->batch->earliest_ticks));
	return nfp_wire_int(p, &LATEST, nfp_clock_unix_ns(&trace->clock, packet->receive_ticks));
}

static uint8_t *write_links(uint8_t *p, struct nfp_trace *trace)
{
	const struct nfp_otlp_job *job = trace->job;
	for (uint32_t i = 0; i < trace->waited_count && trace->waited[i] < job->packet_count; i++) {
		struct nfp_trace_id id;
		uint64_t span;
		if (!nfp_id_batch_span(job, &job->packets[trace->waited[i]], &trace->clock, &id, &span))
			break;
		p = nfp_span_link_to(p, trace, id.high, id.low, span);
	}
	return p;
}

uint8_t *nfp_span_write_wait(uint8_t *p, struct nfp_trace *trace, uint64_t start_ns, uint64_t batch_ns)
{
	static const char head[] = "\x2a\x0a"
	                           "queue wait\x30\x01";
	const char *source = find_source(trace);
	uint8_t *start = p;
	p = nfp_span_begin(p, trace, NFP_SPAN_QUEUE, NFP_SPAN_PACKET);
	p = nfp_wire_bytes(p, head, sizeof(head) - 1);
	p = nfp_span_times(p, trace, start_ns, batch_ns);
	p = nfp_wire_int(p, &DURATION, batch_ns - start_ns);
	if (source)
		p = nfp_wire_string(p, &SOURCE, source, strlen(source));
	p = write_links(p, trace);
	return nfp_span_end(start, p);
}
