// SPDX-License-Identifier: Apache-2.0
// Answers unwinders that ask the dynamic linker whose code an address is in. Called by the helper thread, and by the
// target's threads in place of the dynamic linker's own functions.
#ifndef NFPROBE_FINDER_H
#define NFPROBE_FINDER_H
#include <link.h>
#include <stdint.h>

// The code that one ELF object of codemap.py describes.
struct nfp_findable {
	struct nfp_findable *next;
	uint64_t start, end;
	ElfW(Phdr)
	    headers[2]; // the code, and the table of its unwind rows; unwinders remember where these stand
};

// Adds the code of an object. `code` stays in the list for ever.
void nfp_finder_add(struct nfp_findable *code, uint64_t object);
#endif
