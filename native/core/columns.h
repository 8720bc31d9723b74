// SPDX-License-Identifier: Apache-2.0
// The columns: calls, batches, packets as arrays of plain structures, the form in which data goes from the
// C core to NumPy and to the OTLP encoder. otel_nfprobe/base/columns.py reads the dtypes from what cffi knows of them.
// All times are ticks of the processor's clock.
#ifndef NFPROBE_COLUMNS_H
#define NFPROBE_COLUMNS_H
#include "abi/record.h"
#include <stddef.h>
#include <stdint.h>

#define NFP_NONE 0xffffffffu

// cdef begin

enum nfp_call_flags {
	NFP_CALL_CLIPPED = 1, // open when its batch began or ended: its times are cut to the batch
	NFP_CALL_UNWOUND = 2, // left by unwinding
	NFP_CALL_VALUE = 4, // `value` was captured
	NFP_CALL_RECEIVE = 8,
	NFP_CALL_TRANSMIT = 16,
	NFP_CALL_DROP = 32,
	NFP_CALL_MARK = 64, // only its entry was measured: it ends where it begins
	NFP_CALL_SHARED = 128, // the part of one batch of a call that worked on packets of several
	NFP_CALL_CONTINUED = 256, // not the first of these parts: it is no call more
};

struct nfp_call {
	uint64_t start_ticks;
	uint64_t end_ticks;
	uint64_t self_ticks; // without the probed calls inside it
	uint64_t value;
	uint32_t function; // function id
	uint32_t thread; // thread table index
	uint32_t parent; // index in the same calls array, or NFP_NONE
	uint32_t batch; // index in the batches array, or NFP_NONE
	uint16_t depth;
	uint16_t flags; // enum nfp_call_flags
	uint32_t cost_ticks; // of the probes themselves between start and end; stops at the largest number
};

// What one probed call costs by itself.
struct nfp_cost {
	uint16_t inside_ticks; // between the two time stamps
	uint16_t whole_ticks;
};

// What one probed call counts by itself, by the number of the counter.
struct nfp_counter_cost {
	int32_t inside[NFP_COUNTER_SLOTS]; // between its two readings, less what calls and returns count
	int32_t whole[NFP_COUNTER_SLOTS];
};

enum nfp_batch_flags {
	NFP_BATCH_FULL = 1, // its poll returned as many packets as were asked for
	NFP_BATCH_LOSSY = 2, // records were lost inside it
	NFP_BATCH_UNFINISHED = 4, // cut by the end of the session
	NFP_BATCH_UNDETAILED = 16, // its inner functions were not timed
	NFP_BATCH_SATURATED = 8, // its queue was not seen empty: earliest_ticks is its own start
	NFP_BATCH_CHOSEN = 32, // its packets are described only where they are late or it was drawn
	NFP_BATCH_DRAWN = 64, // for the fair sample
	NFP_BATCH_TAKEN_OVER =
	    128, // `size` packets that another batch has received; it describes none itself
	// Its queue was not seen empty yet since the records of its thread began: its packets can have waited since before
	// that (batch.c).
	NFP_BATCH_PRIOR = 256,
};

struct nfp_batch {
	uint64_t id; // counts up per session, unique over its threads
	uint64_t start_ticks; // entry of the receive call
	uint64_t end_ticks; // exit of the last call in it
	uint32_t thread;
	uint32_t function; // of the receive call
	uint32_t size; // packets received
	uint32_t requested;
	uint32_t transmitted;
	uint32_t dropped;
	uint32_t first_call; // calls [first_call, first_call + calls) belong to it, in order of their start
	uint32_t calls;
	uint32_t first_packet;
	uint32_t packets; // packets described (may be fewer than size)
	uint32_t flags; // enum nfp_batch_flags
	uint32_t queue; // which of its thread, an arbitrary number; 0 when it is not known
	uint64_t earliest_ticks; // since when its packets can have waited; 0: not known
	uint64_t arrival_ticks; // stamp of the packet that was received first; 0: none is known
};

// What a packet's latency counts from (arrival.h).
enum nfp_origin {
	NFP_FROM_STAMP = 0, // its stamp
	NFP_FROM_CAPTURE = 1, // its generator's capture
	NFP_FROM_POLL = 2, // the last poll that had left its queue empty: a bound
	NFP_FROM_RECEIVE = 3, // the poll that returned it: nothing is known of the time before
	NFP_ORIGINS = 4,
};

enum nfp_disposition {
	NFP_UNKNOWN = 0,
	NFP_TRANSMITTED = 1,
	NFP_DROPPED = 2,
	NFP_PUNTED = 3, // handed to the host
	NFP_ABSORBED = 4, // kept, or other packets went on in its place
	NFP_DISPOSITIONS = 5,
};
enum nfp_packet_flags {
	NFP_PACKET_ARRIVAL_KNOWN = 1, // arrival_ticks is in ticks
	NFP_PACKET_REPEATED = 2, // its id was seen before
	NFP_PACKET_ARRIVAL_UNIX_NS = 4, // arrival_ticks holds Unix ns until the clock has converted it
	NFP_PACKET_AMBIGUOUS =
	    8, // its content was seen before, or may have been; looked for with --correlate only
	// What the probe saw of its headers, NFP_FACTS_* of headers.h.
	NFP_PACKET_FRAGMENT = 16,
	NFP_PACKET_CUT = 32,
	NFP_PACKET_MALFORMED = 64,
	NFP_PACKET_INNER = 128,
};

