// SPDX-License-Identifier: Apache-2.0
// Trace and span ids: derived from what a packet is and where it stood, so that the same recording always gives
// the same ids. Called by the span writer and, for sampling, through nfp_otlp_trace_ids.
#ifndef NFPROBE_OTLP_ID_H
#define NFPROBE_OTLP_ID_H
#include "otlp.h"
#include "packet_id.h"
#include "abi/record.h"

struct nfp_trace_id {
	uint64_t high;
	uint64_t low;
};

// Ordinals of the spans of one packet. The call at `index` of its batch has NFP_SPAN_FIRST_CALL + index.
enum { NFP_SPAN_PACKET = 0, NFP_SPAN_QUEUE = 1, NFP_SPAN_BATCH = 2, NFP_SPAN_FIRST_CALL = 3 };

// Added to them for what belongs to the packet's handover number 1 and on.
static inline uint64_t nfp_id_handover(uint32_t number)
{
	return (uint64_t)number << 32;
}

// The packet at an index whose batch is in the columns; NULL: there is none.
static inline const struct nfp_packet *nfp_id_packet(const struct nfp_otlp_job *job, uint32_t index)
{
	const struct nfp_packet *packet = index < job->packet_count ? &job->packets[index] : NULL;
	return packet && packet->batch < job->batch_count ? packet : NULL;
}

// Of this packet in this session, and of no other.
static inline void nfp_id_unique(uint64_t session_id, const struct nfp_packet *packet, uint64_t batch_id,
                                 struct nfp_trace_id *id)
{
	// Two chains with different seeds: 128 bits, of which either half alone is well mixed.
	const uint64_t odd = 0x9e3779b97f4a7c15u;
	uint64_t high = nfp_mix(session_id + odd), low = nfp_mix(~session_id);
	high = nfp_mix(high ^ packet->digest), low = nfp_mix(low + packet->digest);
	high = nfp_mix(high + packet->receive_ticks), low = nfp_mix(low ^ packet->receive_ticks);
	high = nfp_mix(high ^ batch_id), low = nfp_mix(low + batch_id);
	high = nfp_mix(high + packet->index * odd), low = nfp_mix(low ^ packet->index * odd);
	// Zero is not a valid id.
	id->high = high ? high : 1;
	id->low = low;
}

// Of a batch that is a trace of its own.
static inline void nfp_id_batch(uint64_t session_id, uint64_t batch_id, struct nfp_trace_id *id)
{
	uint64_t high = nfp_mix(nfp_mix(session_id) ^ batch_id);
	id->low = nfp_mix(nfp_mix(~session_id) + batch_id);
	id->high = high ? high : 1;
}

// Of all packets with this content that any monitor sees in this window of time. docs/identity.md defines it.
static inline void nfp_id_correlated(uint64_t content, uint64_t window, struct nfp_trace_id *id)
{
	uint64_t high = nfp_mix(nfp_mix(content) + window);
	id->low = nfp_mix(~high ^ content);
	id->high = high ? high : 1;
}

// Whether the trace id is shared: the content is the only one of its window, as far as is known. A broker's
// message has the digest of its topic, which many share.
static inline int nfp_id_is_correlated(const struct nfp_otlp_job *job, const struct nfp_packet *packet)
{
	return job->correlate_window_ns && packet->ip_version != NFP_VERSION_MESSAGE &&
	       !(packet->flags & NFP_PACKET_AMBIGUOUS);
}

static inline void nfp_id_trace(const struct nfp_otlp_job *job, const struct nfp_packet *packet,
                                uint64_t batch_id, struct nfp_clock_cursor *clock, struct nfp_trace_id *id)
{
	if (nfp_id_is_correlated(job, packet))
		nfp_id_correlated(packet->digest,
		                  nfp_clock_unix_ns(clock, packet->receive_ticks) / job->correlate_window_ns,
		                  id);
	else
		nfp_id_unique(job->session_id, packet, batch_id, id);
}

// Different for each ordinal of a packet, because mixing is a bijection and the factor is odd.
// `packet` is the packet's unique id: two NFs have different spans in one trace.
static inline uint64_t nfp_id_span(const struct nfp_trace_id *packet, uint64_t ordinal)
{
	uint64_t id = nfp_mix(packet->high + ordinal * 0x9e3779b97f4a7c15u) ^ packet->low;
	return id ? id : 1;
}

// Where the batch of a packet is a span. Returns 0 when the batch is not in the columns.
static inline int nfp_id_batch_span(const struct nfp_otlp_job *job, const struct nfp_packet *packet,
                                    struct nfp_clock_cursor *clock, struct nfp_trace_id *trace,
                                    uint64_t *span)
{
	if (packet->batch >= job->batch_count)
		return 0;
	uint64_t batch_id = job->batches[packet->batch].id;
	struct nfp_trace_id unique;
	if (job->is_linked) {
		nfp_id_batch(job->session_id, batch_id, trace);
		unique = *trace;
	} else {
		nfp_id_trace(job, packet, batch_id, clock, trace);
		nfp_id_unique(job->session_id, packet, batch_id, &unique);
	}
	*span = nfp_id_span(&unique, NFP_SPAN_BATCH);
	return 1;
}

// The stretched copy of a trace, a display aid: pages that show microseconds show its ns (docs/export.md). Times are
// multiplied around the trace's start; trace and span ids are derived from the true ones, links' ids in the same way,
// so that the copies are connected as the traces are. The low word of a trace id stays: it is what samplers compare.

static inline int nfp_scale_is_on(const struct nfp_otlp_job *job)
{
	return __builtin_expect(job->time_scale > 1, 0);
}

// The high word of a trace id, or a span id, as it is written.
static inline uint64_t nfp_scale_id(const struct nfp_otlp_job *job, uint64_t id)
{
	if (!nfp_scale_is_on(job))
		return id;
	id = nfp_mix(id ^ job->time_scale * 0x9e3779b97f4a7c15u);
	return id ? id : 1;
}

// A moment of a trace that begins at origin_ns.
static inline uint64_t nfp_scale_ns(const struct nfp_otlp_job *job, uint64_t origin_ns, uint64_t ns)
{
	return nfp_scale_is_on(job) ? origin_ns + (ns - origin_ns) * job->time_scale : ns;
}
#endif
