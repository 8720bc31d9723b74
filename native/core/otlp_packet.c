// SPDX-License-Identifier: Apache-2.0
// Writes the spans that only packets have: the packet itself, the root of its trace (its wait is in otlp_packet.c)
// (otlp_span.h). A field that is not known is not written. The caller has checked the room.
#include "arrival.h"
#include "abi/record.h"
#include "otlp_address.h"
#include "otlp_span.h"
#include "otlp_wire.h"
#include <string.h>

// Writes when a packet came, and the span of its wait (otlp_span.h). Arrivals are stamped, from a capture file, or
// bounds that the polls give; `nf.arrival.source` says which. The caller has checked the room.

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

// What is known of the packet's arrival, attributes of its span (otlp_packet.c).
static uint8_t *span_write_arrival(uint8_t *p, struct nfp_trace *trace)
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

static uint8_t *write_waited_links(uint8_t *p, struct nfp_trace *trace)
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

// Writes the span of a packet's wait.
static uint8_t *span_write_wait(uint8_t *p, struct nfp_trace *trace, uint64_t start_ns, uint64_t batch_ns)
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
	p = write_waited_links(p, trace);
	return nfp_span_end(start, p);
}

// Writes the wait of a packet between two batches (otlp_span.h): from the end of the batch that it was in to the start
// of the one that took it over. Where they overlap, the first went on with other packets: then the wait is not known,
// and its span has no length. The caller has checked the room.

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

// Writes what the span of a broker's message has instead of a flow: topic, message id, length (OpenTelemetry's names
// for messaging).

static const struct nfp_key TOPIC = NFP_KEY("messaging.destination.name");
static const struct nfp_key MESSAGE_ID = NFP_KEY("messaging.message.id");
static const struct nfp_key BODY_BYTES = NFP_KEY("messaging.message.body.size");

// No length in an attribute needs a second byte: what surrounds key and text are 6 bytes.
_Static_assert(26 + NFP_TOPIC_TEXT_BYTES + 6 < 128, "nfp_wire_key writes lengths of one byte");

static uint64_t digest_at(const void *rows, uint32_t place)
{
	return ((const struct nfp_topic *)rows)[place].digest;
}

// A string by OpenTelemetry's conventions.
static uint8_t *write_id(uint8_t *p, uint32_t number)
{
	char digits[5], text[5];
	uint32_t count = 0;
	do
		digits[count++] = (char)('0' + number % 10);
	while ((number /= 10) && count < sizeof(digits));
	for (uint32_t i = 0; i < count; i++)
		text[i] = digits[count - 1 - i];
	return nfp_wire_string(p, &MESSAGE_ID, text, count);
}

// Writes what a message's span has instead of a flow; nothing for other packets.
static uint8_t *span_write_message(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_packet *packet = trace->packet;
	if (packet->ip_version != NFP_VERSION_MESSAGE)
		return p;
	struct nfp_message message;
	memcpy(&message, packet->source, sizeof(message));
	const struct nfp_otlp_job *job = trace->job;
	uint32_t place = nfp_span_find(job->topics, job->topic_count, packet->digest, digest_at);
	if (place != NFP_NONE && job->topics[place].size <= NFP_TOPIC_TEXT_BYTES)
		p = nfp_wire_string(p, &TOPIC, (const char *)job->topics[place].text,
		                    job->topics[place].size);
	if (packet->ip_id)
		p = write_id(p, packet->ip_id);
	return nfp_wire_int(p, &BODY_BYTES, message.body_bytes);
}

