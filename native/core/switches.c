// SPDX-License-Identifier: Apache-2.0
// See switches.h.
#include "switches.h"
#include <linux/perf_event.h>
#include <string.h>

// With what preemption.py asks for: thread, time, CPU.
struct record {
	struct perf_event_header header;
	uint32_t pid, tid;
	uint64_t time_ns;
	uint32_t cpu, reserved;
};

static void copy(const struct nfp_switch_event *event, uint64_t at, void *to, uint64_t bytes)
{
	uint64_t first = at % event->ring_bytes, straight = event->ring_bytes - first;
	if (straight > bytes)
		straight = bytes;
	memcpy(to, event->ring + first, straight);
	memcpy((uint8_t *)to + straight, event->ring, bytes - straight);
}

// Returns how many rows the record makes: 0 or 1.
static uint32_t read_switch(struct nfp_switch_event *event, const struct record *record,
                            struct nfp_switch *row)
{
	if (record->header.misc & PERF_RECORD_MISC_SWITCH_OUT) {
		int preempted = record->header.misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT;
		event->out_ns = record->time_ns;
		event->out_cpu = record->cpu;
		event->flags =
		    (event->flags & NFP_SWITCH_INCOMPLETE) | (preempted ? (uint32_t)NFP_SWITCH_PREEMPTED : 0);
		return 0;
	}
	if (!event->out_ns)
		return 0; // when it went is not known
	*row = (struct nfp_switch){.out_ns = event->out_ns,
	                           .in_ns = record->time_ns,
	                           .flags = event->flags,
	                           .from_cpu = event->out_cpu,
	                           .to_cpu = record->cpu};
	event->out_ns = event->flags = 0;
	return 1;
}

static uint32_t take(struct nfp_switch_event *event, struct nfp_switch *rows, uint64_t *lost)
{
	struct perf_event_mmap_page *page = event->page;
	// Pairs with the kernel's store of the head: what stands before it is written.
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), at = page->data_tail;
	uint32_t count = 0;
	if (head - at > event->ring_bytes)
		return 0;
	while (head - at >= sizeof(struct perf_event_header)) {
		struct record record = {0};
		copy(event, at, &record, head - at < sizeof(record) ? head - at : sizeof(record));
		if (record.header.size < sizeof(record.header) || record.header.size > head - at)
			break;
		at += record.header.size;
		if (record.header.type == PERF_RECORD_SWITCH && record.header.size == sizeof(record)) {
			count += read_switch(event, &record, &rows[count]);
		} else { // what comes back need not be what went last
			(*lost)++;
			event->out_ns = 0;
			event->flags = NFP_SWITCH_INCOMPLETE;
		}
	}
	// Pairs with the kernel's load of the tail: what stands before it may be written over.
	__atomic_store_n(&page->data_tail, head, __ATOMIC_RELEASE);
	return count;
}

uint32_t nfp_switches_take(struct nfp_switch_event *events, uint32_t count, uint32_t *next,
                           struct nfp_switch *rows, uint32_t room, uint64_t *lost)
{
	uint32_t taken = 0;
	for (; *next < count; ++*next) {
		struct nfp_switch_event *event = &events[*next];
		if (!event->page)
			continue;
		// A row takes two records, but for the first, of which one may stand in an earlier take.
		if (room - taken < event->ring_bytes / sizeof(struct record) / 2 + 1)
			break;
		uint32_t found = take(event, rows + taken, lost);
		for (uint32_t i = 0; i < found; i++)
			rows[taken + i].event = *next;
		taken += found;
	}
	return taken;
}
