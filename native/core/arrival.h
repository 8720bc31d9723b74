// SPDX-License-Identifier: Apache-2.0
// Where a packet's life in the function begins, and how that is known: it was stamped, a capture file says it, or the
// polls bound it (native/probe/queue.h). Pure; columns.py has the same rule for arrays.
#ifndef NFPROBE_CORE_ARRIVAL_H
#define NFPROBE_CORE_ARRIVAL_H
#include "abi/record.h"
#include "columns.h"

// Fills in what a POLL_QUEUE record says of a batch; earliest_ticks 0: there is no such record. A bound behind the
// poll itself cannot be. Of a saturated queue there is none: its packets' latency counts from the poll, also where an
// older recording has the time of the poll before.
static inline void nfp_batch_wait(struct nfp_batch *batch, uint64_t earliest_ticks, uint32_t queue)
{
	if (!earliest_ticks)
		return;
	int is_bound = !(queue & NFP_QUEUE_SATURATED) && earliest_ticks < batch->start_ticks;
	batch->earliest_ticks = is_bound ? earliest_ticks : batch->start_ticks;
	batch->queue = queue & ((1u << NFP_QUEUE_BITS) - 1);
	if (queue & NFP_QUEUE_UNDETAILED)
		batch->flags |= NFP_BATCH_UNDETAILED;
	if (queue & NFP_QUEUE_SATURATED)
		batch->flags |= NFP_BATCH_SATURATED;
}

// Whether the packet's own arrival is known. One after the start of its batch is rejected: the clocks differ by
// more than the wait.
static inline int nfp_arrival_known(const struct nfp_packet *packet, uint64_t batch_start_ticks)
{
	return packet->flags & NFP_PACKET_ARRIVAL_KNOWN && packet->arrival_ticks &&
	       packet->arrival_ticks <= batch_start_ticks;
}

static inline uint64_t nfp_batch_life_start(const struct nfp_batch *batch)
{
	return batch->earliest_ticks ? batch->earliest_ticks : batch->start_ticks;
}

// What the latency of those packets of the batch counts from whose own arrival is not known.
static inline enum nfp_origin nfp_batch_life_origin(const struct nfp_batch *batch)
{
	int is_bounded = batch->earliest_ticks && !(batch->flags & NFP_BATCH_SATURATED);
	return is_bounded ? NFP_FROM_POLL : NFP_FROM_RECEIVE;
}

// Since when the packets of the batch were in the function, where they are not described: the first one's stamp, or else
// what the polls say. columns.py has the same rule.
static inline uint64_t nfp_batch_age_start(const struct nfp_batch *batch)
{
	return batch->arrival_ticks ? batch->arrival_ticks : nfp_batch_life_start(batch);
}

static inline enum nfp_origin nfp_batch_age_origin(const struct nfp_batch *batch)
{
	return batch->arrival_ticks ? NFP_FROM_STAMP : nfp_batch_life_origin(batch);
}

static inline enum nfp_origin nfp_life_origin(const struct nfp_packet *packet, const struct nfp_batch *batch)
{
	if (nfp_arrival_known(packet, batch->start_ticks))
		return packet->flags & NFP_PACKET_ARRIVAL_UNIX_NS ? NFP_FROM_CAPTURE : NFP_FROM_STAMP;
	return nfp_batch_life_origin(batch);
}

// Where a packet's latency is counted from.
static inline uint64_t nfp_life_start(const struct nfp_packet *packet, const struct nfp_batch *batch)
{
	if (nfp_arrival_known(packet, batch->start_ticks))
		return packet->arrival_ticks;
	return nfp_batch_life_start(batch);
}
#endif
