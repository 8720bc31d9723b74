// SPDX-License-Identifier: Apache-2.0
// What the pipeline holds: one stream per thread, the batches that have begun and are not delivered, and
// the columns that are. Only structures; the files named below work on them. Never in cffi.
//
//   record -> calltree -> log (of the batch, or outside any) -> [batch ended, packets done] -> columns
//   PACKET records -> event per thread -> merged over the threads by time -> packet of its batch
#ifndef NFPROBE_STREAM_H
#define NFPROBE_STREAM_H
#include "abi/session.h"
#include "array.h"
#include "buffers.h"
#include "calltree.h"
#include "columns.h"
#include "counters.h"
#include "pipeline.h"
#include "topics.h"

enum {
	NFP_BATCH_CALLS_MAX = 16384,    // further calls of a batch are delivered outside it
	NFP_CLIPPED_MAX = 64,           // innermost open calls that a batch shows
	NFP_OUTSIDE_CALLS = 4096,       // calls outside batches held for a call that is still open
	NFP_EARLY_RECORDS = 1024, // after so many it is looked for batches that need not wait
	NFP_EARLY_BATCHES = 64,
	NFP_WAITING_MANY = 4096, // more are not looked at for the sake of a few new ones
	NFP_LATER_BATCHES = 64, // a batch waits for its packets until so many later ones have ended ...
	NFP_LATER_HANDED = 1024, // ... or so many, where packets wait in rings between threads ...
	NFP_LATER_QUEUED =
	    16384, // ... or, where it is seen that they were put into queues: those may stand still
	NFP_HANDED_MAX = 65536, // packets of the transmit calls that one thread has open
	NFP_PENDING_BATCHES_MAX = 1 << 19,
	NFP_PENDING_CALLS_MAX = 2 << 20, // all threads; above it batches are delivered as they are
	NFP_PENDING_PACKETS_MAX = 1 << 20,
	NFP_EVENTS_MAX = 1 << 20,
	NFP_PENDING_PARTS = 8, // what is over such a bound is brought down by one of so many parts at least
	NFP_DELIVERED_CALLS_MAX = 16 << 20, // not taken; above it batches are discarded and counted
	NFP_DELIVERED_PACKETS_MAX = 8 << 20,
	NFP_STEP_TICKS = 1 << 30, // no signal handler takes so long: time has stepped back
	NFP_LATE_MAX = 65536, // delivered messages whose later sendings are still counted as theirs
};

enum nfp_pending_kind {
	NFP_PENDING_BURST, // what a receive call returned
	NFP_PENDING_MESSAGE_SCOPE, // messages inside a call (message.c): ends with it
	NFP_PENDING_LOOP_ITERATION, // from one call to the next (batch.c)
};

// A packet of a batch went on in another one.
struct nfp_pending_handover {
	uint64_t ticks;
	uint32_t packet;
	uint32_t slot; // of the batch that took it over
	uint32_t index; // in its burst
};

// A batch that has begun and was not delivered.
struct nfp_pending {
	// What is looked at again and again while it waits, in two cache lines.
	struct nfp_pending *next;
	uint64_t
	    number; // one more than receiving batches of its thread had ended with it; 0: it has not ended
	uint64_t round; // of the take after which it ended
	uint64_t given_take, reemitted_take; // of the takes that have it, the number; 0: none has
	uint64_t received_total; // packets of its thread up to its last one
	uint64_t turn; // of its thread: nothing was handed on between the receive calls of a turn
	uint64_t queued_mark,
	    queued_round; // for how many packets that were put into queues it waits, since when (tail_sampled.c)
	uint32_t queued_again; // it waits for the second time
	uint64_t queued_ticks; // and the latest time of its thread then
	enum nfp_pending_kind kind;
	uint32_t undone; // described packets that may still be transmitted or dropped
	struct {
		struct nfp_pending_handover *items;
		uint32_t count;
		uint32_t capacity;
	} handovers; // of its packets to other batches (handover.c)
	uint32_t handovers_ended; // of these the first ones went to batches that have ended
	uint32_t taken; // described packets of a batch that took them over ...
	uint32_t held; // ... of which so many are not delivered: it stays, delivered or not
	uint32_t slot; // in nfp_pipeline.slots

	struct nfp_batch batch;
	struct nfp_log log;
	struct {
		struct nfp_packet *items;
		uint32_t count;
		uint32_t capacity;
	} packets;
	uint32_t given_index, reemitted_index; // in the columns of these takes
	uint64_t handed; // packets that calls of this batch transmitted, dropped or punted
	uint64_t punted, absorbed;
	uint64_t receive_ticks; // exit of the receive call
};

