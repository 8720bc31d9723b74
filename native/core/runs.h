// SPDX-License-Identifier: Apache-2.0
// The bytes of many changes, written page by page: two system calls for a page instead of three for a site,
// while the target stands still.
#ifndef NFPROBE_RUNS_H
#define NFPROBE_RUNS_H
#include "change.h"

// Neighbouring spans of one page, from the first byte of the first to the last byte of the last.
struct nfp_run {
	uint64_t address;
	uint32_t bytes;
	uint32_t offset; // in the buffers
	uint32_t first_span, spans;
};
struct nfp_runs {
	const struct nfp_plan *plan;
	struct nfp_run *runs;
	uint32_t count;
	uint8_t *found, *wanted;
};

// All return 0 or -errno.
int nfp_runs_make(struct nfp_runs *runs, const struct nfp_plan *plan);
// Makes the target's own copy of each page, by writing one byte as it is: the threads run on.
void nfp_runs_touch(const struct nfp_runs *runs, int memory);
// Marks changes whose expected bytes are not there, and writes the others. On an error all is as it was.
int nfp_runs_write(struct nfp_runs *runs, int memory);
// Marks changes that do not read back. The threads may run.
void nfp_runs_verify(struct nfp_runs *runs, int memory);
#endif
