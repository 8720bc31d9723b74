// SPDX-License-Identifier: Apache-2.0
// The counters of one thread: the pages that the kernel maintains for them (struct perf_event_mmap_page), mapped in
// the target. Shared by counter.c, which reads them, and counter_pages.c, which maps them.
#ifndef NFPROBE_COUNTER_H
#define NFPROBE_COUNTER_H
#include "abi/record.h"
#include <stdint.h>

struct nfp_thread;

// What is used of a page; the kernel's header has the rest.
struct nfp_counter_page {
	uint32_t version;
	uint32_t compat_version;
	uint32_t lock; // even while the rest is consistent; another one after every change
	uint32_t index; // of the counter, as nfp_counter_low takes it, plus one; 0: it is not counting
};

// The readings of a receive call's entry, kept until it is known that it returned something, and of its exit.
struct nfp_kept_readings {
	uint64_t lows[NFP_COUNTER_PAIRS]; // two low halves each
	uint32_t check[NFP_COUNTER_PAIRS];
	uint32_t pairs; // 0: there are none
	uint64_t epoch; // of the session
};

struct nfp_counter_pages {
	const volatile struct nfp_counter_page *pages[NFP_COUNTER_SLOTS]; // never a null pointer once used
	void (*write)(struct nfp_thread *thread, uint32_t sp); // made for their number
	void (*keep)(struct nfp_thread *thread, struct nfp_kept_readings *readings); // the same
	uint32_t polls[NFP_COUNTER_SLOTS]; // what each counts in the probe of an empty poll
	uint32_t change; // which counters they are, as it stands in the check
	int mapped; // by us
};

extern struct nfp_counter_pages nfp_counter_pages[]; // by thread table index

// What writes the readings of `count` counters, 1 to NFP_COUNTER_SLOTS, and what keeps them.
void nfp_counters_choose(struct nfp_counter_pages *counters, uint32_t count);

// Reads the counters of a thread that may no longer have any.
void nfp_counters_keep(struct nfp_thread *thread, struct nfp_kept_readings *readings);
#endif
