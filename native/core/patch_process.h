// SPDX-License-Identifier: Apache-2.0
// The patch process: work on a stopped target is done by a process of its own, so that a `kill -9` of the monitor, at
// whatever moment, cannot leave a thread of the target with our registers or half of a change.
#ifndef NFPROBE_PATCH_PROCESS_H
#define NFPROBE_PATCH_PROCESS_H
#include <stddef.h>
#include <stdint.h>

// Runs work(shared) in a child process and waits for it. Returns what work returned, or -errno when the child
// could not be made or died. The child shares the monitor's memory (a copy of a large monitor takes longer than the
// work, and meanwhile the drain stands still), therefore it must not call what may wait for a lock that a killed
// monitor held: nothing that allocates, no streams. Memory it has from nfp_patch_process_memory.
int nfp_patch_process(int (*work)(void *shared), void *shared);
// Inside the work: so many bytes of zeros, valid until it returns, or NULL when the room is used up.
void *nfp_patch_process_memory(size_t bytes);
// Inside the work: calls visit(context, number) for each entry of a directory whose name is a number, until it
// returns a negative one. Returns that, 0, or -errno.
int nfp_each_number(const char *directory, int (*visit)(void *context, int32_t number), void *context);
#endif