enum nfp_event_kind {
	NFP_EVENT_RECEIVE,
	NFP_EVENT_TRANSMIT,
	NFP_EVENT_DROP,
	NFP_EVENT_PUNT,
	NFP_EVENT_KEEP, // it may come out again, changed
	NFP_EVENT_REPLACE,
	NFP_EVENT_FREE, // drops what is still here
	NFP_EVENT_SEND, // of a message: there may be more
	NFP_EVENT_DEQUEUE, // by a batch, on the way between receive and the others
	NFP_EVENT_REFUSED, // by a queue of another thread, and dropped, unless it is taken over
	NFP_EVENT_CHOSEN, // a chosen packet that went from thread to thread; it is in nfp_pipeline.travellers
	NFP_EVENT_MADE, // the buffer holds a message that was not received
};

// A packet was received, or handed on successfully.
struct nfp_event {
	uint64_t ticks; // exit of the receive call, or entry of the transmit or drop call
	uint64_t done_ticks;
	uint64_t buffer;
	uint64_t next; // the packet's second buffer, or 0
	uint64_t digest;
	uint32_t slot; // receive: its batch ...
	uint32_t index; // ... and packet
	uint32_t function; // of the transmit or drop call
	uint32_t number; // done_number of the packet
	uint16_t kind; // enum nfp_event_kind
	uint16_t tries;
};

struct nfp_events {
	struct nfp_event *items;
	uint32_t count;
	uint32_t capacity;
};

struct nfp_handed {
	uint64_t buffer;
	uint64_t next; // as of the event
	uint64_t digest;
	uint16_t position; // in its burst
	uint16_t length;
	uint32_t chosen; // its place among the stream's chosen packets, or NFP_NONE
	uint32_t number; // done_number of the packet
};

enum { NFP_VIAS_MAX = 3 };
// A packet that is described when it is handed on (tail_sampled.c).
struct nfp_tail_sampled {
	struct nfp_packet packet;
	uint64_t origin_ticks; // entry of its receive call; 0: not known
	// Of one that went from thread to thread (handover.c):
	uint64_t taken_ticks; // entry of the call that took it over, the lower 48 bits; 0: not known
	uint32_t taken_index; // position there
	uint32_t origin_thread; // that received it
	uint32_t went;
	uint32_t
	    via_count; // calls that took it over in between: the lower 48 bits of their entries << 16 | thread
	uint64_t via[NFP_VIAS_MAX];
};

// One whose batch another thread's records name, which may not have been read yet.
struct nfp_traveller {
	struct nfp_tail_sampled chosen;
	uint32_t next; // of those that are not used, its place + 1
};

enum { NFP_HOLDS_MAX = 256 }; // that are kept
// What a thread's packets may name (batch.c).
enum { NFP_RECENT_BATCHES = 1 << 16 }; // of one packet each they are what is read at once

struct nfp_recent_batch {
	uint64_t start_ticks; // entry of the receive call
	uint64_t id;
	struct nfp_pending *pending;
};
struct nfp_recent {
	struct nfp_recent_batch *items; // in a ring; NULL: nothing was named yet
	uint64_t count; // that were ever added
};

enum { NFP_SHARES_MAX = 32 };

// What a call's frame holds of one batch of the turn.
struct nfp_share {
	uint64_t ticks; // entry of its receive call, the lower 48 bits
	struct nfp_pending *pending; // NULL: the last batch
	uint32_t packets;
};

// Of the call that said so last.
struct nfp_shares {
	struct nfp_share items[NFP_SHARES_MAX];
	uint32_t count;
	uint32_t function, sp;
	uint32_t found; // the batches of its items were looked up
	uint32_t seen; // any call of the thread has said so
};

// The packet whose facts are being read: the last one of the batch, the last one handed on, or neither.
enum nfp_describing {
	NFP_DESCRIBING_NONE,
	NFP_DESCRIBING_RECEIVED,
	NFP_DESCRIBING_HANDED,
	NFP_DESCRIBING_CHOSEN,
	NFP_DESCRIBING_TEXT, // no packet: what a call is handed (barrier.c)
	NFP_DESCRIBING_STRAY,
};

#define NFP_PRIOR_TICKS (1ull << 32) // one to two seconds

