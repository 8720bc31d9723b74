// SPDX-License-Identifier: Apache-2.0
// Records in a perf buffer: each copied out of the ring, and the parts of a sample, as absence_watch.py and cpu_watch.py ask
// for them: PERF_SAMPLE_TID, TIME, ADDR, ID, CPU, PERIOD, CALLCHAIN, RAW, and REGS_USER where an event has it. No number in a record
// is believed without a look at how long the record is.
#ifndef NFPROBE_PERF_RECORDS_H
#define NFPROBE_PERF_RECORDS_H
#include <linux/perf_event.h>
#include <stdint.h>

#define NFP_PERF_RECORD_BYTES 768 // a sample with all frames; of longer records the rest is left out
#define NFP_PERF_FRAMES_MAX 40
#define NFP_PERF_TID_AT 4 // in what any tracepoint says: the current task, in the kernel's own namespace

// PERF_RECORD_SWITCH; the first half of a sample has the same fields but `id`.
struct nfp_perf_switch {
	struct perf_event_header header;
	uint32_t pid, tid;
	uint64_t time_ns;
	uint64_t id;
	uint32_t cpu, reserved;
};

struct nfp_perf_sample {
	struct nfp_perf_switch head;
	uint64_t address, id;
	uint64_t argument; // the first of the system call that the thread is in; 0: unknown
	uint32_t frame_count, bytes;
	uint64_t frames[NFP_PERF_FRAMES_MAX];
	uint8_t data[NFP_PERF_RECORD_BYTES]; // `bytes` of what the tracepoint says
};

struct nfp_perf_ring {
	struct perf_event_mmap_page *page;
	const uint8_t *bytes;
	uint64_t size, at, head;
};

struct nfp_perf_ring nfp_perf_ring_open(void *page, const uint8_t *bytes, uint64_t size);
// Copies the next record. Returns how many of its bytes are there, at most NFP_PERF_RECORD_BYTES; behind them it is zero. 0:
// there is none.
uint32_t nfp_perf_ring_next(struct nfp_perf_ring *ring, uint8_t *record);
// Gives the space of all records back to the kernel.
void nfp_perf_ring_close(struct nfp_perf_ring *ring);

// Returns 0 if the record is shorter than a sample.
int nfp_perf_sample_read(struct nfp_perf_sample *sample, const uint8_t *record, uint32_t there);
// Copies a field of what the tracepoint says; returns 0, and copies nothing, if it does not lie in there.
int nfp_perf_field(const struct nfp_perf_sample *sample, uint32_t at, void *to, uint32_t bytes);
#endif
