// SPDX-License-Identifier: Apache-2.0
// One change of a target's code, as stop.c and live.c make it, and where a program counter that stands in
// changed bytes goes on. A site with room for a short jump only has an island: padding near it, which nobody
// executes, with the long jump.
//
//   one instruction of NFP_JUMP_BYTES or more   long jump [breakpoints...]    -> trampoline
//   one of fewer                                short jump [as it was] -> island: long jump -> trampoline
#ifndef NFPROBE_CHANGE_H
#define NFPROBE_CHANGE_H
#include "arch/arch.h"
#include <stdint.h>

// cdef begin
enum nfp_change_result {
	NFP_CHANGE_MADE = 0,
	// The bytes found were not `expected`, or the change is not sound (nfp_plan_make): nothing was written.
	NFP_CHANGE_UNEXPECTED = 1,
	NFP_CHANGE_UNREAD = 2, // they did not read back as written
	NFP_CHANGE_LEFT = 3, // not made
	NFP_CHANGE_ISLAND_LEFT = 4, // made, but the island is not as it was yet
};
// A thread whose program counter stands inside the old instructions, behind the first, would continue in the
// middle of the new ones: it is moved to the copy of its instruction. One that stands on the island is moved
// to the trampoline.
struct nfp_change {
	uint64_t address;
	uint64_t island; // 0: none
	uint64_t trampoline;
	uint32_t bytes; // at most 32
	uint32_t first_move; // in the moves array
	uint32_t moves;
	uint32_t failed; // out: enum nfp_change_result
	uint8_t expected[32];
	uint8_t replacement[32];
	uint8_t island_expected[8]; // NFP_ISLAND_BYTES are used
	uint8_t island_replacement[8];
};
struct nfp_move {
	uint64_t from;
	uint64_t to;
};
// cdef end
#define NFP_ISLAND_BYTES NFP_JUMP_BYTES

// Bytes that a change writes: a change with an island has two spans.
struct nfp_span {
	uint64_t address;
	uint32_t bytes;
	uint32_t change; // index
	uint8_t *expected, *replacement; // in the change
};
struct nfp_plan {
	struct nfp_change *changes;
	uint32_t count;
	const struct nfp_move *moves;
	struct nfp_span *spans; // sorted by address; no two have a byte in common
	uint32_t span_count;
};

// Returns 0 or -ENOMEM. The changes stay the caller's. Those that have no bytes or too many, lie where no program's bytes
// can, or overlap another one are marked NFP_CHANGE_UNEXPECTED and left out: the table that they are from is the target's.
int nfp_plan_make(struct nfp_plan *plan, struct nfp_change *changes, uint32_t count,
                  const struct nfp_move *moves);
// Whether the change is not left out.
int nfp_plan_has(const struct nfp_plan *plan, uint32_t index);
// The span that holds the address, or NULL.
const struct nfp_span *nfp_plan_span(const struct nfp_plan *plan, uint64_t address);
// Returns 1 and where to go on, 0 when the address may stay, -EBUSY when there is no place to go.
int nfp_plan_place(const struct nfp_plan *plan, uint64_t address, uint64_t *place);
#endif
