// SPDX-License-Identifier: Apache-2.0
// The guard: work on a stopped target is done by a child process of its own session, so that a `kill -9` of
// the monitor, at whatever moment, cannot leave a thread of the target with our registers or half of a change.
#ifndef NFPROBE_GUARD_H
#define NFPROBE_GUARD_H
#include <stddef.h>

// Runs work(shared) in a child process and waits for it. `shared` is `bytes` long, is copied there and
// back. Returns what work returned, or -errno when the child could not be made or died.
int nfp_guard(int (*work)(void *shared), void *shared, size_t bytes);
#endif
