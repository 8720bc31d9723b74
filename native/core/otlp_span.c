// SPDX-License-Identifier: Apache-2.0
// Writes spans of batches and calls, and the parts that all spans have (otlp_span.h). Field order is that of
// trace.proto, so that the bytes equal what any protobuf library writes. The caller has checked the room.
#include "otlp_span.h"
#include "otlp_wire.h"

// Writes what was counted in a call as attributes of its span: nf.counter.NAME, of what the call did alone
// nf.counter.NAME.self, or that its counters could not be compared. The caller has checked the room (otlp.c).

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

// Writes the counters of a call of the columns; nothing when it was not counted.
static uint8_t *span_write_counters(uint8_t *p, const struct nfp_trace *trace, uint32_t call)
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

enum {
	LENGTH_BYTES = 2, // room for the length of a span of 128 to 16,383 bytes: nearly every one
	FLAGS = 0x103,    // sampled, random trace id, parent is known to be local
};

static const struct nfp_key DURATION = NFP_KEY("nf.duration_ns");
static const struct nfp_key SELF = NFP_KEY("nf.self_ns");
static const struct nfp_key CLIPPED = NFP_KEY("nf.call.clipped");
static const struct nfp_key UNWOUND = NFP_KEY("nf.call.unwound");
static const struct nfp_key VALUE = NFP_KEY("nf.call.value");
static const struct nfp_key BATCH_ID = NFP_KEY("nf.batch.id");
static const struct nfp_key BATCH_SIZE = NFP_KEY("nf.batch.size");
static const struct nfp_key BATCH_INDEX = NFP_KEY("nf.batch.index");
static const struct nfp_key BATCH_REQUESTED = NFP_KEY("nf.batch.requested");
static const struct nfp_key BATCH_DETAIL = NFP_KEY("nf.batch.detail");
static const struct nfp_key BATCH_LOSSY = NFP_KEY("nf.batch.lossy");
static const struct nfp_key BATCH_UNFINISHED = NFP_KEY("nf.batch.unfinished");
static const struct nfp_key TIME_SCALE = NFP_KEY("nf.time_scale");
static const struct nfp_key CALLS_CUT = NFP_KEY("nf.batch.calls_cut");

// Everything before a span's name but its tag and length.
static uint8_t *write_ids(uint8_t *p, const struct nfp_trace *trace, uint64_t ordinal, uint64_t parent)
{
	p[0] = 0x0a;
	p[1] = 16;
	p = nfp_wire_big64(p + 2, nfp_scale_id(trace->job, trace->id.high));
	p = nfp_wire_big64(p, trace->id.low);
	p[0] = 0x12;
	p[1] = 8;
	p = nfp_wire_big64(p + 2, nfp_scale_id(trace->job, nfp_id_span(&trace->unique, ordinal)));
	if (trace->reasons & NFP_REASON_SAMPLE)
		p = nfp_wire_bytes(p, trace->job->trace_state, trace->job->trace_state_size);
	if (parent != NFP_NONE) {
		p[0] = 0x22;
		p[1] = 8;
		p = nfp_wire_big64(p + 2, nfp_scale_id(trace->job, nfp_id_span(&trace->unique, parent)));
	}
	return p;
}

uint8_t *nfp_span_begin(uint8_t *p, const struct nfp_trace *trace, uint64_t ordinal, uint64_t parent)
{
	p[0] = 0x12; // ScopeSpans.spans
	return write_ids(p + 1 + LENGTH_BYTES, trace, ordinal, parent);
}

uint8_t *nfp_span_times(uint8_t *p, const struct nfp_trace *trace, uint64_t start_ns, uint64_t end_ns)
{
	const struct nfp_otlp_job *job = trace->job;
	p = nfp_wire_fixed64(p, 0x39, nfp_scale_ns(job, trace->origin_ns, start_ns));
	p = nfp_wire_fixed64(p, 0x41, nfp_scale_ns(job, trace->origin_ns, end_ns));
	return nfp_scale_is_on(job) ? nfp_wire_int(p, &TIME_SCALE, job->time_scale) : p;
}

