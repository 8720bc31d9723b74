// SPDX-License-Identifier: Apache-2.0
// Tells libunwind how to unwind through the code in arenas. Called by the helper thread only.
#ifndef NFPROBE_UNWINDER_H
#define NFPROBE_UNWINDER_H
#include <stdint.h>

// unw_dyn_info_t of libunwind 1.6 and later (libunwind-dynamic.h), for a table in the form of .eh_frame_hdr.
struct nfp_dynamic_info {
	struct nfp_dynamic_info *next, *previous;
	uint64_t start, end; // addresses of the code
	uint64_t global_pointer;
	int32_t format, padding;
	uint64_t load_offset;
	uint64_t name;
	uint64_t base;    // what the table's numbers are added to
	uint64_t entries; // of eight bytes
	uint64_t table;
};

// Adds the code that an ELF object of codemap.py describes, if the target has loaded libunwind. `info` stays in
// libunwind's list for ever.
void nfp_unwinder_add(struct nfp_dynamic_info *info, uint64_t object);
#endif
