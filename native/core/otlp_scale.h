// SPDX-License-Identifier: Apache-2.0
// The stretched copy of a trace, a display aid: pages that show microseconds show its ns (docs/export.md). Times are
// multiplied around the trace's start; trace and span ids are derived from the true ones, links' ids in the same way,
// so that the copies are connected as the traces are. The low word of a trace id stays: it is what samplers compare.
#ifndef NFPROBE_OTLP_SCALE_H
#define NFPROBE_OTLP_SCALE_H
#include "otlp_id.h"

static inline int nfp_scale_is_on(const struct nfp_otlp_job *job)
{
	return __builtin_expect(job->time_scale > 1, 0);
}

// The high word of a trace id, or a span id, as it is written.
static inline uint64_t nfp_scale_id(const struct nfp_otlp_job *job, uint64_t id)
{
	if (!nfp_scale_is_on(job))
		return id;
	id = nfp_id_mix(id ^ job->time_scale * 0x9e3779b97f4a7c15u);
	return id ? id : 1;
}

// A moment of a trace that begins at origin_ns.
static inline uint64_t nfp_scale_ns(const struct nfp_otlp_job *job, uint64_t origin_ns, uint64_t ns)
{
	return nfp_scale_is_on(job) ? origin_ns + (ns - origin_ns) * job->time_scale : ns;
}
#endif
