// SPDX-License-Identifier: Apache-2.0
// The mailbox: how the monitor asks the helper thread in the target for something. Called by session.py.
#ifndef NFPROBE_MAILBOX_H
#define NFPROBE_MAILBOX_H
#include <nfprobe/session.h>

// cdef begin
// Asks, and waits for the answer. Returns 0 and *result, or -ETIMEDOUT.
int nfp_mailbox_ask(struct nfp_session_header *header, uint32_t command, const uint64_t arguments[4],
                    uint64_t patience_ns, int32_t *result);
// Asks and does not wait: the helper thread leaves without an answer.
void nfp_mailbox_send(struct nfp_session_header *header, uint32_t command);
// Now, in ticks of the time stamp counter.
uint64_t nfp_ticks_now(void);
// cdef end
#endif
