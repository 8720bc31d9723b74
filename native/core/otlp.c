// SPDX-License-Identifier: Apache-2.0
// Frames OTLP requests (otlp.h): resource and scope around the spans of as many packets as fit.
//
//   out    room for frame | 0a size  resource  12 size  scope  spans ...  scope_end  resource_end
//                          ^ offset                                                              ^ offset + bytes
//
// The spans are written first; their sizes are only then known, so what stands before them is written backwards.
#include "otlp_span.h"
#include "otlp_id.h"
#include "otlp_wire.h"

// Spans of calls that were written last: the other packets of their batch have the same, but for the ids.
struct written_calls {
	const struct nfp_batch *batch; // NULL: none
	const uint8_t *start;
	size_t size;
	uint64_t ordinal; // of the trace
	uint32_t count;
	uint32_t is_sampled;
};

struct request {
	const struct nfp_otlp_job *job;
	uint8_t *limit; // spans end here at the latest
	struct nfp_otlp_result *result;
	struct nfp_clock_cursor clock;
	struct written_calls last;
};

static size_t find_head_bytes(const struct nfp_otlp_job *job)
{
	return job->resource.size + job->scope.size + 2 * (1 + NFP_WIRE_VARINT_MAX);
}

static size_t find_end_bytes(const struct nfp_otlp_job *job)
{
	return job->scope_end.size + job->resource_end.size + NFP_WIRE_SLACK;
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

// Of the attributes that a packet has by the NF's numbers.
static uint64_t find_numbered_bytes(const struct nfp_otlp_job *job)
{
	uint64_t received = 0, done = 0;
	for (uint32_t i = 0; i < job->interface_count; i++) {
		received = max_of(received, job->received_on[i].size);
		done = max_of(done, job->sent_on[i].size);
	}
	for (uint32_t i = 0; i < job->reason_count; i++)
		done = max_of(done, job->reasons_why[i].size);
	return received + done;
}

size_t nfp_otlp_prepare(struct nfp_otlp_job *job)
{
	uint64_t call = 0, root = 0, name = 0, thread = 0, counters = 0;
	for (uint32_t i = 0; i < job->function_count; i++) {
		const struct nfp_otlp_function *f = &job->functions[i];
		call = max_of(call, (uint64_t)f->head.size + f->attribute.size);
		root = max_of(root, (uint64_t)f->late_head.size + f->tail.size);
		name = max_of(name, f->name.size);
	}
	root += find_numbered_bytes(job) + (NFP_TAIL_PARTS_MAX + 1) * (NFP_SPAN_PART_BYTES + name);
	for (uint32_t i = 0; i < job->thread_count; i++)
		thread = max_of(thread, job->threads[i].size);
	for (uint32_t i = 0; i < job->counter_set_count; i++)
		counters = max_of(counters, job->counter_sets[i].count);
	uint64_t scale = nfp_scale_is_on(job) ? NFP_SPAN_SCALE_BYTES : 0;
	job->call_bytes_max = scale + NFP_SPAN_CALL_BYTES + call + thread + counters * NFP_SPAN_COUNTER_BYTES;
	job->fixed_bytes_max =
	    3 * scale + NFP_SPAN_PACKET_BYTES + NFP_SPAN_QUEUE_BYTES + NFP_SPAN_BATCH_BYTES + root + thread;
	return find_head_bytes(job) + job->fixed_bytes_max + job->call_bytes_max + find_end_bytes(job);
}

// Calls of the batch that lie inside the columns.
static uint32_t find_calls(const struct nfp_otlp_job *job, const struct nfp_batch *batch)
{
	if (batch->first_call >= job->call_count)
		return 0;
	uint32_t rest = job->call_count - batch->first_call;
	return batch->calls < rest ? batch->calls : rest;
}

// Whether the calls that were written last are those of this trace, and fit even if each were as long as can be.
static int is_written(const struct request *request, const uint8_t *p, const struct nfp_trace *trace,
                      uint32_t count)
{
	const struct written_calls *last = &request->last;
	return last->batch == trace->batch && last->count == count && last->ordinal == trace->ordinal &&
	       last->is_sampled == (trace->reasons & NFP_REASON_SAMPLE) && !nfp_scale_is_on(request->job) &&
	       (uint64_t)(request->limit - p) >= last->size + request->job->call_bytes_max;
}

// Writes the trace's batch with its calls, as long as there are fewer than `calls` in *written. Returns the end, or
// NULL: *written calls fitted.
static uint8_t *write_batch(struct request *request, uint8_t *p, struct nfp_trace *trace, uint32_t calls,
                            uint32_t *written, uint32_t *spans)
{
	const uint64_t call_bytes = request->job->call_bytes_max;
	uint32_t all = find_calls(request->job, trace->batch), left = calls - *written;
	uint32_t own_calls = all < left ? all : left;
	struct nfp_trace own, *batch = trace;
	trace->calls_cut = all - own_calls;
	if (request->job->is_linked) {
		own = *trace;
		nfp_id_batch(request->job->session_id, trace->batch->id, &own.id);
		own.unique = own.id;
		own.ordinal = 0;
		own.reasons = 0; // its trace id is no packet's, so no sample has drawn it
		batch = &own;
	}
	p = nfp_span_write_batch(p, batch);
	*spans += 1 + own_calls;
	if (is_written(request, p, batch, own_calls)) {
		*written += own_calls;
		return nfp_span_copy_calls(p, batch, request->last.start, request->last.size, own_calls);
	}
	const uint8_t *start = p;
	for (uint32_t i = 0; i < own_calls; i++) {
		if ((uint64_t)(request->limit - p) < call_bytes)
			return NULL;
		p = nfp_span_write_call(p, batch, i);
		*written += 1;
	}
	request->last = (struct written_calls){.batch = batch->batch,
	                                       .start = start,
	                                       .size = (size_t)(p - start),
	                                       .ordinal = batch->ordinal,
	                                       .count = own_calls,
	                                       .is_sampled = batch->reasons & NFP_REASON_SAMPLE};
	return p;
}

static int opens(const struct nfp_otlp_job *job, const struct nfp_handover *handover)
{
	return !job->is_linked || (job->handover_opens && job->handover_opens[handover - job->handovers]);
}

// The batches in which the packet went on, each behind the wait for it.
static uint8_t *write_handovers(struct request *request, uint8_t *p, const struct nfp_trace *trace,
                                uint32_t calls, uint32_t *written, uint32_t *spans)
{
	const struct nfp_otlp_job *job = request->job;
	struct nfp_trace taken = *trace;
	for (uint32_t i = 0; p && i < trace->handover_count; i++) {
		if ((uint64_t)(request->limit - p) < job->fixed_bytes_max)
			return NULL;
		uint64_t since_ticks = taken.batch->end_ticks;
		taken.batch = &job->batches[trace->handovers[i].batch];
		taken.handover = i + 1;
		taken.ordinal = nfp_id_handover(i + 1);
		taken.index = trace->handovers[i].index;
		p = nfp_span_write_handover(p, &taken, since_ticks);
		*spans += 1;
		if (opens(job, &trace->handovers[i]))
			p = write_batch(request, p, &taken, calls, written, spans);
	}
	return p;
}

// Writes a packet's trace with at most `calls` calls. Returns its end, or NULL and in *written how many calls fitted.
static uint8_t *write_trace(struct request *request, uint8_t *p, struct nfp_trace *trace, uint32_t calls,
                            uint32_t *written, uint32_t *spans)
{
	*written = 0;
	if ((uint64_t)(request->limit - p) < request->job->fixed_bytes_max)
		return NULL;
	p = nfp_span_write_packet(p, trace, spans);
	if (trace->has_batch)
		p = write_batch(request, p, trace, calls, written, spans);
	return p ? write_handovers(request, p, trace, calls, written, spans) : NULL;
}

// Calls of all batches that are written with the packet.
static uint32_t find_all_calls(const struct nfp_trace *trace)
{
	const struct nfp_otlp_job *job = trace->job;
	uint32_t all = trace->has_batch ? find_calls(job, trace->batch) : 0;
	for (uint32_t i = 0; i < trace->handover_count; i++)
		if (opens(job, &trace->handovers[i]))
			all += find_calls(job, &job->batches[trace->handovers[i].batch]);
	return all;
}

// What ran while the packet waited; nothing where the tables say what cannot be.
static void find_waited(struct nfp_trace *trace, uint32_t chosen)
{
	const struct nfp_otlp_job *job = trace->job;
	if (!job->representatives || !job->waits)
		return;
	uint32_t first = job->waits[2 * chosen], count = job->waits[2 * chosen + 1];
	if (first > job->representative_count || count > job->representative_count - first ||
	    count > NFP_WAITED_MAX)
		return;
	trace->waited = job->representatives + first;
	trace->waited_count = count;
}

// Writes the trace of one packet and counts it. Returns its end, or NULL if it belongs into the next request.
static uint8_t *write_packet(struct request *request, uint8_t *p, uint32_t chosen)
{
	const struct nfp_otlp_job *job = request->job;
	struct nfp_otlp_result *result = request->result;
	uint32_t index = job->selected[chosen];
	if (index >= job->packet_count || job->packets[index].batch >= job->batch_count) {
		result->bad_packets++;
		return p;
	}
	struct nfp_trace trace = {.job = job, .packet = &job->packets[index], .clock = request->clock};
	trace.batch = &job->batches[trace.packet->batch];
	trace.tail = job->tails ? &job->tails[chosen] : NULL;
	trace.reasons = job->reasons[chosen];
	trace.index = trace.packet->index;
	find_waited(&trace, chosen);
	nfp_span_find_handovers(&trace, index);
	nfp_id_trace(job, trace.packet, trace.batch->id, &trace.clock, &trace.id);
	nfp_id_unique(job->session_id, trace.packet, trace.batch->id, &trace.unique);
	trace.has_batch = !job->is_linked || (job->opens && job->opens[chosen]);
	uint32_t fixed = NFP_SPAN_FIRST_CALL + 2 * trace.handover_count;
	uint32_t all = find_all_calls(&trace), calls = all, written, spans;
	if (result->spans && all + fixed > NFP_OTLP_SPANS_MAX - result->spans)
		return NULL;
	if (all > NFP_OTLP_SPANS_MAX - fixed)
		calls = NFP_OTLP_SPANS_MAX - fixed;
	uint8_t *end = write_trace(request, p, &trace, calls, &written, &spans);
	while (!end && !result->spans) {
		request->last.batch = NULL; // its place is written again
		// Alone in its request and still too large: again, with the calls that fitted. Saying how many were cut
		// takes room as well, so that may be one less yet. Last of all its last batches are left out.
		trace.handover_count -= written == calls && trace.handover_count;
		calls = written;
		end = write_trace(request, p, &trace, calls, &written, &spans);
	}
	if (!end)
		return NULL;
	request->clock.last = trace.clock.last;
	result->spans += spans;
	result->dropped_spans += all - written;
	return end;
}

static uint8_t *write_before(uint8_t *start, const struct nfp_otlp_job *job, struct nfp_otlp_text text,
                             const uint8_t *end)
{
	uint8_t length[NFP_WIRE_VARINT_MAX];
	start -= text.size;
	memcpy(start, job->text + text.offset, text.size);
	size_t size = (size_t)(nfp_wire_varint(length, (uint64_t)(end - start)) - length);
	start -= size;
	memcpy(start, length, size);
	return start;
}

void nfp_otlp_encode(const struct nfp_otlp_job *job, uint32_t first, uint8_t *out, size_t capacity,
                     struct nfp_otlp_result *result)
{
	*result = (struct nfp_otlp_result){0};
	struct request request = {
	    job, out + capacity - find_end_bytes(job), result, {job->anchors, job->anchor_count, 0}, {0}};
	uint8_t *start = out + find_head_bytes(job), *p = start;
	for (uint32_t i = first; i < job->selected_count; i++) {
		if (result->spans + NFP_SPAN_FIRST_CALL > NFP_OTLP_SPANS_MAX ||
		    (p - start >= NFP_OTLP_BYTES_ENOUGH && result->spans))
			break;
		uint8_t *end = write_packet(&request, p, i);
		if (!end)
			break;
		p = end;
		result->packets++;
	}
	p = nfp_wire_bytes(p, job->text + job->scope_end.offset, job->scope_end.size);
	start = write_before(start, job, job->scope, p);
	*--start = 0x12; // ResourceSpans.scope_spans
	p = nfp_wire_bytes(p, job->text + job->resource_end.offset, job->resource_end.size);
	start = write_before(start, job, job->resource, p);
	*--start = 0x0a; // ExportTraceServiceRequest.resource_spans
	result->offset = (uint64_t)(start - out);
	result->bytes = (uint64_t)(p - start);
}

// Trace ids of many packets at once, for sampling.py, which compares their low 56 bits with its threshold.

void nfp_otlp_trace_ids(const struct nfp_otlp_job *job, const uint32_t *packets, uint32_t count,
                        uint64_t *ids)
{
	struct nfp_clock_cursor clock = {job->anchors, job->anchor_count, 0};
	for (uint32_t i = 0; i < count; i++) {
		struct nfp_trace_id id = {0, 0};
		const struct nfp_packet *packet = nfp_id_packet(job, packets[i]);
		if (packet)
			nfp_id_trace(job, packet, job->batches[packet->batch].id, &clock, &id);
		ids[2 * (size_t)i] = id.high;
		ids[2 * (size_t)i + 1] = id.low;
	}
}

void nfp_otlp_packet_links(const struct nfp_otlp_job *job, const uint32_t *packets, uint32_t count,
                           uint64_t *links)
{
	struct nfp_clock_cursor clock = {job->anchors, job->anchor_count, 0};
	for (uint32_t i = 0; i < count; i++, links += 3) {
		links[0] = links[1] = links[2] = 0;
		const struct nfp_packet *packet = nfp_id_packet(job, packets[i]);
		if (!packet)
			continue;
		uint64_t batch_id = job->batches[packet->batch].id;
		struct nfp_trace_id trace, unique;
		nfp_id_trace(job, packet, batch_id, &clock, &trace);
		nfp_id_unique(job->session_id, packet, batch_id, &unique);
		links[0] = trace.high;
		links[1] = trace.low;
		links[2] = nfp_id_span(&unique, NFP_SPAN_PACKET);
	}
}

void nfp_otlp_scale_links(const struct nfp_otlp_job *job, uint32_t count, uint64_t *links)
{
	for (uint32_t i = 0; i < count; i++, links += 3) {
		links[0] = nfp_scale_id(job, links[0]);
		links[2] = nfp_scale_id(job, links[2]);
	}
}
