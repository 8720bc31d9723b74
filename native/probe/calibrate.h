// SPDX-License-Identifier: Apache-2.0
// What calibrate.c and calibrate_counters.c share: a thread block with a small ring that nobody reads, in which the
// helper thread is while it calls probed functions.
#ifndef NFPROBE_CALIBRATE_H
#define NFPROBE_CALIBRATE_H
#include "library.h"

extern struct nfp_thread nfp_calibrated_thread;

// Opens its gate and gives it its ring; its counters stay as they are.
void nfp_calibration_prepare(void);

// The next record is the first one in it.
void nfp_calibration_rewind(void);
// The record that stands in one of its slots.
struct nfp_record nfp_calibrated_record(const struct nfp_record *slot);

// Sorts them.
uint64_t nfp_median(uint64_t *values, int count);
#endif