struct nfp_packet {
	uint64_t id; // packet_id.h; 0: not described
	uint64_t digest; // of its content; a message's: of its topic
	uint64_t buffer;
	uint64_t arrival_ticks; // 0: not known
	uint64_t receive_ticks; // exit of the receive call
	uint64_t done_ticks; // exit of the transmit or drop call; 0 while unknown
	uint8_t source[16]; // IPv4: the first four bytes; network order
	uint8_t destination[16];
	uint16_t source_port;
	uint16_t destination_port;
	uint16_t length;
	uint16_t ip_id;
	uint8_t protocol;
	uint8_t ip_version; // 0: not IP
	uint8_t disposition; // enum nfp_disposition
	uint8_t flags; // enum nfp_packet_flags
	uint32_t batch; // index in the batches array
	uint32_t index; // position in its burst
	uint32_t done_function; // function id of the transmit or drop call, or NFP_NONE
	uint64_t done_digest; // at transmit (equal to `digest` unless the NF changed what it covers)
	// What the NF calls them, plus 1; 0: not known.
	uint32_t receive_interface;
	uint32_t
	    done_number; // of the interface that it was transmitted on, or of the reason why it was dropped
};

// What a packet of a broker (ip_version NFP_VERSION_MESSAGE of record.h) holds at `source` instead of an address.
struct nfp_message {
	uint32_t body_bytes; // of the payload; 0 when it is not known
	uint32_t topic_bytes; // read: a longer topic has more
};

enum { NFP_TOPIC_TEXT_BYTES = 84 }; // a longer topic is cut there and ends in three dots

// The topic of messages: theirs are those packets whose digest is equal.
struct nfp_topic {
	uint64_t digest;
	uint32_t size; // of `text`, which is valid UTF-8
	uint8_t text[84]; // NFP_TOPIC_TEXT_BYTES
};

enum nfp_handover_flags { NFP_HANDOVER_AGAIN = 1 };

// A packet went on in another batch than that which received it.
struct nfp_handover {
	uint32_t packet; // index in the packets array
	uint32_t batch; // index in the batches array; with NFP_HANDOVER_AGAIN: in reemitted_batches
	uint32_t index; // position in the burst that took it over, or NFP_NONE
	uint32_t flags; // enum nfp_handover_flags
};

// One thread kept all others from running.
struct nfp_hold {
	uint64_t start_ticks; // when it asked them to stop
	uint64_t held_ticks; // all did
	uint64_t end_ticks; // it had let them go
	uint32_t thread;
	uint32_t function; // by which it did so
	uint32_t size; // of `text`, valid UTF-8: what for; 0: not known
	uint8_t text[84]; // NFP_TOPIC_TEXT_BYTES
};

// What the counters of a call say; calls without a row were not counted.
struct nfp_call_counters {
	uint32_t call; // index in the calls array
	uint32_t flags; // enum nfp_counters_flags
	uint64_t inclusive[NFP_COUNTER_SLOTS]; // without what the probes count, where that is known
	uint64_t self[NFP_COUNTER_SLOTS]; // without the calls inside it
	uint32_t inside; // counted calls in it, at any depth, whose probes it contains
	uint32_t set; // which counters these are: how often they had been changed
};
enum nfp_counters_flags {
	NFP_COUNTERS_VALID = 1, // `inclusive` is right
	NFP_COUNTERS_SELF_VALID = 2, // and so is `self`: every call inside it was counted
};

// What one take gives. The calls of a batch are contiguous, in order of their start, a parent before its
// children; so are the calls outside any batch of one thread.
struct nfp_columns {
	const struct nfp_call *calls;
	const struct nfp_batch *batches;
	const struct nfp_packet *packets;
	const struct nfp_topic *topics; // of the messages among the packets, each once
	const struct nfp_call_counters *counters;
	const struct nfp_handover *handovers; // by rising packet, those of one in the order of time
	// Batches and their calls that an earlier take has given and packets of this one were in, too.
	const struct nfp_batch *reemitted_batches;
	const struct nfp_call *reemitted_calls;
	const struct nfp_hold *holds; // the last ones, earlier takes' among them, by rising end
	uint64_t call_count;
	uint64_t batch_count;
	uint64_t packet_count;
	uint64_t topic_count;
	uint64_t counters_count;
	uint64_t handover_count;
	uint64_t reemitted_batch_count;
	uint64_t reemitted_call_count;
	uint64_t hold_count;
};

// cdef end

#define NFP_PACKET_MARKS_BIT 4 // NFP_FACTS_* << 4 are NFP_PACKET_FRAGMENT and those that follow

_Static_assert(sizeof(struct nfp_call) == 56, "nothing is between the fields");
_Static_assert(sizeof(struct nfp_batch) == 88, "nothing is between the fields");
_Static_assert(sizeof(struct nfp_packet) == 120, "nothing is between the fields");
_Static_assert(sizeof(struct nfp_handover) == 16, "nothing is between the fields");
_Static_assert(sizeof(struct nfp_hold) == 120, "nothing is between the fields");
_Static_assert(sizeof(struct nfp_topic) == 96, "nothing is between the fields");
_Static_assert(sizeof(struct nfp_call_counters) == 16 + 16 * NFP_COUNTER_SLOTS,
               "nothing is between the fields");
_Static_assert(sizeof(struct nfp_counter_cost) == 8 * NFP_COUNTER_SLOTS, "nothing is between the fields");
_Static_assert(sizeof(struct nfp_message) <= sizeof(((struct nfp_packet *)0)->source), "it stands there");
_Static_assert(sizeof(((struct nfp_topic *)0)->text) == NFP_TOPIC_TEXT_BYTES, "the array's length");
#endif
