// SPDX-License-Identifier: Apache-2.0
// CPU tasks: which task ran on a CPU when, and who woke it, out of the perf buffers of whole CPUs: samples of sched_switch of
// the CPUs that threads of the target run on, and of sched_waking of all that wake tasks there. What ran while such a
// thread was preempted is answered from the last ones; what is older is unknown. The kernel writes the buffers.
#ifndef NFPROBE_CPU_TASKS_H
#define NFPROBE_CPU_TASKS_H
#include "absences.h"
#include <stdint.h>

// cdef begin
#define NFP_CPU_RUNS 2048 // powers of two
#define NFP_CPU_WAKINGS 4096
#define NFP_CPU_WAKING_NS_MAX 100000000 // what woke a task longer ago than this is not looked for

// A task on a CPU.
struct nfp_cpu_run {
	uint64_t begin_ns, end_ns;
	uint32_t tid; // 0: the idle task
	char name[NFP_ABSENCE_NAME_BYTES];
};

struct nfp_cpu_waking {
	uint64_t at_ns;
	uint32_t woken, waker; // thread IDs
	uint32_t in_interrupt;
	uint32_t reserved;
};

// Offsets in samples, from the format files.
struct nfp_cpu_layout {
	uint32_t switch_id, waking_id; // of the tracepoints
	uint16_t previous_at, next_at, next_name_at, woken_at;
};

struct nfp_cpu_event {
	void *page; // struct perf_event_mmap_page; NULL: there is no event at this place
	const uint8_t *ring; // behind it
	uint64_t ring_bytes;
	uint32_t cpu;
	uint32_t switches; // that were read, ever
	uint32_t run_count; // ever
	struct nfp_cpu_run current; // begin_ns 0: unknown
	struct nfp_cpu_run *runs; // NFP_CPU_RUNS, in a ring; NULL: only wakings are read here
};

struct nfp_cpu_reader {
	struct nfp_cpu_event *events;
	uint32_t count;
	uint32_t waking_count; // ever
	uint64_t lost; // records that the kernel says it lost, or that make no sense
	struct nfp_cpu_layout layout;
	struct nfp_cpu_waking wakings[NFP_CPU_WAKINGS]; // in a ring
};

// Reads all buffers.
void nfp_cpus_read(struct nfp_cpu_reader *reader);
// Names in a row of a preempted thread the task that ran longest meanwhile, for how long, and who woke it; in one of a
// thread that slept, who woke that. `tid`: the thread's. What is not known is left as it is.
void nfp_cpus_explain(const struct nfp_cpu_reader *reader, uint32_t tid, struct nfp_absence *row);
// cdef end
#endif