struct nfp_stream {
	uint32_t thread;
	struct nfp_calltree tree;
	struct nfp_log outside;
	uint32_t outside_limit; // rows of `outside` at which it is delivered in part
	uint32_t outside_seen; // rows of it that stood there at the last take
	struct nfp_log *log; // &outside, or the log of `batch`
	struct nfp_pending *batch; // the last receive's, until the next; its log may be closed before
	uint64_t last_ticks;
	struct {
		uint64_t start_ticks;
		uint32_t function;
		uint32_t sp;
		uint32_t valid;
		uint64_t earliest_ticks; // as its POLL_QUEUE record says; 0: there is none
		uint64_t arrival_ticks; // as its BATCH_ARRIVAL record says; 0: there is none
		uint32_t queue;
		struct nfp_readings readings; // of its entry
		uint32_t lossy; // records were lost since the last one: perhaps of calls inside this one
	} poll;
	struct {
		uint64_t since_ticks; // start of its first batch; 0: there was none
		uint64_t emptied; // queues that were seen empty since then, by the low bits of their numbers
	} prior;
	uint64_t gone_ticks; // calls that began up to then may have left the log
	enum nfp_describing describing;
	struct {
		struct nfp_handed *items;
		uint32_t count;
		uint32_t capacity;
	} handed;
	struct {
		struct nfp_tail_sampled *items;
		uint32_t count;
		uint32_t capacity;
	} chosen; // of the transmit calls that are open
	struct nfp_recent recent;
	struct nfp_recent takes; // the same of batches that have taken their packets over
	uint64_t received_total, handed_total; // packets; what is given up counts as handed on
	uint64_t turn; // grows whenever packets are handed on
	struct nfp_shares shares;
	struct {
		uint64_t turn;
		uint64_t received_total;
		uint32_t known;
	} turn_end; // packets up to the last batch of a turn, while batches are delivered (tail_sampled.c)
	uint32_t hands_over; // it has put packets into queues of other threads
	uint32_t chooses; // it describes packets when they are handed on
	struct {
		uint64_t length;
		uint64_t number;
	} facts; // captured since the outermost call of role MESSAGE_SCOPE began
	struct nfp_topic_reader topic;
	struct {
		uint32_t level; // how often it holds the others
		uint32_t described; // place among the open calls of the one whose text is read
		uint64_t start_ticks, held_ticks, digest;
		uint32_t function;
	} hold;
	struct nfp_readings readings; // that stand before the next entry or exit
	struct nfp_events events;
	uint32_t describes; // it has had events
	uint32_t closes; // its inner gate was closed in some batch (batch.c)
	struct nfp_pending *ended, **ended_last;
	uint64_t ended_total;
	uint64_t ended_taken; // the same at the last take
	uint64_t ended_matched; // and when the newest of the events that are matched were read
	uint64_t ended_seen, ended_left; // when batches were delivered last: ended_total, and how many stayed
};

// How far those have come that take packets over.
struct nfp_queues {
	uint64_t taken; // packets of batches that have ended, or handed all on
	uint64_t reached_ticks; // which all threads that do so have reached
};

struct nfp_pipeline {
	struct {
		uint8_t *items;
		uint32_t count;
		uint32_t capacity;
	} roles;
	struct nfp_costs costs;
	struct nfp_stream *streams[NFP_THREAD_COUNT];
	struct {
		struct nfp_pending **items;
		uint32_t count;
		uint32_t capacity;
	} slots;
	struct nfp_pending *idle; // for reuse
	struct nfp_table buffers; // of struct nfp_buffer_entry
	uint32_t late; // entries of it with NFP_SLOT_LATE
	struct nfp_topics topics;
	struct nfp_events unmatched; // handed on, their receive was not seen yet
	struct nfp_events still_unmatched;
	struct {
		struct nfp_traveller *items;
		uint32_t count;
		uint32_t capacity;
	} travellers;
	uint32_t idle_traveller; // its place + 1; 0: none
	uint64_t pending_batches, pending_calls, pending_packets, events;
	uint64_t next_batch_id, round, given; // given: takes, those of parts included
	uint64_t newest_round; // in which the newest stream began
	uint32_t stream_count;
	uint64_t lost_ticks; // what was received before may have gone unseen, for records were lost ...
	int lossy; // ... since the last time that packets were matched
	int hands_over; // packets were taken over
	int sees_handovers; // ... and what puts them into queues is seen, too
	uint64_t taken_ended; // packets of all batches that took theirs over and have ended
	struct nfp_queues queues, queues_read; // whose records are matched, and read (tail_sampled.c)
	uint64_t made_ticks; // when a packet was sent last that had not been received
	int pooled; // a buffer that is received again had been freed
	uint64_t taken_ticks; // the latest time that any thread had reached at the last take
	int taken, finishing, taking_part;
	struct nfp_log calls; // delivered
	struct {
		struct nfp_batch *items;
		uint32_t count;
		uint32_t capacity;
	} batches;
	struct {
		struct nfp_packet *items;
		uint32_t count;
		uint32_t capacity;
	} packets;
	struct {
		struct nfp_topic *items;
		uint32_t count;
		uint32_t capacity;
	} given_topics;
	struct {
		struct nfp_handover *items;
		uint32_t count;
		uint32_t capacity;
	} handovers;
	struct {
		struct nfp_batch *items;
		uint32_t count;
		uint32_t capacity;
	} reemitted_batches;
	struct nfp_log reemitted_calls;
	struct {
		struct nfp_hold items[NFP_HOLDS_MAX], given[NFP_HOLDS_MAX];
		uint64_t total, given_total; // ever; in a ring
	} holds;
	struct {
		uint32_t *items;
		uint32_t capacity;
	} remap;
	struct nfp_counted_calls counted;
	struct nfp_log moved; // calls on their way from one log to another
	struct nfp_pipeline_counts counts;
};

