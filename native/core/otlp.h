// SPDX-License-Identifier: Apache-2.0
// The OTLP encoder: columns in, the bytes of an ExportTraceServiceRequest out (canonical proto3 form).
// Each selected packet becomes one trace: packet, queue wait, batch, and the batch's calls as they were nested. Or, with
// `is_linked`, batch and calls are a trace of their own, once, and its packets link to it.
// No malloc, no I/O, no clock; every index in the columns is checked.
//
// otlp.c frames the request, otlp_span.c writes a packet's spans, otlp_id.c derives ids, otlp_wire.h writes fields.
#ifndef NFPROBE_OTLP_H
#define NFPROBE_OTLP_H
#include "clock.h"
#include "columns.h"

// cdef begin

enum nfp_otlp_limit {
	NFP_OTLP_SPANS_MAX = 8192, // in one request
	NFP_OTLP_BYTES_MAX = 3670016, // 3.5 MiB: receivers refuse more than 4 MiB, decompressed
	// No packet is added to a request of this size: twice as many spans a second are encoded where the bytes stay in
	// the processor's cache, and in memory that the C library need not ask the kernel for each time.
	NFP_OTLP_BYTES_ENOUGH = 768 << 10,
	NFP_OTLP_TRACE_STATE_MAX = 64,
	NFP_OTLP_COUNTER_NAME_MAX = 96,
	NFP_HANDOVERS_MAX = 64, // of one packet, written
	NFP_WAITED_MAX = 16, // links of the span of a packet's wait
};

// Why a packet was selected; several may hold.
enum nfp_reason {
	NFP_REASON_SAMPLE = 1, // drawn with a known probability: its spans carry the trace state
	NFP_REASON_SLOW = 2, // over the threshold
	NFP_REASON_SLOWEST = 4, // over the quantile
	NFP_REASON_CULPRIT = 8, // of a batch that made others late
};

enum nfp_tail_kind {
	NFP_TAIL_NONE = 0, // not examined
	NFP_TAIL_UNKNOWN = 1,
	NFP_TAIL_OWN = 2,
	NFP_TAIL_QUEUE = 3,
	NFP_TAIL_BATCHING = 4,
	NFP_TAIL_BURST = 5,
	NFP_TAIL_PREEMPTION = 6,
	NFP_TAIL_BARRIER = 7, // another thread of the target stopped this one
	NFP_TAIL_INTERRUPT = 8,
	NFP_TAIL_HOST = 9, // the hypervisor ran something else
	NFP_TAIL_FAULT = 10, // a page fault, or a system call that blocked
	NFP_TAIL_WAIT = 11, // a lock or condition of the program
	NFP_TAIL_FIRMWARE = 12, // system management interrupts
};

#define NFP_TAIL_BY_BYTES 96
#define NFP_TAIL_PARTS_MAX 6 // of one packet, beside what nothing explains

enum nfp_tail_flags {
	NFP_TAIL_SATURATED = 1, // no poll before the packet had left its queue empty
};

// What made a packet late.
struct nfp_tail {
	int64_t excess_ns;
	uint64_t batch_id;
	uint64_t
	    link_high; // the culprit batch's span, see nfp_otlp_batch_links; all 0: none, or in the packet's own trace
	uint64_t link_low;
	uint64_t link_span;
	double share; // of the excess
	uint32_t function; // function id, or NFP_NONE
	uint32_t kind; // enum nfp_tail_kind
	uint32_t flags; // enum nfp_tail_flags
	uint32_t flow_packet; // index of a packet of the flow that made most of a burst, or NFP_NONE
	double flow_share; // its part of the burst
	uint32_t hold; // of a barrier, index in the job's holds, or NFP_NONE
	uint32_t first_part; // index in the job's parts
	uint32_t part_count; // at most NFP_TAIL_PARTS_MAX + 1 are written
	uint32_t reserved;
	char by
	    [NFP_TAIL_BY_BYTES]; // what the CPU did instead of the thread, UTF-8; padded with zeros; empty: unknown
};

// A part of a packet's excess.
struct nfp_tail_part {
	uint64_t ns;
	uint32_t function; // function id, or NFP_NONE
	uint32_t kind; // enum nfp_tail_kind; NFP_TAIL_UNKNOWN: what nothing explains
	char by[NFP_TAIL_BY_BYTES]; // as in struct nfp_tail
};

// Bytes at an offset of nfp_otlp_job.text, encoded beforehand.
struct nfp_otlp_text {
	uint32_t offset;
	uint32_t size;
};

struct nfp_otlp_function {
	struct nfp_otlp_text head; // Span.name and kind of a call of it
	struct nfp_otlp_text attribute; // code.function.name
	struct nfp_otlp_text late_head; // Span.name and kind of a packet that it made late
	struct nfp_otlp_text tail; // nf.tail.function
	struct nfp_otlp_text name; // alone
};

struct nfp_otlp_counter {
	struct nfp_otlp_text name; // nf.counter.NAME, at most NFP_OTLP_COUNTER_NAME_MAX bytes
	struct nfp_otlp_text self_name; // nf.counter.NAME.self
	uint64_t scale; // what was counted is multiplied by it
};

// The counters between two changes of them.
struct nfp_otlp_counter_set {
	uint32_t set; // as in struct nfp_call_counters
	uint32_t first; // among counter_names
	uint32_t count; // at most six
};

