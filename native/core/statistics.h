// SPDX-License-Identifier: Apache-2.0
// Statistics of all calls, batches and packets: counts, sums, extremes and log-linear histograms, 32 buckets
// per power of two, so that a value is known to 1/64 of itself. Memory grows with the powers of two that
// occur, not with the number of calls. Fed with the columns of each take; called by statistics.py.
#ifndef NFPROBE_STATISTICS_H
#define NFPROBE_STATISTICS_H
#include "columns.h"

// cdef begin
#define NFP_SIZES_EXACT 8192 // batches of fewer packets are counted by their exact size

struct nfp_statistics;

enum nfp_distribution {
	NFP_CALL_TICKS = 0, // per function, without what the probes cost
	NFP_SELF_TICKS = 1, // per function
	NFP_BATCH_SIZE = 2,
	NFP_BATCH_TICKS = 3,
	NFP_PACKET_TICKS =
	    4, // arrival, or what stands for it (arrival.h), to the end of the transmit or drop call
	NFP_PACKET_OWN_TICKS = 5, // entry of the receive call to the end of the transmit or drop call
	NFP_RAW_TICKS = 6, // per function, as measured; summary only
};

struct nfp_summary {
	uint64_t count;
	uint64_t clipped; // calls whose times are cut to their batch
	uint64_t total;
	uint64_t min; // 0 when count is 0
	uint64_t max;
};

// Packets of batches with NFP_BATCH_PRIOR whose latency counts from before their receive call: no other number has them.
struct nfp_prior {
	uint64_t packets;
	uint64_t longest_ticks; // the largest of their latencies
};

struct nfp_bucket {
	uint64_t upper; // largest value that falls into it
	uint64_t count;
};

struct nfp_statistics *nfp_statistics_create(void); // NULL: no memory
void nfp_statistics_destroy(struct nfp_statistics *statistics);

// What a probed call of each function costs by itself. 0, or -1 when there is no memory.
int nfp_statistics_costs(struct nfp_statistics *statistics, const struct nfp_cost *costs, uint32_t functions);
// Ticks of that cost in the sum of the function's NFP_SELF_TICKS.
uint64_t nfp_statistics_self_cost(const struct nfp_statistics *statistics, uint32_t function);

// 0, or -1 when there was no memory for some of it. Indices out of range are left out.
int nfp_statistics_add(struct nfp_statistics *statistics, const struct nfp_columns *columns);
int nfp_statistics_merge(struct nfp_statistics *statistics, const struct nfp_statistics *other);

// One more than the largest function id seen.
uint32_t nfp_statistics_functions(const struct nfp_statistics *statistics);

// The number of calls of each function; 0 of those that were never seen.
void nfp_statistics_call_counts(const struct nfp_statistics *statistics, uint64_t *counts,
                                uint32_t functions);

// `function` is ignored by the distributions that are not per function.
void nfp_statistics_summary(const struct nfp_statistics *statistics, uint32_t distribution, uint32_t function,
                            struct nfp_summary *summary);

// The smallest value that at least `quantile` (0 to 1) of all values do not exceed, to 1/64; 0 when empty.
uint64_t nfp_statistics_quantile(const struct nfp_statistics *statistics, uint32_t distribution,
                                 uint32_t function, double quantile);

// How many values of NFP_PACKET_TICKS count from what, by enum nfp_origin.
void nfp_statistics_origins(const struct nfp_statistics *statistics, uint64_t counts[4]);

struct nfp_prior nfp_statistics_prior(const struct nfp_statistics *statistics);

// The non-empty buckets in ascending order, of NFP_BATCH_SIZE up to NFP_SIZES_EXACT each size; returns their number, at
// most `room`.
uint32_t nfp_statistics_histogram(const struct nfp_statistics *statistics, uint32_t distribution,
                                  uint32_t function, struct nfp_bucket *buckets, uint32_t room);
// cdef end
#endif