static const struct nfp_key PACKET_ID = NFP_KEY("nf.packet.id");
static const struct nfp_key PACKET_CONTENT_ID = NFP_KEY("nf.packet.content_id");
static const struct nfp_key PACKET_DONE_CONTENT_ID = NFP_KEY("nf.packet.done_content_id");
static const struct nfp_key PACKET_LENGTH = NFP_KEY("nf.packet.length");
static const struct nfp_key PACKET_REPEATED = NFP_KEY("nf.packet.repeated");
static const struct nfp_key PACKET_AMBIGUOUS = NFP_KEY("nf.packet.ambiguous");
static const struct nfp_key PACKET_SPI = NFP_KEY("nf.packet.spi");
static const struct nfp_key PACKET_FRAGMENT = NFP_KEY("nf.packet.fragment");
static const struct nfp_key PACKET_TRUNCATED = NFP_KEY("nf.packet.truncated");
static const struct nfp_key PACKET_MALFORMED = NFP_KEY("nf.packet.malformed");
static const struct nfp_key PACKET_INNER = NFP_KEY("nf.packet.inner");
static const struct nfp_key DISPOSITION = NFP_KEY("nf.packet.disposition");
static const struct nfp_key LATENCY = NFP_KEY("nf.packet.latency_ns");
static const struct nfp_key BUCKET = NFP_KEY("nf.latency.bucket");
static const struct nfp_key REASON = NFP_KEY("nf.sampling.reason");
static const struct nfp_key TAIL_KIND = NFP_KEY("nf.tail.cause");
static const struct nfp_key TAIL_EXCESS = NFP_KEY("nf.tail.excess_ns");
static const struct nfp_key TAIL_BATCH = NFP_KEY("nf.tail.batch");
static const struct nfp_key TAIL_SHARE = NFP_KEY("nf.tail.share");
static const struct nfp_key TAIL_SATURATED = NFP_KEY("nf.tail.saturated");
static const struct nfp_key TAIL_COMMAND = NFP_KEY("nf.tail.command");
static const struct nfp_key TAIL_BY = NFP_KEY("nf.tail.by");
static const struct nfp_key TAIL_PARTS = NFP_KEY("nf.tail.parts");
static const struct nfp_key TAIL_PART_KINDS = NFP_KEY("nf.tail.part_kinds");
static const struct nfp_key TAIL_PART_NS = NFP_KEY("nf.tail.part_ns");
static const struct nfp_key FLOW_SOURCE = NFP_KEY("nf.tail.flow.source");
static const struct nfp_key FLOW_DESTINATION = NFP_KEY("nf.tail.flow.destination");
static const struct nfp_key FLOW_SHARE = NFP_KEY("nf.tail.flow.share");
static const struct nfp_key UPSTREAM_CONTENT_ID = NFP_KEY("nf.tail.upstream.content_id");
static const struct nfp_key SOURCE_ADDRESS = NFP_KEY("source.address");
static const struct nfp_key SOURCE_PORT = NFP_KEY("source.port");
static const struct nfp_key DESTINATION_ADDRESS = NFP_KEY("destination.address");
static const struct nfp_key DESTINATION_PORT = NFP_KEY("destination.port");
static const struct nfp_key TRANSPORT = NFP_KEY("network.transport");
static const struct nfp_key TYPE = NFP_KEY("network.type");

// Text with its length, so that nothing is measured per packet.
struct word {
	uint8_t size;
	char text[23];
};
#define WORD(text) {sizeof(text) - 1, text}

static uint8_t *write_word(uint8_t *p, const struct nfp_key *key, const struct word *word)
{
	return nfp_wire_string(p, key, word->text, word->size);
}

static uint8_t *write_head(uint8_t *p, const struct word *name)
{
	p[0] = 0x2a; // Span.name
	p[1] = name->size;
	p = nfp_wire_bytes(p + 2, name->text, name->size);
	p[0] = 0x30; // Span.kind
	p[1] = 1; // INTERNAL
	return p + 2;
}

