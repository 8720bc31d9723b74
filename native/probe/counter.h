// SPDX-License-Identifier: Apache-2.0
// The counters of one thread: the pages that the kernel maintains for them (struct perf_event_mmap_page), mapped in
// the target. Shared by counter.c, which reads them, and counter_pages.c, which maps them.
#ifndef NFPROBE_COUNTER_H
#define NFPROBE_COUNTER_H
#include <stdint.h>

#define NFP_COUNTERS_MAX 6

// What is used of a page; the kernel's header has the rest.
struct nfp_counter_page {
	uint32_t version;
	uint32_t compat_version;
	uint32_t lock; // even while the rest is consistent; another one after every change
	uint32_t index; // of the counter, for rdpmc, plus one; 0: it is not counting
};

struct nfp_counter_pages {
	const volatile struct nfp_counter_page *pages[NFP_COUNTERS_MAX]; // never a null pointer once used
	void (*write)(struct nfp_thread *thread, uint32_t rsp); // made for their number
	uint32_t change; // which counters they are, as it stands in the check
	int mapped; // by us
};

extern struct nfp_counter_pages nfp_counter_pages[]; // by thread table index

// What writes the readings of `count` counters, 1 to NFP_COUNTERS_MAX.
void (*nfp_counters_writer(uint32_t count))(struct nfp_thread *thread, uint32_t rsp);
#endif
