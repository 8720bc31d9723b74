// SPDX-License-Identifier: Apache-2.0
// The batches that a thread has begun last, by the entry of their receive call, for packets that say which one they came
// from. Who names a batch has received it a few hundred packets ago at most (NFP_LATE_POINTERS of native/probe/late.h); what
// another thread has sent is looked for when that thread's records are read, too. See stream.h.
#include "stream.h"
#include <string.h>

enum {
	LATE_STEPS = 8, // how many may have begun after one that is said to have begun before them
};

static struct nfp_recent_batch *at(const struct nfp_recent *recent, uint64_t number)
{
	return &recent->items[number % NFP_RECENT_BATCHES];
}

static uint64_t oldest(const struct nfp_recent *recent)
{
	return recent->count > NFP_RECENT_BATCHES ? recent->count - NFP_RECENT_BATCHES : 0;
}

// They stand in the order of their entries. One that is far from its place is not remembered, nor one that took its packets
// over: none says that it came from there.
void nfp_recent_add(struct nfp_recent *recent, struct nfp_pending *pending)
{
	if (pending->batch.flags & NFP_BATCH_TAKEN_OVER)
		return;
	uint64_t place = recent->count, first = oldest(recent);
	struct nfp_recent_batch batch = {pending->batch.start_ticks, pending->batch.id, pending};
	while (place > first && at(recent, place - 1)->start_ticks > batch.start_ticks)
		if (recent->count - --place > LATE_STEPS)
			return;
	for (uint64_t i = recent->count++; i > place; i--)
		*at(recent, i) = *at(recent, i - 1);
	*at(recent, place) = batch;
}

// A stream whose packets begin to say where they came from.
static int begin(struct nfp_stream *stream)
{
	stream->recent.items = calloc(NFP_RECENT_BATCHES, sizeof(*stream->recent.items));
	if (!stream->recent.items)
		return 0;
	for (struct nfp_pending *pending = stream->ended; pending; pending = pending->next)
		nfp_recent_add(&stream->recent, pending);
	if (stream->batch)
		nfp_recent_add(&stream->recent, stream->batch);
	return 1;
}

uint64_t nfp_recent_search(const struct nfp_recent *recent, uint64_t start_ticks)
{
	uint64_t low = oldest(recent), high = recent->count;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (at(recent, middle)->start_ticks < start_ticks)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct nfp_pending *nfp_recent_find(struct nfp_stream *stream, uint64_t start_ticks)
{
	struct nfp_recent *recent = &stream->recent;
	if (!start_ticks || (!recent->items && !begin(stream)))
		return NULL;
	uint64_t low = nfp_recent_search(recent, start_ticks);
	if (low == recent->count || at(recent, low)->start_ticks != start_ticks)
		return NULL;
	// What was delivered has no number any more, and its memory may be another batch's.
	struct nfp_pending *pending = at(recent, low)->pending;
	return pending->batch.id == at(recent, low)->id ? pending : NULL;
}
