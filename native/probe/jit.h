// SPDX-License-Identifier: Apache-2.0
// Makes the code in arenas known to debuggers and to libunwind. Called by the helper thread only.
#ifndef NFPROBE_JIT_H
#define NFPROBE_JIT_H
#include <stdint.h>

// Adds an ELF object that stands in readable memory for ever. Returns 0 or -errno.
int nfp_jit_register(uint64_t address, uint64_t bytes);
// Renames the library in the loader's list, from the name that it was loaded by to one under which a debugger
// can open it for as long as its file descriptor is open.
void nfp_jit_name_library(void);
#endif