// Everything that requests are made from. The caller keeps all arrays alive and unchanged meanwhile.
struct nfp_otlp_job {
	const struct nfp_call *calls;
	const struct nfp_batch *batches;
	const struct nfp_packet *packets;
	const struct nfp_topic *topics; // of the messages among the packets, by rising digest
	const struct nfp_handover *handovers; // by rising packet; their batches are all in `batches`
	const struct nfp_hold *holds;
	const uint8_t
	    *handover_opens; // with is_linked, of each: whether its batch is written with its packet
	const uint32_t *selected; // indices of packets
	const uint8_t *reasons; // of each selected packet: bits of enum nfp_reason
	const struct nfp_tail *tails; // of each selected packet; may be NULL
	const struct nfp_tail_part *parts; // of all tails; the largest of each first
	const uint32_t *representatives; // a packet of each batch that can be linked to; may be NULL
	const uint32_t *waits; // of each selected packet: its first one of `representatives`, and how many
	const uint8_t *opens; // with is_linked, of each selected packet: whether its batch is written with it
	const struct nfp_anchor *anchors;
	const uint8_t *text;
	const struct nfp_otlp_function *functions; // the last one stands for ids that are not in the table
	const struct nfp_otlp_text *threads; // attributes of each thread; the last one as for functions
	uint32_t call_count;
	uint32_t hold_count;
	uint32_t batch_count;
	uint32_t packet_count;
	uint32_t topic_count;
	uint32_t handover_count;
	uint32_t selected_count;
	uint32_t tail_part_count;
	uint32_t representative_count;
	uint32_t anchor_count; // >= 1
	uint32_t function_count; // >= 1
	uint32_t thread_count; // >= 1
	uint32_t trace_state_size;
	struct nfp_otlp_text resource; // ResourceSpans.resource
	struct nfp_otlp_text scope; // ScopeSpans.scope
	struct nfp_otlp_text scope_end; // ScopeSpans.schema_url
	struct nfp_otlp_text resource_end; // ResourceSpans.schema_url
	// Attributes by what the NF calls interfaces and reasons; of size 0: not known. May be NULL where there are none.
	const struct nfp_otlp_text *received_on;
	const struct nfp_otlp_text *sent_on;
	const struct nfp_otlp_text *reasons_why;
	uint32_t interface_count; // of received_on and of sent_on
	uint32_t reason_count;
	const struct nfp_call_counters *counters; // by rising call
	const struct nfp_otlp_counter *counter_names;
	const struct nfp_otlp_counter_set *counter_sets;
	uint32_t counters_count;
	uint32_t counter_set_count;
	uint32_t is_linked; // batches are traces of their own
	uint64_t session_id;
	uint64_t correlate_window_ns; // of trace ids that equal packets of other NFs have, too; 0: none has
	uint64_t time_scale; // of a stretched copy (otlp_id.h); 0 or 1: true times
	uint64_t fixed_bytes_max; // set by nfp_otlp_prepare: of a packet's trace without its calls
	uint64_t call_bytes_max; // set by nfp_otlp_prepare: of one call's span
	uint8_t trace_state[64]; // Span.trace_state of packets drawn for the sample; NFP_OTLP_TRACE_STATE_MAX
};

struct nfp_otlp_result {
	uint64_t offset; // of the request in `out`
	uint64_t bytes;
	uint32_t packets; // of `selected`, done
	uint32_t spans;
	uint32_t dropped_spans; // calls that did not fit: their trace alone is larger than a request
	uint32_t bad_packets; // their indices point outside of the columns: no spans
};

// Computes what the encoder must know of the tables; once, when they are complete. Returns the smallest `capacity`.
size_t nfp_otlp_prepare(struct nfp_otlp_job *job);

// Encodes packets from `first` of `selected` on, at least one, as many as fit in `capacity` bytes and NFP_OTLP_SPANS_MAX
// spans, until there are NFP_OTLP_BYTES_ENOUGH. A trace is never split; one that alone is larger than a request loses
// its last calls.
void nfp_otlp_encode(const struct nfp_otlp_job *job, uint32_t first, uint8_t *out, size_t capacity,
                     struct nfp_otlp_result *result);

// Trace ids (two words each, high first) of `count` packets by their index. Packets whose batch is not in the
// columns get zeros. The low 56 bits of the second word are the randomness that sampling compares.
void nfp_otlp_trace_ids(const struct nfp_otlp_job *job, const uint32_t *packets, uint32_t count,
                        uint64_t *ids);

// Where a batch of each of `count` packets is a span: trace id (high, low) and span id, three words each. `numbers`: of
// which of its handovers, 0: the batch that received it. Packets whose batch is not in the columns get zeros.
void nfp_otlp_batch_links(const struct nfp_otlp_job *job, const uint32_t *packets, const uint32_t *numbers,
                          uint32_t count, uint64_t *links);

// The packet's own span of each of `count` packets, as nfp_otlp_batch_links.
void nfp_otlp_packet_links(const struct nfp_otlp_job *job, const uint32_t *packets, uint32_t count,
                           uint64_t *links);

// Replaces `count` links by what is written for them at the job's time_scale.
void nfp_otlp_scale_links(const struct nfp_otlp_job *job, uint32_t count, uint64_t *links);

// cdef end

_Static_assert(sizeof(struct nfp_tail) == 184, "span.py has the same layout");
_Static_assert(sizeof(struct nfp_tail_part) == 112, "span.py has the same layout");
_Static_assert(sizeof(struct nfp_otlp_text) == 8, "span.py has the same layout");
_Static_assert(sizeof(struct nfp_otlp_function) == 40, "span.py has the same layout");
_Static_assert(sizeof(((struct nfp_otlp_job *)0)->trace_state) == NFP_OTLP_TRACE_STATE_MAX,
               "the array's length");
#endif
