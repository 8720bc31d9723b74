// SPDX-License-Identifier: Apache-2.0
// The spans of one packet: packet, queue wait, batch, calls. Between otlp.c, which frames requests, and
// otlp_packet.c and otlp_span.c, which write the bytes.
#ifndef NFPROBE_OTLP_SPAN_H
#define NFPROBE_OTLP_SPAN_H
#include "otlp_id.h"

// Upper bounds of what the writers below add to the texts of the tables. The largest span, the packet's, has 33
// attributes of at most 4 + 32 + 2 + 2 + 47 bytes, and one of 84 instead of 47, and three
// arrays, whose values are counted apart; the parts around them are less than 256.
enum {
	NFP_SPAN_PACKET_BYTES = 3520 + 40 * NFP_HANDOVERS_MAX, // a link has 35
	NFP_SPAN_PART_BYTES = 160, // of each part of its excess
	NFP_SPAN_QUEUE_BYTES = 512 + 40 * NFP_WAITED_MAX, // a link has 35
	NFP_SPAN_BATCH_BYTES = 1024,
	NFP_SPAN_CALL_BYTES = 512,
	NFP_SPAN_COUNTER_BYTES = 240, // of a call's span, for each counter
	NFP_SPAN_SCALE_BYTES = 32     // of each span of a stretched copy
};

// A packet's trace while it is written.
struct nfp_trace {
	const struct nfp_otlp_job *job;
	const struct nfp_packet *packet;
	const struct nfp_batch *batch;
	const struct nfp_tail *tail; // NULL: not examined
	uint32_t reasons;            // bits of enum nfp_reason
	uint32_t calls_cut;          // of this trace, not written
	uint32_t has_batch;          // its batch is written with it
	const uint32_t *waited;      // packets of the batches that ran while it waited
	uint32_t waited_count;
	const struct nfp_handover *handovers; // of the packet
	uint32_t handover_count;
	uint32_t
	    handover; // 0: the batch is that which received the packet, else that of the handover of this number
	uint32_t index; // in the batch
	uint64_t ordinal; // added to those of the batch's spans
	struct nfp_trace_id id;
	struct nfp_trace_id unique; // span ids are made from it; differs from `id` when that is correlated
	uint64_t origin_ns; // where it begins
	struct nfp_clock_cursor clock;
};

// Starts a span: everything before its name. parent is an ordinal, or NFP_NONE. Returns where the name goes.
uint8_t *nfp_span_begin(uint8_t *p, const struct nfp_trace *trace, uint64_t ordinal, uint64_t parent);

// The place of the row with this key among rows in the order of their keys, or NFP_NONE.
static inline uint32_t nfp_span_find(const void *rows, uint32_t count, uint64_t key,
                                     uint64_t (*key_at)(const void *rows, uint32_t place))
{
	uint32_t low = 0, high = count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (key_at(rows, middle) < key)
			low = middle + 1;
		else
			high = middle;
	}
	return low < count && key_at(rows, low) == key ? low : NFP_NONE;
}

// Ends the span that begins at `start`: flags, and the length in front. Returns the end.
uint8_t *nfp_span_end(uint8_t *start, uint8_t *p);

// Start and end time and, in a stretched copy, that it is one.
uint8_t *nfp_span_times(uint8_t *p, const struct nfp_trace *trace, uint64_t start_ns, uint64_t end_ns);

uint8_t *nfp_span_text(uint8_t *p, const struct nfp_trace *trace, struct nfp_otlp_text text);

// Span.links: one, to the culprit batch.
uint8_t *nfp_span_link(uint8_t *p, const struct nfp_trace *trace);
// Span.links: one, to the span with these two words of a trace id and this span id.
uint8_t *nfp_span_link_to(uint8_t *p, const struct nfp_trace *trace, uint64_t high, uint64_t low,
                          uint64_t span);

// Writes the span of the wait between the last batch's end, or receipt, and a handover's batch (otlp_packet.c).
uint8_t *nfp_span_write_handover(uint8_t *p, struct nfp_trace *trace, uint64_t since_ticks);
// nf.handover, where the trace is at one.
uint8_t *nfp_span_write_handover_number(uint8_t *p, const struct nfp_trace *trace);
// Where the batch of this handover of the packet is a span; `trace` holds the packet's. 0: it is not in the columns.
int nfp_span_find_taker(const struct nfp_otlp_job *job, uint32_t packet, uint32_t number,
                        struct nfp_trace_id *trace, uint64_t *span);
// The handovers of the trace's packet, in the job's order.
void nfp_span_find_handovers(struct nfp_trace *trace, uint32_t packet);
// Writes the packet's span and, when it waited, or can have waited, before its batch, the span of its wait.
uint8_t *nfp_span_write_packet(uint8_t *p, struct nfp_trace *trace, uint32_t *spans);
uint8_t *nfp_span_write_batch(uint8_t *p, struct nfp_trace *trace);
// Which batch, and where in it: attributes of a packet whose batch is another trace.
uint8_t *nfp_span_write_place(uint8_t *p, const struct nfp_trace *trace);
// Writes the call at `index` of the trace's batch.
uint8_t *nfp_span_write_call(uint8_t *p, struct nfp_trace *trace, uint32_t index);
// Writes the first `count` calls of the trace's batch again, with this trace's ids: `from` holds them as they were
// written for another packet, in `size` bytes, with a trace state if this one has one, unscaled.
uint8_t *nfp_span_copy_calls(uint8_t *p, const struct nfp_trace *trace, const uint8_t *from, size_t size,
                             uint32_t count);

#endif
