// SPDX-License-Identifier: Apache-2.0
// Trace and span ids: derived from what a packet is and where it stood, so that the same recording always gives
// the same ids. Called by the span writer and, for sampling, through nfp_otlp_trace_ids.
#ifndef NFPROBE_OTLP_ID_H
#define NFPROBE_OTLP_ID_H
#include "otlp.h"

struct nfp_trace_id {
	uint64_t high;
	uint64_t low;
};

// Ordinals of the spans of one packet. The call at `index` of its batch has NFP_SPAN_FIRST_CALL + index.
enum { NFP_SPAN_PACKET = 0, NFP_SPAN_QUEUE = 1, NFP_SPAN_BATCH = 2, NFP_SPAN_FIRST_CALL = 3 };

// A bijection of 64 bits in which every input bit reaches every output bit (the finaliser of splitmix64).
static inline uint64_t nfp_id_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static inline void nfp_id_trace(uint64_t session_id, const struct nfp_packet *packet, uint64_t batch_id,
                                struct nfp_trace_id *id)
{
	// Two chains with different seeds: 128 bits, of which either half alone is well mixed.
	const uint64_t odd = 0x9e3779b97f4a7c15u;
	uint64_t high = nfp_id_mix(session_id + odd), low = nfp_id_mix(~session_id);
	high = nfp_id_mix(high ^ packet->digest), low = nfp_id_mix(low + packet->digest);
	high = nfp_id_mix(high + packet->receive_ticks), low = nfp_id_mix(low ^ packet->receive_ticks);
	high = nfp_id_mix(high ^ batch_id), low = nfp_id_mix(low + batch_id);
	high = nfp_id_mix(high + packet->index * odd), low = nfp_id_mix(low ^ packet->index * odd);
	// Zero is not a valid id.
	id->high = high ? high : 1;
	id->low = low;
}

// Different for each ordinal of a trace, because mixing is a bijection and the factor is odd.
static inline uint64_t nfp_id_span(const struct nfp_trace_id *trace, uint64_t ordinal)
{
	uint64_t id = nfp_id_mix(trace->high + ordinal * 0x9e3779b97f4a7c15u) ^ trace->low;
	return id ? id : 1;
}
#endif