uint8_t *nfp_span_end(uint8_t *start, uint8_t *p)
{
	const uint8_t flags[] = {0x85, 0x01, FLAGS & 255, FLAGS >> 8, 0, 0};
	p = nfp_wire_bytes(p, flags, sizeof(flags));
	uint8_t *body = start + 1 + LENGTH_BYTES;
	size_t size = (size_t)(p - body);
	uint32_t length_bytes = nfp_wire_varint_size(size);
	if (length_bytes != LENGTH_BYTES)
		memmove(start + 1 + length_bytes, body, size);
	nfp_wire_varint(start + 1, size);
	return start + 1 + length_bytes + size;
}

uint8_t *nfp_span_link(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_tail *tail = trace->tail;
	return nfp_span_link_to(p, trace, tail->link_high, tail->link_low, tail->link_span);
}

uint8_t *nfp_span_link_to(uint8_t *p, const struct nfp_trace *trace, uint64_t high, uint64_t low,
                          uint64_t span)
{
	const uint8_t flags[] = {0x35, FLAGS & 255, FLAGS >> 8, 0, 0};
	p[0] = 0x6a;
	p[1] = 2 + 16 + 2 + 8 + sizeof(flags);
	p[2] = 0x0a;
	p[3] = 16;
	p = nfp_wire_big64(p + 4, nfp_scale_id(trace->job, high));
	p = nfp_wire_big64(p, low);
	p[0] = 0x12;
	p[1] = 8;
	p = nfp_wire_big64(p + 2, nfp_scale_id(trace->job, span));
	return nfp_wire_bytes(p, flags, sizeof(flags));
}

void nfp_otlp_batch_links(const struct nfp_otlp_job *job, const uint32_t *packets, const uint32_t *numbers,
                          uint32_t count, uint64_t *links)
{
	struct nfp_clock_cursor clock = {job->anchors, job->anchor_count, 0};
	for (uint32_t i = 0; i < count; i++, links += 3) {
		links[0] = links[1] = links[2] = 0;
		const struct nfp_packet *packet = nfp_id_packet(job, packets[i]);
		struct nfp_trace_id trace;
		uint64_t span;
		if (!packet || !nfp_id_batch_span(job, packet, &clock, &trace, &span))
			continue;
		if (numbers[i] && !nfp_span_find_taker(job, packets[i], numbers[i], &trace, &span))
			continue;
		links[0] = trace.high;
		links[1] = trace.low;
		links[2] = span;
	}
}

uint8_t *nfp_span_text(uint8_t *p, const struct nfp_trace *trace, struct nfp_otlp_text text)
{
	return nfp_wire_bytes(p, trace->job->text + text.offset, text.size);
}

static const struct nfp_otlp_function *span_function(const struct nfp_otlp_job *job, uint32_t id)
{
	uint32_t last = job->function_count - 1;
	return &job->functions[id < last ? id : last];
}

static struct nfp_otlp_text span_thread(const struct nfp_otlp_job *job, uint32_t index)
{
	uint32_t last = job->thread_count - 1;
	return job->threads[index < last ? index : last];
}

uint8_t *nfp_span_write_batch(uint8_t *p, struct nfp_trace *trace)
{
	static const char head[] = "\x2a\x05"
	                           "batch\x30\x01";
	const struct nfp_batch *batch = trace->batch;
	uint64_t start_ns = nfp_clock_unix_ns(&trace->clock, batch->start_ticks);
	uint64_t end_ns = nfp_clock_unix_ns(&trace->clock, batch->end_ticks);
	if (end_ns < start_ns)
		end_ns = start_ns;
	uint8_t *start = p;
	int is_linked = trace->job->is_linked != 0;
	if (is_linked)
		trace->origin_ns = start_ns;
	p = nfp_span_begin(p, trace, trace->ordinal + NFP_SPAN_BATCH, is_linked ? NFP_NONE : NFP_SPAN_PACKET);
	p = nfp_wire_bytes(p, head, sizeof(head) - 1);
	p = nfp_span_times(p, trace, start_ns, end_ns);
	p = nfp_wire_int(p, &BATCH_ID, batch->id);
	p = nfp_wire_int(p, &BATCH_SIZE, batch->size);
	if (!is_linked)
		p = nfp_wire_int(p, &BATCH_INDEX, trace->index);
	p = nfp_wire_int(p, &BATCH_REQUESTED, batch->requested);
	p = nfp_wire_int(p, &DURATION, end_ns - start_ns);
	p = nfp_wire_bool(p, &BATCH_DETAIL, !(batch->flags & NFP_BATCH_UNDETAILED));
	if (batch->flags & NFP_BATCH_LOSSY)
		p = nfp_wire_true(p, &BATCH_LOSSY);
	if (batch->flags & NFP_BATCH_UNFINISHED)
		p = nfp_wire_true(p, &BATCH_UNFINISHED);
	if (trace->calls_cut)
		p = nfp_wire_int(p, &CALLS_CUT, trace->calls_cut);
	if (!is_linked)
		p = nfp_span_write_handover_number(p, trace);
	p = nfp_span_text(p, trace, span_thread(trace->job, batch->thread));
	return nfp_span_end(start, p);
}

