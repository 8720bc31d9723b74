// SPDX-License-Identifier: Apache-2.0
// The mailbox: how the monitor asks the helper thread in the target for something.
#ifndef NFPROBE_MAILBOX_H
#define NFPROBE_MAILBOX_H
#include "abi/session.h"

// cdef begin
// Asks, and waits for the answer. Returns 0 and *result, -ETIMEDOUT, or -ESTALE when the target's program is not there
// any longer, as `memory_fd` says (address_space.h; -1: not known).
int nfp_mailbox_ask(struct nfp_session_header *header, uint32_t command, const uint64_t arguments[4],
                    uint64_t patience_ns, int32_t memory_fd, int32_t *result);
// Asks and does not wait: the helper thread leaves without an answer.
void nfp_mailbox_send(struct nfp_session_header *header, uint32_t command);
// Now, in ticks.
uint64_t nfp_ticks_now(void);
// cdef end

// The two halves of nfp_mailbox_ask, for who has other work while it waits.
uint32_t nfp_mailbox_post(struct nfp_session_header *header, uint32_t command, const uint64_t arguments[4]);
// Waits up to `pause_ns` for the answer to `request`. Returns whether it is there.
int nfp_mailbox_answered(struct nfp_session_header *header, uint32_t request, uint64_t pause_ns);
#endif
