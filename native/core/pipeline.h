// SPDX-License-Identifier: Apache-2.0
// The pipeline: records in, columns out. One object per session; drained records of each thread are fed in
// ring order, finished calls, batches and packets are taken. No I/O, no clock, no
// global; it accepts any bytes as records and its memory is bounded by what is fed between two takes.
#ifndef NFPROBE_PIPELINE_H
#define NFPROBE_PIPELINE_H
#include "abi/record.h"
#include "columns.h"

// cdef begin
struct nfp_pipeline;

struct nfp_pipeline_counts {
	uint64_t records;
	uint64_t invalid;          // unknown kind or function, a fact without its packet
	uint64_t stray_packets;    // described, but of no receive, transmit or drop call that is known
	uint64_t calls;            // entries paired with their exits
	uint64_t unpaired_entries; // left without exit, or the exit was lost
	uint64_t unpaired_exits;
	uint64_t open;             // calls that have not ended
	uint64_t marked;           // calls whose end is not measured
	uint64_t lost[3];          // NFP_LOST_CLASSES, as said by LOST records
	uint64_t mistimed;         // records whose time stamp could not be, and steps back in time
	uint64_t batches;
	uint64_t received;         // packets
	uint64_t transmitted;
	uint64_t resent;           // of these, messages that had been sent before, to others
	uint64_t dropped;
	uint64_t punted;
	uint64_t absorbed;
	uint64_t freed;            // of these, known from their buffers: no drop function dropped them
	uint64_t pending;          // received, in batches that wait for them
	uint64_t unknown;          // received, neither handed on nor pending
	uint64_t generated;        // described when handed on, never seen received
	uint64_t ungated;          // entries and exits whose other end lies where detail was off
	uint64_t discarded;        // calls and packets not delivered for want of memory
	uint64_t identified;       // of chosen batches, packets that were described
	uint64_t handed_over;      // put into queues of other threads
	uint64_t taken_over;       // times that a described packet went on in another batch
	uint64_t unplaced; // of the identified ones, not delivered: which batch they came with is not known
};

// roles: one enum nfp_role per function id. NULL when there is no memory.
struct nfp_pipeline *nfp_pipeline_create(const uint8_t *roles, uint32_t functions);
void nfp_pipeline_destroy(struct nfp_pipeline *pipeline);

// The roles of all functions, old and added ones. 0, or -1 when there is no memory.
int nfp_pipeline_roles(struct nfp_pipeline *pipeline, const uint8_t *roles, uint32_t functions);

// What a probed call of each function costs by itself; calls that end later carry it in cost_ticks.
int nfp_pipeline_costs(struct nfp_pipeline *pipeline, const struct nfp_cost *costs, uint32_t functions);

// What a probed call of each function counts by itself; it is taken off the counts of calls that end later.
int nfp_pipeline_counter_costs(struct nfp_pipeline *pipeline, const struct nfp_counter_cost *costs,
                               uint32_t functions);

// From here on readings are of other counters: `set` says how often they were changed. Calls that are open are not
// counted. Their costs are to be given next.
void nfp_pipeline_count_anew(struct nfp_pipeline *pipeline, uint32_t set);

// thread: index in the thread table. 0, or -1 when it is not one or there is no memory.
int nfp_pipeline_feed(struct nfp_pipeline *pipeline, uint32_t thread, const struct nfp_record *records,
                      uint64_t count);

// The same for what a sweep has taken: parts (sweep.h) that lie one behind the other in `records`, of which there are `count`.
struct nfp_sweep_part;
int nfp_pipeline_feed_parts(struct nfp_pipeline *pipeline, const struct nfp_sweep_part *parts,
                            uint32_t part_count, const struct nfp_record *records, uint64_t count);

// The threads have ended: so have their last batches; their open calls are counted as open for ever. The indexes may
// be used for other threads after this.
void nfp_pipeline_end_threads(struct nfp_pipeline *pipeline, const uint32_t *threads, uint32_t count);

// The session is over: everything that is left can be taken.
void nfp_pipeline_finish(struct nfp_pipeline *pipeline);

// What is complete since the last take. The arrays are valid until the next feed, finish or take. Batches
// of one thread can come out of order, when one waits for its packets. To be called after each round in
// which all rings were drained: a packet's receive and its transmission may be in two of them. Where more
// than one thread describes packets these are matched one take later; calls outside batches always are.
void nfp_pipeline_take(struct nfp_pipeline *pipeline, struct nfp_columns *columns);

// What is complete already, before all rings were drained: nothing is waited for less long because of this, so that
// a ring of millions of records needs no room for all that is in it. The arrays are valid as those of a take.
void nfp_pipeline_take_part(struct nfp_pipeline *pipeline, struct nfp_columns *columns);

void nfp_pipeline_count(const struct nfp_pipeline *pipeline, struct nfp_pipeline_counts *counts);
// cdef end
#endif