// Class names only: a span's name must have few values. With a known cause a late packet is named after it.
static uint8_t *write_name(uint8_t *p, const struct nfp_trace *trace)
{
	static const struct word packet = WORD("packet"), late = WORD("late packet"),
	                         dropped = WORD("dropped packet");
	static const struct word waited = WORD("late packet: queue wait"),
	                         preempted = WORD("late packet: preemption"),
	                         barrier = WORD("late packet: barrier"),
	                         interrupt = WORD("late packet: interrupt"), host = WORD("late packet: host");
	static const struct word *const names[] = {
	    [NFP_TAIL_QUEUE] = &waited,        [NFP_TAIL_BURST] = &waited,
	    [NFP_TAIL_BARRIER] = &barrier,     [NFP_TAIL_PREEMPTION] = &preempted,
	    [NFP_TAIL_INTERRUPT] = &interrupt, [NFP_TAIL_HOST] = &host,
	};
	const struct nfp_tail *tail = trace->tail;
	if (trace->reasons & (NFP_REASON_SLOW | NFP_REASON_SLOWEST)) {
		if (tail && tail->function < trace->job->function_count - 1)
			return nfp_span_text(p, trace, trace->job->functions[tail->function].late_head);
		const struct word *name = tail && tail->kind <= NFP_TAIL_HOST ? names[tail->kind] : NULL;
		return write_head(p, name ? name : &late);
	}
	return write_head(p, trace->packet->disposition == NFP_DROPPED ? &dropped : &packet);
}

// Steps of 1, 2 and 5 per decade: a search for `20us-50us` needs no comparison, which Jaeger has not.
static const struct word *find_bucket(uint64_t latency_ns)
{
	static const struct {
		uint64_t end_ns;
		struct word name;
	} buckets[] = {
	    {100, WORD("<100ns")},
	    {200, WORD("100ns-200ns")},
	    {500, WORD("200ns-500ns")},
	    {1000, WORD("500ns-1us")},
	    {2000, WORD("1us-2us")},
	    {5000, WORD("2us-5us")},
	    {10000, WORD("5us-10us")},
	    {20000, WORD("10us-20us")},
	    {50000, WORD("20us-50us")},
	    {100000, WORD("50us-100us")},
	    {200000, WORD("100us-200us")},
	    {500000, WORD("200us-500us")},
	    {1000000, WORD("500us-1ms")},
	    {2000000, WORD("1ms-2ms")},
	    {5000000, WORD("2ms-5ms")},
	    {10000000, WORD("5ms-10ms")},
	    {20000000, WORD("10ms-20ms")},
	    {50000000, WORD("20ms-50ms")},
	    {100000000, WORD("50ms-100ms")},
	    {200000000, WORD("100ms-200ms")},
	    {500000000, WORD("200ms-500ms")},
	    {1000000000, WORD("500ms-1s")},
	    {UINT64_MAX, WORD(">=1s")},
	};
	const uint32_t last = sizeof(buckets) / sizeof(buckets[0]) - 1;
	uint32_t i = 0;
	while (i < last && latency_ns >= buckets[i].end_ns)
		i++;
	return &buckets[i].name;
}

static uint8_t *write_address(uint8_t *p, const struct nfp_key *key, const uint8_t *bytes, uint8_t version)
{
	char text[40];
	return nfp_wire_string(p, key, text, nfp_address_format(bytes, version, text));
}

static uint8_t *write_flow(uint8_t *p, const struct nfp_packet *packet)
{
	static const struct word ipv4 = WORD("ipv4"), ipv6 = WORD("ipv6");
	static const struct {
		uint8_t protocol, has_ports;
		struct word name;
	} transports[] = {
	    {1, 0, WORD("icmp")},  {6, 1, WORD("tcp")},    {17, 1, WORD("udp")},      {33, 1, WORD("dccp")},
	    {58, 0, WORD("icmp")}, {132, 1, WORD("sctp")}, {136, 1, WORD("udplite")},
	};
	const uint8_t esp = 50;
	if (packet->ip_version != 4 && packet->ip_version != 6)
		return p;
	p = write_address(p, &SOURCE_ADDRESS, packet->source, packet->ip_version);
	p = write_address(p, &DESTINATION_ADDRESS, packet->destination, packet->ip_version);
	p = write_word(p, &TYPE, packet->ip_version == 4 ? &ipv4 : &ipv6);
	for (uint32_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
		if (transports[i].protocol != packet->protocol)
			continue;
		p = write_word(p, &TRANSPORT, &transports[i].name);
		if (transports[i].has_ports) {
			p = nfp_wire_int(p, &SOURCE_PORT, packet->source_port);
			p = nfp_wire_int(p, &DESTINATION_PORT, packet->destination_port);
		}
		break;
	}
	if (packet->protocol == esp)
		p = nfp_wire_int(p, &PACKET_SPI,
		                 (uint32_t)packet->source_port << 16 | packet->destination_port);
	return p;
}

