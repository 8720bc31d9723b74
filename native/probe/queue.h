// SPDX-License-Identifier: Apache-2.0
// When the packets of a batch can have arrived, where nobody stamped them. A poll that returned fewer packets than
// it was asked for left its queue empty, so what the next polls of this queue return has arrived since the entry of
// that poll. Called by capture.c at the exit of receive functions, on the target's threads.
#ifndef NFPROBE_QUEUE_H
#define NFPROBE_QUEUE_H
#include "library.h"

// The queue that a receive call polls: its argument that says so (0: none does) and the function, hashed.
// Partner: the empty poll in x86_64/template_packets.S.
static inline uint32_t nfp_queue_of(uint64_t argument, uint32_t selector)
{
	return (((uint32_t)argument ^ selector) * NFP_QUEUE_HASH) >> NFP_QUEUE_SHIFT;
}

// Forgets all queues: another session or another thread begins with this block.
void nfp_queue_forget(struct nfp_thread *thread);

// The poll that began at `start` left the queue empty.
void nfp_queue_emptied(struct nfp_thread *thread, uint32_t queue, uint64_t start);

// A batch begins, with the poll that began at `start`; is_short: it left its queue empty. Sets the thread's
// batch_start and batch_earliest. Returns the marks of its POLL_QUEUE record.
uint32_t nfp_queue_batch(struct nfp_thread *thread, uint32_t queue, uint64_t start, int is_short);
#endif
