// SPDX-License-Identifier: Apache-2.0
// See perf_records.h.
#include "perf_records.h"
#include <string.h>

struct nfp_perf_ring nfp_perf_ring_open(void *page, const uint8_t *bytes, uint64_t size)
{
	struct nfp_perf_ring ring = {.page = page, .bytes = bytes, .size = size};
	// Pairs with the kernel's store of the head: what stands before it is written.
	ring.head = __atomic_load_n(&ring.page->data_head, __ATOMIC_ACQUIRE);
	ring.at = ring.page->data_tail;
	if (ring.head - ring.at > size)
		ring.at = ring.head;
	return ring;
}

static void copy(const struct nfp_perf_ring *ring, uint8_t *to, uint64_t bytes)
{
	uint64_t first = ring->at % ring->size, straight = ring->size - first;
	if (straight > bytes)
		straight = bytes;
	memcpy(to, ring->bytes + first, straight);
	memcpy(to + straight, ring->bytes, bytes - straight);
}

uint32_t nfp_perf_ring_next(struct nfp_perf_ring *ring, uint8_t *record)
{
	struct perf_event_header header;
	uint64_t left = ring->head - ring->at;
	if (left < sizeof(header))
		return 0;
	copy(ring, record, sizeof(header));
	memcpy(&header, record, sizeof(header));
	if (header.size < sizeof(header) || header.size > left)
		return 0;
	uint32_t there = header.size < NFP_PERF_RECORD_BYTES ? header.size : NFP_PERF_RECORD_BYTES;
	copy(ring, record, there);
	if (there < sizeof(struct nfp_perf_switch))
		memset(record + there, 0, sizeof(struct nfp_perf_switch) - there);
	ring->at += header.size;
	return there;
}

void nfp_perf_ring_close(struct nfp_perf_ring *ring)
{
	// Pairs with the kernel's load of the tail: what stands before it may be written over.
	__atomic_store_n(&ring->page->data_tail, ring->head, __ATOMIC_RELEASE);
}

// Reads the record from its beginning to its end.
struct reading {
	const uint8_t *at;
	uint32_t left;
};

static int take(struct reading *reading, void *to, uint32_t bytes)
{
	if (reading->left < bytes)
		return 0;
	memcpy(to, reading->at, bytes);
	reading->at += bytes;
	reading->left -= bytes;
	return 1;
}

static int take_frames(struct reading *reading, struct nfp_perf_sample *sample)
{
	uint64_t count;
	if (!take(reading, &count, sizeof(count)) || count > reading->left / sizeof(uint64_t))
		return 0;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t frame = 0;
		(void)take(reading, &frame, sizeof(frame));
		if (sample->frame_count < NFP_PERF_FRAMES_MAX)
			sample->frames[sample->frame_count++] = frame;
	}
	return 1;
}

int nfp_perf_sample_read(struct nfp_perf_sample *sample, const uint8_t *record, uint32_t there)
{
	struct reading reading = {record, there};
	struct nfp_perf_switch *head = &sample->head;
	uint64_t abi, period; // what it counts for: how many ns, of a run time
	*head = (struct nfp_perf_switch){0};
	sample->argument = sample->frame_count = sample->bytes = 0;
	if (!take(&reading, &head->header, sizeof(head->header)) ||
	    !take(&reading, &head->pid, sizeof(head->pid)) ||
	    !take(&reading, &head->tid, sizeof(head->tid)) ||
	    !take(&reading, &head->time_ns, sizeof(head->time_ns)) ||
	    !take(&reading, &sample->address, sizeof(sample->address)) ||
	    !take(&reading, &sample->id, sizeof(sample->id)) ||
	    !take(&reading, &head->cpu, sizeof(head->cpu)) ||
	    !take(&reading, &head->reserved, sizeof(head->reserved)) ||
	    !take(&reading, &period, sizeof(period)) || !take_frames(&reading, sample) ||
	    !take(&reading, &sample->bytes, sizeof(sample->bytes)))
		return 0;
	head->id = sample->id;
	if (sample->bytes > reading.left)
		sample->bytes = reading.left;
	(void)take(&reading, sample->data, sample->bytes);
	if (take(&reading, &abi, sizeof(abi)) && abi)
		(void)take(&reading, &sample->argument, sizeof(sample->argument));
	return 1;
}

int nfp_perf_field(const struct nfp_perf_sample *sample, uint32_t at, void *to, uint32_t bytes)
{
	if (at > sample->bytes || sample->bytes - at < bytes)
		return 0;
	memcpy(to, sample->data + at, bytes);
	return 1;
}