// What is not usual about its id and headers.
static uint8_t *write_marks(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_packet *packet = trace->packet;
	if (!packet->flags)
		return p;
	if (packet->flags & NFP_PACKET_REPEATED)
		p = nfp_wire_true(p, &PACKET_REPEATED);
	if (trace->job->correlate_window_ns && packet->flags & NFP_PACKET_AMBIGUOUS)
		p = nfp_wire_true(p, &PACKET_AMBIGUOUS);
	if (packet->flags & NFP_PACKET_FRAGMENT)
		p = nfp_wire_true(p, &PACKET_FRAGMENT);
	if (packet->flags & NFP_PACKET_CUT)
		p = nfp_wire_true(p, &PACKET_TRUNCATED);
	if (packet->flags & NFP_PACKET_MALFORMED)
		p = nfp_wire_true(p, &PACKET_MALFORMED);
	if (packet->flags & NFP_PACKET_INNER)
		p = nfp_wire_true(p, &PACKET_INNER);
	return p;
}

// One reason, the strongest. That a packet belongs to the fair sample as well is in its trace state.
static uint8_t *write_reason(uint8_t *p, uint32_t reasons)
{
	static const struct word slow = WORD("slow"), slowest = WORD("slowest"), sample = WORD("sample"),
	                         culprit = WORD("culprit");
	if (reasons & NFP_REASON_SLOW)
		return write_word(p, &REASON, &slow);
	if (reasons & NFP_REASON_SLOWEST)
		return write_word(p, &REASON, &slowest);
	if (reasons & NFP_REASON_CULPRIT)
		return write_word(p, &REASON, &culprit);
	return reasons & NFP_REASON_SAMPLE ? write_word(p, &REASON, &sample) : p;
}

// `10.0.0.1:53`, `[2001:db8::1]:53`.
static uint8_t *write_end(uint8_t *p, const struct nfp_key *key, const uint8_t *address, uint8_t version,
                          uint16_t port)
{
	char text[NFP_WIRE_STRING_MAX], *at = text;
	if (version == 6)
		*at++ = '[';
	at += nfp_address_format(address, version, at);
	if (version == 6)
		*at++ = ']';
	*at++ = ':';
	char digits[5];
	int count = 0;
	do
		digits[count++] = (char)('0' + port % 10);
	while (port /= 10);
	while (count)
		*at++ = digits[--count];
	return nfp_wire_string(p, key, text, (size_t)(at - text));
}

// The flow that made most of a burst, and the packet whose trace says what other network functions held it for.
static uint8_t *write_burst(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_tail *tail = trace->tail;
	if (tail->kind != NFP_TAIL_BURST || tail->flow_packet >= trace->job->packet_count)
		return p;
	const struct nfp_packet *flow = &trace->job->packets[tail->flow_packet];
	if (tail->link_span && nfp_id_is_correlated(trace->job, flow))
		p = nfp_wire_hex(p, &UPSTREAM_CONTENT_ID, flow->digest);
	if (flow->ip_version != 4 && flow->ip_version != 6)
		return p;
	p = write_end(p, &FLOW_SOURCE, flow->source, flow->ip_version, flow->source_port);
	p = write_end(p, &FLOW_DESTINATION, flow->destination, flow->ip_version, flow->destination_port);
	return nfp_wire_double(p, &FLOW_SHARE, tail->flow_share);
}

// What the thread that held the others was doing.
static uint8_t *write_command(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_otlp_job *job = trace->job;
	uint32_t place = trace->tail->hold;
	if (place >= job->hold_count || !job->holds[place].size ||
	    job->holds[place].size > NFP_TOPIC_TEXT_BYTES)
		return p;
	return nfp_wire_string(p, &TAIL_COMMAND, (const char *)job->holds[place].text,
	                       job->holds[place].size);
}

