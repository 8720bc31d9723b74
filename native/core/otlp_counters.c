// SPDX-License-Identifier: Apache-2.0
// Writes what was counted in a call as attributes of its span: nf.counter.NAME, of what the call did alone
// nf.counter.NAME.self, or that its counters could not be compared. The caller has checked the room (otlp.c).
#include "otlp_span.h"
#include "otlp_wire.h"

static const struct nfp_key INVALID = NFP_KEY("nf.counter.invalid");

// Rows are in the order of their calls.
static uint64_t call_at(const void *rows, uint32_t place)
{
	return ((const struct nfp_call_counters *)rows)[place].call;
}

// NULL: its names are forgotten.
static const struct nfp_otlp_counter_set *set_of(const struct nfp_otlp_job *job, uint32_t number)
{
	for (uint32_t i = job->counter_set_count; i-- > 0;)
		if (job->counter_sets[i].set == number)
			return &job->counter_sets[i];
	return NULL;
}

static uint8_t *write_count(uint8_t *p, const struct nfp_trace *trace, struct nfp_otlp_text name,
                            uint64_t value)
{
	uint32_t value_size = 1 + nfp_wire_varint_size(value);
	p[0] = 0x4a; // as nfp_wire_key, with a longer name
	p[1] = (uint8_t)(name.size + 4 + value_size);
	p[2] = 0x0a;
	p[3] = (uint8_t)name.size;
	p = nfp_span_text(p + 4, trace, name);
	p[0] = 0x12;
	p[1] = (uint8_t)value_size;
	p[2] = 0x18;
	return nfp_wire_varint(p + 3, value);
}

uint8_t *nfp_span_write_counters(uint8_t *p, const struct nfp_trace *trace, uint32_t call)
{
	const struct nfp_otlp_job *job = trace->job;
	uint32_t place = nfp_span_find(job->counters, job->counters_count, call, call_at);
	if (place == NFP_NONE)
		return p;
	const struct nfp_call_counters *row = &job->counters[place];
	if (!(row->flags & NFP_COUNTERS_VALID))
		return nfp_wire_true(p, &INVALID);
	const struct nfp_otlp_counter_set *set = set_of(job, row->set);
	for (uint32_t i = 0; set && i < set->count; i++) {
		const struct nfp_otlp_counter *counter = &job->counter_names[set->first + i];
		p = write_count(p, trace, counter->name, row->inclusive[i] * counter->scale);
		if (row->flags & NFP_COUNTERS_SELF_VALID)
			p = write_count(p, trace, counter->self_name, row->self[i] * counter->scale);
	}
	return p;
}
