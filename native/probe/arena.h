// SPDX-License-Identifier: Apache-2.0
// Arenas: memory for trampolines near the code that jumps to them, and their unwind rows.
#ifndef NFPROBE_ARENA_H
#define NFPROBE_ARENA_H
#include <stdint.h>

// Maps a part of the session's trampoline region at an address that must be free. Returns 0 or -errno.
int nfp_arena_map(uint64_t address, uint64_t offset, uint64_t bytes);
// As above for an arena that is a file.
int nfp_arena_map_file(const char *path, uint64_t address, uint64_t bytes);
// Tells the target's unwinder of rows for trampolines. Returns 0 or -errno.
int nfp_frames_register(void *rows);
#endif