static const struct word TAIL_KINDS[] = {
    [NFP_TAIL_UNKNOWN] = WORD("unknown"), [NFP_TAIL_OWN] = WORD("own"),
    [NFP_TAIL_QUEUE] = WORD("queue"),     [NFP_TAIL_BATCHING] = WORD("batching"),
    [NFP_TAIL_BURST] = WORD("burst"),     [NFP_TAIL_PREEMPTION] = WORD("preemption"),
    [NFP_TAIL_BARRIER] = WORD("barrier"), [NFP_TAIL_INTERRUPT] = WORD("interrupt"),
    [NFP_TAIL_HOST] = WORD("host"),       [NFP_TAIL_FAULT] = WORD("fault"),
    [NFP_TAIL_WAIT] = WORD("wait"),       [NFP_TAIL_FIRMWARE] = WORD("firmware"),
};

static const struct word *find_kind(uint32_t kind)
{
	const struct word *word =
	    kind < sizeof(TAIL_KINDS) / sizeof(TAIL_KINDS[0]) ? &TAIL_KINDS[kind] : NULL;
	return word && word->size ? word : NULL;
}

static char *write_digits(char *p, uint64_t number)
{
	char digits[20];
	int count = 0;
	do
		digits[count++] = (char)('0' + number % 10);
	while (number /= 10);
	while (count)
		*p++ = digits[--count];
	return p;
}

// A duration as in reports: three significant digits, in the largest unit in which it is at least one. At most
// DURATION_BYTES.
enum { DURATION_BYTES = 24 };
static char *write_duration(char *p, uint64_t ns)
{
	static const struct {
		uint64_t ns;
		char name[4];
	} units[] = {{1000000000, " s"}, {1000000, " ms"}, {1000, " us"}, {1, " ns"}};
	const uint64_t most = UINT64_MAX / 2;
	const uint32_t last = sizeof(units) / sizeof(units[0]) - 1;
	uint32_t i = 0;
	ns = ns < most ? ns : most;
	// After rounding, so that 999.96 us is 1.00 ms.
	while (i < last && ns < units[i].ns - units[i].ns / 2000)
		i++;
	uint64_t unit = units[i].ns, step = unit > 1 ? unit / 100 : 1;
	while (step < unit && (ns + step / 2) / step >= 1000)
		step *= 10;
	uint64_t rounded = (ns + step / 2) / step, scale = unit / step;
	p = write_digits(p, rounded / scale);
	if (scale > 1) {
		*p++ = '.';
		if (scale == 100)
			*p++ = (char)('0' + rounded / 10 % 10);
		*p++ = (char)('0' + rounded % 10);
	}
	size_t size = strlen(units[i].name);
	memcpy(p, units[i].name, size);
	return p + size;
}

// ArrayValue.values: whose it is, and how long: `fw_output 400 us`, `preemption: stress (tid 71) 6.10 ms`.
static uint8_t *write_part(uint8_t *p, const struct nfp_trace *trace, const struct nfp_tail_part *part)
{
	static const struct word rest = WORD("unexplained"), unprobed = WORD("unprobed code");
	const struct nfp_otlp_job *job = trace->job;
	const struct word *word = part->kind == NFP_TAIL_UNKNOWN ? &rest : find_kind(part->kind);
	const char *owner = word->text;
	size_t size = word->size, by_bytes = strnlen(part->by, sizeof(part->by));
	if (part->kind == NFP_TAIL_OWN || part->kind == NFP_TAIL_QUEUE) {
		int is_known = part->function < job->function_count - 1;
		struct nfp_otlp_text name = job->functions[is_known ? part->function : 0].name;
		owner = is_known ? (const char *)job->text + name.offset : unprobed.text;
		size = is_known ? name.size : unprobed.size;
	}
	char tail[2 + NFP_TAIL_BY_BYTES + 1 + DURATION_BYTES], *end = tail;
	if (by_bytes) {
		*end++ = ':';
		*end++ = ' ';
		memcpy(end, part->by, by_bytes);
		end += by_bytes;
	}
	*end++ = ' ';
	end = write_duration(end, part->ns);
	size_t tail_bytes = (size_t)(end - tail), all = size + tail_bytes;
	*p++ = 0x0a;
	p = nfp_wire_varint(p, 1 + nfp_wire_varint_size(all) + all);
	*p++ = 0x0a;
	p = nfp_wire_bytes(nfp_wire_varint(p, all), owner, size);
	return nfp_wire_bytes(p, tail, tail_bytes);
}

