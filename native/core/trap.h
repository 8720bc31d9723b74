// SPDX-License-Identifier: Apache-2.0
// Whether a breakpoint may stand in a target for a moment, by what it does with SIGTRAP.
#ifndef NFPROBE_TRAP_H
#define NFPROBE_TRAP_H
#include <stdint.h>
#include <sys/types.h>

struct nfp_trap_use {
	pid_t helper; // our helper thread as this process sees it, or 0; it never meets a breakpoint
	int is_caught; // the target has a handler of its own
	const char *refusal; // why not, or NULL
};
// `helper_tid` is the helper thread as the target sees it. Waits a moment for threads that block all signals
// only while they are made.
void nfp_trap_look(int32_t pid, uint32_t helper_tid, struct nfp_trap_use *use);
// Whether the target has a handler for SIGTRAP.
int nfp_trap_is_caught(int32_t pid);
#endif
