// SPDX-License-Identifier: Apache-2.0
// Detail: whether the inner functions of a batch are timed (`--detail auto`). Called by capture.c at the exit of
// receive functions that returned something, on the target's threads.
#ifndef NFPROBE_DETAIL_H
#define NFPROBE_DETAIL_H
#include "library.h"

// A batch begins; is_full: its poll returned as many packets as were asked for. Opens or closes the thread's inner
// gate. To be called while the thread block still speaks of the batch before. Returns marks of the POLL_QUEUE record.
uint32_t nfp_detail_begin(struct nfp_thread *thread, int is_full);
#endif