// The split of the excess: three arrays of the same length.
static uint8_t *write_parts(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_otlp_job *job = trace->job;
	const struct nfp_tail *tail = trace->tail;
	uint32_t count = tail->part_count;
	if (!count || count > NFP_TAIL_PARTS_MAX + 1 || tail->first_part > job->tail_part_count ||
	    count > job->tail_part_count - tail->first_part)
		return p;
	const struct nfp_tail_part *parts = &job->parts[tail->first_part];
	for (uint32_t i = 0; i < count; i++)
		if (!find_kind(parts[i].kind))
			return p;
	uint8_t *start = p;
	p = nfp_wire_array_begin(start);
	for (uint32_t i = 0; i < count; i++)
		p = write_part(p, trace, &parts[i]);
	start = nfp_wire_array_end(start, p, &TAIL_PARTS);
	p = nfp_wire_array_begin(start);
	for (uint32_t i = 0; i < count; i++) {
		const struct word *kind = find_kind(parts[i].kind);
		p = nfp_wire_array_string(p, kind->text, kind->size);
	}
	start = nfp_wire_array_end(start, p, &TAIL_PART_KINDS);
	p = nfp_wire_array_begin(start);
	for (uint32_t i = 0; i < count; i++)
		p = nfp_wire_array_int(p, parts[i].ns);
	return nfp_wire_array_end(start, p, &TAIL_PART_NS);
}

static uint8_t *write_tail(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_tail *tail = trace->tail;
	const struct word *kind = tail ? find_kind(tail->kind) : NULL;
	if (!kind)
		return p;
	p = write_word(p, &TAIL_KIND, kind);
	if (tail->flags & NFP_TAIL_SATURATED)
		p = nfp_wire_true(p, &TAIL_SATURATED);
	p = write_parts(p, trace);
	if (tail->kind == NFP_TAIL_UNKNOWN)
		return p;
	p = nfp_wire_int(p, &TAIL_EXCESS, (uint64_t)tail->excess_ns);
	p = nfp_wire_double(p, &TAIL_SHARE, tail->share);
	p = nfp_wire_int(p, &TAIL_BATCH, tail->batch_id);
	p = write_burst(p, trace);
	if (tail->kind == NFP_TAIL_BARRIER)
		p = write_command(p, trace);
	size_t by_bytes = strnlen(tail->by, sizeof(tail->by));
	if (by_bytes)
		p = nfp_wire_string(p, &TAIL_BY, tail->by, by_bytes);
	if (tail->function < trace->job->function_count - 1)
		p = nfp_span_text(p, trace, trace->job->functions[tail->function].tail);
	return p;
}

// What the NF calls a number plus 1.
static uint8_t *write_numbered(uint8_t *p, const struct nfp_trace *trace, const struct nfp_otlp_text *texts,
                               uint32_t count, uint32_t number)
{
	return number && number <= count ? nfp_span_text(p, trace, texts[number - 1]) : p;
}

// Where it came, and where it went or why it did not.
static uint8_t *write_numbers(uint8_t *p, const struct nfp_trace *trace)
{
	const struct nfp_otlp_job *job = trace->job;
	const struct nfp_packet *packet = trace->packet;
	p = write_numbered(p, trace, job->received_on, job->interface_count, packet->receive_interface);
	if (packet->disposition == NFP_DROPPED)
		return write_numbered(p, trace, job->reasons_why, job->reason_count, packet->done_number);
	if (packet->disposition == NFP_TRANSMITTED)
		return write_numbered(p, trace, job->sent_on, job->interface_count, packet->done_number);
	return p;
}

