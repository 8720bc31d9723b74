// SPDX-License-Identifier: Apache-2.0
// Switches: takes what the scheduler did to threads out of their perf buffers, many in one call. A buffer has one record
// for each time that its thread went off a CPU or came back; a row is a pair of these. The kernel writes the buffers.
// Called by preemption.py: a target may have hundreds of threads, most of them asleep, and is looked at 20 times a second.
#ifndef NFPROBE_SWITCHES_H
#define NFPROBE_SWITCHES_H
#include <stdint.h>

// cdef begin
enum nfp_switch_flag {
	NFP_SWITCH_PREEMPTED = 1,
	NFP_SWITCH_INCOMPLETE = 2, // records of the scheduler were lost before this row
	NFP_SWITCH_HELD = 4, // another thread of the target kept it from running: known from holds, set later
};

struct nfp_switch_event {
	void *page; // struct perf_event_mmap_page; NULL: there is no event at this place
	const uint8_t *ring; // behind it
	uint64_t ring_bytes;
	uint64_t out_ns; // since when its thread is away; 0: it is not, or that is not known
	uint32_t out_cpu;
	uint32_t flags; // of the row that is under way: enum nfp_switch_flag
};

struct nfp_switch {
	uint64_t out_ns;
	uint64_t in_ns;
	uint32_t event; // index of the thread's event
	uint32_t flags; // enum nfp_switch_flag
	uint32_t from_cpu;
	uint32_t to_cpu;
};

// Takes the rows of the events from *next on, those of one thread in order, as long as there is room for all that a buffer
// can hold; *next is then the event that comes next, or `count`. Adds to *lost how many records are something else: the
// kernel says so where it has lost some. Returns the number of rows.
uint32_t nfp_switches_take(struct nfp_switch_event *events, uint32_t count, uint32_t *next,
                           struct nfp_switch *rows, uint32_t room, uint64_t *lost);
// cdef end
#endif
