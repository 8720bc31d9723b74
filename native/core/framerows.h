// SPDX-License-Identifier: Apache-2.0
// The rules for the canonical frame address (CFA) in the frame programs that compilers write, which are hundreds of
// thousands in a large process. Knows the instructions that nearly all of them are made of; ehframe.py runs the others,
// and says what is wrong with a malformed one. The input is hostile: each index is checked.
#ifndef NFPROBE_CORE_FRAMEROWS_H
#define NFPROBE_CORE_FRAMEROWS_H

#include <stdint.h>

// cdef begin
enum { NFP_FRAME_ROWS_MAX = 64, NFP_FRAME_ROW_WORDS = 3 };

// Instead of a register: the CFA is the word at frame pointer + offset.
enum { NFP_FRAME_DEREFERENCED = -2 };

// Where a frame program begins: addresses are the file's own.
struct nfp_frame_start {
	uint64_t address;
	uint64_t until; // an address behind which the rules are not wanted
	int32_t cfa_register; // DWARF number
	int32_t cfa_offset;
};

// Writes address, register and offset of each row, NFP_FRAME_ROWS_MAX of them at most; an address advances by ones.
// Returns their number, or -1: the program is not for this function.
int nfp_frame_rows(const uint8_t *program, uint32_t bytes, const struct nfp_frame_start *start,
                   int64_t *rows);
// cdef end

#endif
