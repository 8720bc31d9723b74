// SPDX-License-Identifier: Apache-2.0
// Time stamps that cannot be: nothing in a ring is later than the moment at which it was drained, nor much earlier than
// the session. A record with such a stamp becomes a LOST one, before it is recorded or looked at: what is around it
// cannot be trusted, what follows can. No I/O, reads no clock.
#ifndef NFPROBE_STAMPS_H
#define NFPROBE_STAMPS_H
#include "abi/record.h"

// cdef begin
// Replaces the records that are stamped earlier or later than these ticks. Returns how many they were. When a queue was
// empty, or a packet arrived, before that is brought up to `earliest`.
uint64_t nfp_stamps_bound(struct nfp_record *records, uint64_t count, uint64_t earliest_ticks,
                          uint64_t latest_ticks);
// cdef end
#endif