// The flag of a call of this enum nfp_role: NFP_CALL_RECEIVE, _TRANSMIT, _DROP.
static inline uint16_t nfp_role_flag(uint32_t role)
{
	if (role == NFP_ROLE_SEND)
		return NFP_CALL_TRANSMIT;
	if (role == NFP_ROLE_PUNT)
		return NFP_CALL_DROP;
	return role && role <= NFP_ROLE_DROP ? (uint16_t)(NFP_CALL_RECEIVE << (role - NFP_ROLE_RECEIVE)) : 0;
}

// Whether calls of the role hand on packets that were received.
static inline int nfp_role_hands_on(uint32_t role)
{
	return role == NFP_ROLE_TRANSMIT || role == NFP_ROLE_DROP || role == NFP_ROLE_SEND ||
	       role == NFP_ROLE_FREE || role == NFP_ROLE_PUNT || role == NFP_ROLE_KEEP ||
	       role == NFP_ROLE_REPLACE || role == NFP_ROLE_HAND_OVER;
}

// What becomes of a packet that a call of the role hands on.
static inline enum nfp_disposition nfp_role_disposition(uint32_t role)
{
	if (role == NFP_ROLE_PUNT)
		return NFP_PUNTED;
	return role == NFP_ROLE_DROP ? NFP_DROPPED : NFP_TRANSMITTED;
}

// The packet that was received in the buffer, if it is still here; NULL: there is none.
static inline struct nfp_buffer_entry *nfp_buffer_here(const struct nfp_pipeline *pipeline, uint64_t buffer)
{
	if (!pipeline->buffers.capacity || !buffer)
		return NULL;
	struct nfp_buffer_entry *entry = nfp_buffers_find(&pipeline->buffers, buffer);
	return entry->slot >= NFP_SLOT_LATE ? NULL : entry;
}

// Whether something may still become of it.
static inline int nfp_packet_is_here(const struct nfp_packet *packet)
{
	return packet->disposition == NFP_UNKNOWN || packet->disposition == NFP_ABSORBED;
}

// pipeline.c
// So many packets have this disposition. `pending`: the batch that they are counted with, or NULL.
void nfp_count_done(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                    enum nfp_disposition disposition, uint64_t packets);
// batch.c
// Begins the batch that a receive call returned. `size` 0: the call is recorded outside any batch.
void nfp_batch_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t end_ticks,
                     uint32_t size, uint32_t requested);
// Begins `batch` inside calls that are open at `sp`. The rows of the stream's log from `first` on move into it
// with the open calls among them; NFP_NONE: none do. NULL when there is no memory.
struct nfp_pending *nfp_batch_begin_inside(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                                           const struct nfp_batch *batch, uint32_t first, uint32_t sp);
// The calls that follow do not belong to the batch. Its packets may still be handed on.
void nfp_batch_close(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t sp);
// Nothing that follows belongs to the batch.
void nfp_batch_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t sp);
// The number of the first one that was not entered before then; `count`: there is none.
uint64_t nfp_recent_search(const struct nfp_recent *recent, uint64_t start_ticks);
// A time of which a record has the lower 48 bits.
static inline uint64_t nfp_whole_ticks(const struct nfp_stream *stream, uint64_t ticks)
{
	const uint64_t span = 1ull << 48;
	uint64_t whole = (stream->last_ticks & ~(span - 1)) | (ticks & (span - 1));
	return whole > stream->last_ticks && whole >= span ? whole - span : whole;
}
// The batch whose receive call was entered then, and which has not been delivered; or NULL.
struct nfp_pending *nfp_recent_find(struct nfp_stream *stream, uint64_t start_ticks);
// A call of role LOOP_ITERATION begins.
void nfp_loop_iteration_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t ticks,
                              uint32_t function, uint32_t sp);
