// SPDX-License-Identifier: Apache-2.0
// A packet as a probe sees it, and the records that describe it. Used by capture.c and late.c.
#ifndef NFPROBE_DESCRIBE_H
#define NFPROBE_DESCRIBE_H
#include "library.h"

// Where the bytes of a packet are, as its buffer says.
struct nfp_view {
	uint64_t buffer;
	const uint8_t *data;
	uint32_t readable; // of the first segment
	uint32_t length; // of the whole packet
	uint64_t arrival; // stamp, where the program has one
};

// Which packet of which receive call it was.
struct nfp_origin {
	uint64_t start_ticks; // entry of that call; 0: not known
	uint32_t index; // position in the burst, or NFP_NO_POSITION
};

static inline uint32_t nfp_smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

void nfp_view_read(const struct nfp_program *program, uint64_t buffer, struct nfp_view *view);

// Writes the packet's records, all of them or none. `index` is its position in the burst of this call; `origin` may be
// NULL.
void nfp_describe(struct nfp_thread *thread, uint32_t function, const struct nfp_program *program,
                  const struct nfp_view *view, uint32_t index, const struct nfp_origin *origin);
#endif