static uint8_t *write_packet_attributes(uint8_t *p, struct nfp_trace *trace, uint64_t latency_ns)
{
	static const struct word dispositions[] = {WORD("unknown"), WORD("transmitted"), WORD("dropped"),
	                                           WORD("punted"), WORD("absorbed")};
	const struct nfp_packet *packet = trace->packet;
	p = nfp_wire_hex(p, &PACKET_ID, packet->id);
	p = nfp_wire_hex(p, &PACKET_CONTENT_ID, packet->digest);
	if (packet->disposition == NFP_TRANSMITTED && packet->done_digest &&
	    packet->done_digest != packet->digest)
		p = nfp_wire_hex(p, &PACKET_DONE_CONTENT_ID, packet->done_digest);
	p = write_marks(p, trace);
	p = nfp_wire_int(p, &PACKET_LENGTH, packet->length);
	p = write_flow(p, packet);
	p = span_write_message(p, trace);
	if (trace->job->is_linked)
		p = nfp_span_write_place(p, trace);
	p = write_word(p, &DISPOSITION,
	               &dispositions[packet->disposition < NFP_DISPOSITIONS ? packet->disposition : 0]);
	if (packet->done_ticks && packet->disposition != NFP_UNKNOWN) {
		p = nfp_wire_int(p, &LATENCY, latency_ns);
		p = write_word(p, &BUCKET, find_bucket(latency_ns));
	}
	p = write_numbers(p, trace);
	p = span_write_arrival(p, trace);
	p = write_reason(p, trace->reasons);
	return write_tail(p, trace);
}

// To its own batch, where that is another trace, and to the culprit batch.
static uint8_t *write_links(uint8_t *p, struct nfp_trace *trace)
{
	struct nfp_trace_id id;
	uint64_t span;
	if (trace->job->is_linked && nfp_id_batch_span(trace->job, trace->packet, &trace->clock, &id, &span))
		p = nfp_span_link_to(p, trace, id.high, id.low, span);
	for (uint32_t i = 0; trace->job->is_linked && i < trace->handover_count; i++) {
		nfp_id_batch(trace->job->session_id, trace->job->batches[trace->handovers[i].batch].id, &id);
		p = nfp_span_link_to(p, trace, id.high, id.low, nfp_id_span(&id, NFP_SPAN_BATCH));
	}
	if (trace->tail && (trace->tail->link_high | trace->tail->link_low))
		p = nfp_span_link(p, trace);
	return p;
}

uint8_t *nfp_span_write_packet(uint8_t *p, struct nfp_trace *trace, uint32_t *spans)
{
	const struct nfp_packet *packet = trace->packet;
	uint64_t batch_ns = nfp_clock_unix_ns(&trace->clock, trace->batch->start_ticks);
	uint64_t start_ns = nfp_clock_unix_ns(&trace->clock, nfp_life_start(packet, trace->batch));
	// While its end is unknown a packet lasts as long as its batch.
	uint64_t end_ticks = packet->done_ticks ? packet->done_ticks : trace->batch->end_ticks;
	uint64_t end_ns = nfp_clock_unix_ns(&trace->clock, end_ticks);
	if (end_ns < start_ns)
		end_ns = start_ns;
	trace->origin_ns = start_ns;
	uint8_t *start = p;
	p = nfp_span_begin(p, trace, NFP_SPAN_PACKET, NFP_NONE);
	p = write_name(p, trace);
	p = nfp_span_times(p, trace, start_ns, end_ns);
	p = write_packet_attributes(p, trace, end_ns - start_ns);
	p = write_links(p, trace);
	p = nfp_span_end(start, p);
	*spans = 1;
	if (start_ns < batch_ns) {
		p = span_write_wait(p, trace, start_ns, batch_ns);
		*spans = 2;
	}
	return p;
}