void nfp_detail_close(struct nfp_pipeline *pipeline, struct nfp_stream *stream);
int nfp_detail_is_ungated(struct nfp_pipeline *pipeline, const struct nfp_stream *stream, uint32_t role);
// share.c
void nfp_share_note(struct nfp_stream *stream, const struct nfp_record *record);
int nfp_share_is_of(const struct nfp_stream *stream, uint32_t function, uint32_t sp);
// The call that has said its shares has ended; `row` is its row, or NFP_NONE.
void nfp_share_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t row);
// The open call handed on so many packets that it did not describe: they are counted with the batches whose they were.
void nfp_share_count(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_open *open,
                     enum nfp_disposition disposition, uint64_t packets);
// Whether calls of the turn may still belong to a batch that has ended.
int nfp_share_waits(const struct nfp_stream *stream, const struct nfp_pending *pending);
// packet.c
// Adds a packet that was received to its batch. NULL: no memory.
struct nfp_packet *nfp_packet_receive(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                                      struct nfp_pending *pending, uint64_t ticks, uint64_t buffer);
void nfp_packet_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                      const struct nfp_record *record);
int nfp_packet_fact(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                    const struct nfp_record *record);
// 0: no memory.
int nfp_event_append(struct nfp_pipeline *pipeline, struct nfp_stream *stream, struct nfp_event event);
// The transmit or drop call `open` ends now.
void nfp_packet_call_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t index);
void nfp_packet_put_fact(struct nfp_packet *packet, const struct nfp_record *record);
// message.c
void nfp_message_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                       const struct nfp_record *record);
void nfp_message_fact(struct nfp_pipeline *pipeline, struct nfp_stream *stream, struct nfp_packet *packet,
                      const struct nfp_record *record);
// A text of so many bytes follows, whose records come one by one; the last one adds it to the topics.
uint32_t nfp_message_begin_text(struct nfp_stream *stream, uint32_t bytes);
void nfp_message_text(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint64_t digest,
                      const struct nfp_record *record);
int nfp_message_value(struct nfp_stream *stream, uint32_t role, uint64_t value);
// The call `index` of role SEND ends now.
void nfp_message_sent(struct nfp_pipeline *pipeline, struct nfp_stream *stream, uint32_t index);
// tail_sampled.c
// What is handed on is a chosen packet. 0: no memory.
int nfp_tail_sampled_begin(struct nfp_stream *stream, const struct nfp_record *record);
// A chosen packet was handed on by the open call. 0: which batch it came with is not known.
int nfp_tail_sampled_done(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                          const struct nfp_open *open, uint32_t chosen, const struct nfp_event *event);
// It went from thread to thread.
void nfp_tail_sampled_taken(struct nfp_stream *stream, const struct nfp_record *record);
void nfp_tail_sampled_note(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                           const struct nfp_record *record);
void nfp_tail_sampled_count(struct nfp_stream *stream, uint64_t handed);
// Whether packets of the batch may still be handed on, and not too much has come since.
int nfp_tail_sampled_waits(const struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                           struct nfp_pending *pending);
// Whether packets of the batch may stand in queues, or be in batches whose records say so later.
int nfp_queues_wait(const struct nfp_pipeline *pipeline, const struct nfp_stream *stream,
                    struct nfp_pending *pending);
// How far the threads have come that take packets over: to be called before these two.
// all: what their records say was matched up to now, and not only what was read before the last take.
void nfp_queues_look(struct nfp_pipeline *pipeline, int all);
// The batch is delivered.
void nfp_tail_sampled_give_up(struct nfp_stream *stream, const struct nfp_pending *pending);
// Puts a chosen packet into its batch. 0: it cannot be one of it.
int nfp_tail_sampled_place(struct nfp_pipeline *pipeline, struct nfp_pending *pending,
                           const struct nfp_packet *packet);