uint8_t *nfp_span_write_place(uint8_t *p, const struct nfp_trace *trace)
{
	p = nfp_wire_int(p, &BATCH_ID, trace->batch->id);
	return nfp_wire_int(p, &BATCH_INDEX, trace->packet->index);
}

// The span that encloses a call: an earlier call of the same batch, or the batch.
static uint64_t find_parent(const struct nfp_trace *trace, const struct nfp_call *call, uint32_t index)
{
	uint32_t parent = call->parent - trace->batch->first_call;
	return trace->ordinal + (call->parent != NFP_NONE && parent < index
	                             ? NFP_SPAN_FIRST_CALL + (uint64_t)parent
				     : NFP_SPAN_BATCH);
}

uint8_t *nfp_span_write_call(uint8_t *p, struct nfp_trace *trace, uint32_t index)
{
	const struct nfp_call *call = &trace->job->calls[trace->batch->first_call + index];
	const struct nfp_otlp_function *function = span_function(trace->job, call->function);
	uint64_t start_ns = nfp_clock_unix_ns(&trace->clock, call->start_ticks);
	uint64_t end_ns = nfp_clock_unix_ns(&trace->clock, call->end_ticks);
	if (end_ns < start_ns)
		end_ns = start_ns;
	uint8_t *start = p;
	p = nfp_span_begin(p, trace, trace->ordinal + NFP_SPAN_FIRST_CALL + index,
	                   find_parent(trace, call, index));
	p = nfp_span_text(p, trace, function->head);
	p = nfp_span_times(p, trace, start_ns, end_ns);
	p = nfp_span_text(p, trace, function->attribute);
	p = nfp_wire_int(p, &DURATION, end_ns - start_ns);
	p = nfp_wire_int(p, &SELF, nfp_clock_length_ns(&trace->clock, call->start_ticks, call->self_ticks));
	const uint16_t cut = NFP_CALL_CLIPPED | NFP_CALL_SHARED;
	if (call->flags & (cut | NFP_CALL_UNWOUND | NFP_CALL_VALUE)) {
		if (call->flags & cut)
			p = nfp_wire_true(p, &CLIPPED);
		if (call->flags & NFP_CALL_UNWOUND)
			p = nfp_wire_true(p, &UNWOUND);
		if (call->flags & NFP_CALL_VALUE)
			p = nfp_wire_int(p, &VALUE, call->value);
	}
	if (trace->job->counters_count)
		p = span_write_counters(p, trace, trace->batch->first_call + index);
	p = nfp_span_text(p, trace, span_thread(trace->job, call->thread));
	return nfp_span_end(start, p);
}

uint8_t *nfp_span_copy_calls(uint8_t *p, const struct nfp_trace *trace, const uint8_t *from, size_t size,
                             uint32_t count)
{
	memcpy(p, from, size);
	for (uint32_t i = 0; i < count; i++) {
		const struct nfp_call *call = &trace->job->calls[trace->batch->first_call + i];
		uint32_t length = 0, shift = 0;
		do {
			length |= (uint32_t)(*++p & 127) << shift;
			shift += 7;
		} while (*p & 128);
		p++;
		write_ids(p, trace, trace->ordinal + NFP_SPAN_FIRST_CALL + i, find_parent(trace, call, i));
		p += length;
	}
	return p;
}
