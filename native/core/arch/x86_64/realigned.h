// SPDX-License-Identifier: Apache-2.0
// Functions that align their stack and keep their canonical frame address (CFA) in a register. The same as
// otel_nfprobe/arch/x86_64/realigned.py finds, which says how such a function looks, where nothing looks at stack arguments;
// what is not sure is left to that one. The input is hostile.
#ifndef NFPROBE_CORE_X86_64_REALIGNED_H
#define NFPROBE_CORE_X86_64_REALIGNED_H

#include "codescan.h"

#include <stdbool.h>

struct nfp_realigned {
	const struct nfp_code_scan *scan;
	const uint8_t *code; // of the function
	uint64_t start; // its address
	uint64_t bytes;
	const int64_t *rows;
	int row_count;
	int64_t slot; // distance from rbp of the word that keeps the CFA
	uint8_t reg; // that holds the CFA, or NFP_REGISTER_NONE: the stack is not aligned so
};

// Fills in `slot` and `reg` from the rows. Returns whether the function can be judged here.
bool nfp_realigned_find(struct nfp_realigned *function);

// Whether nothing reads the register for anything but aligning the stack while it may hold the CFA, for sure.
bool nfp_realigned_is_clean(const struct nfp_realigned *function);

#endif