// The packets that were handed to open calls, from `first` on, are forgotten.
void nfp_handed_cut(struct nfp_stream *stream, uint32_t first);
// handover.c
// A packet is described by a call that takes packets over. 0: it belongs to no batch, or there is no memory.
int nfp_handover_begin(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                       const struct nfp_record *record);
// The packet at `index` of `pending` is the one of the event.
void nfp_handover_note(struct nfp_pipeline *pipeline, struct nfp_pending *pending, uint32_t index,
                       const struct nfp_event *event);
// The call `open`, which puts packets into queues of other threads, ends now.
void nfp_handover_call_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                           const struct nfp_open *open);
// The packet at `index` of `pending` may have been dropped at a queue; without an event: it was, if anything was said.
void nfp_handover_refuse(struct nfp_pending *pending, uint32_t index, const struct nfp_event *event);
void nfp_handover_drop(struct nfp_pipeline *pipeline, struct nfp_pending *pending, uint32_t index);
// As above for all packets of a completed batch.
void nfp_handovers_drop(struct nfp_pipeline *pipeline, struct nfp_pending *pending);
// Nothing more will come of what holds the batch in this slot.
void nfp_handover_leave(struct nfp_pipeline *pipeline, uint32_t slot);
// A chosen packet that went from thread to thread is handed on by an open call of `stream`. 0: no memory.
int nfp_handover_chosen(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                        const struct nfp_event *event, const struct nfp_tail_sampled *chosen);
// It is put into its batch, and goes on in that which took it over. 0: that is not known, or not yet.
int nfp_handover_place(struct nfp_pipeline *pipeline, const struct nfp_event *event);
// It is only counted.
void nfp_handover_give_up(struct nfp_pipeline *pipeline, const struct nfp_event *event);
// Whether packets may still say that they went on in a batch that has ended.
int nfp_handover_may_name(const struct nfp_pipeline *pipeline, const struct nfp_stream *stream,
                          struct nfp_pending *pending);
// A batch that takes packets over begins.
void nfp_handover_add(struct nfp_stream *stream, struct nfp_pending *pending);
// Whether packets of the batch are in batches that have not ended.
int nfp_handovers_wait(const struct nfp_pipeline *pipeline, struct nfp_pending *pending);
// Those of a batch whose packets stand in the columns from `first_packet` on.
void nfp_handovers_deliver(struct nfp_pipeline *pipeline, struct nfp_pending *pending, uint32_t first_packet);
void nfp_handovers_release(struct nfp_pipeline *pipeline, struct nfp_pending *pending);
// barrier.c
void nfp_hold_begin_text(struct nfp_pipeline *pipeline, struct nfp_stream *stream,
                         const struct nfp_record *record);
void nfp_hold_fact(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_record *record);
void nfp_hold_call_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, struct nfp_open *open,
                       uint64_t ticks);
// Puts them together. Returns how many they are.
uint32_t nfp_holds_give(struct nfp_pipeline *pipeline);
// match.c
// A call ends now that frees its packets, or may keep or replace them.
void nfp_handed_end(struct nfp_pipeline *pipeline, struct nfp_stream *stream, const struct nfp_open *open,
                    enum nfp_event_kind kind);
// Matches what was handed on with what was received, in the order of time over all threads.
void nfp_packets_match(struct nfp_pipeline *pipeline, uint64_t until_ticks);
void nfp_stream_match(struct nfp_pipeline *pipeline, struct nfp_stream *stream);
uint64_t nfp_packets_horizon(const struct nfp_pipeline *pipeline);
void nfp_packet_forget(struct nfp_pipeline *pipeline, const struct nfp_pending *pending, uint32_t index);
// The message's batch is delivered; it may be sent once more.
void nfp_message_late(struct nfp_pipeline *pipeline, const struct nfp_pending *pending, uint32_t index);
// emit.c
// Delivers calls outside batches; all: also those below calls that are open for the first time.
void nfp_outside_deliver(struct nfp_pipeline *pipeline, struct nfp_stream *stream, int all);
// Delivers the batches that are complete; all: every one that has ended.
void nfp_batches_deliver(struct nfp_pipeline *pipeline, int all);
// As above for those of one thread.
uint64_t nfp_stream_deliver(struct nfp_pipeline *pipeline, struct nfp_stream *stream, int all);
// One batch that has ended, into the columns. Not again: its packets, too.
void nfp_batch_deliver(struct nfp_pipeline *pipeline, struct nfp_pending *pending);
void nfp_batch_deliver_again(struct nfp_pipeline *pipeline, struct nfp_pending *pending);
#endif
