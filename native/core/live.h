// SPDX-License-Identifier: Apache-2.0
// Change code of a target while its threads run: for sites where exactly one instruction is displaced. With
// two, a thread may be preempted between them and go on in the middle of the jump.
#ifndef NFPROBE_LIVE_H
#define NFPROBE_LIVE_H
#include "change.h"
#include "abi/session.h"
#include <stdint.h>

// cdef begin
struct nfp_live {
	int32_t pid;
	int32_t memory_fd; // of /proc/PID/mem, opened when the target was checked (address_space.h)
	uint32_t
	    restores; // 1: the probes are taken away: islands are put back after the last thread left them
	uint64_t patience_ns; // for the helper thread's answers
	uint32_t threads; // out: seized
	uint32_t traps; // out: how often a thread met a breakpoint and was sent on to the trampoline
	uint32_t moved; // out: program counters moved off islands
	uint32_t children; // out: processes made meanwhile, which got whole code
	uint32_t changed; // out: changes made
	uint32_t stops; // out: 1 when the helper thread did not answer and all threads were stopped after all
	uint64_t stopped_ns; // out: how long
	uint64_t took_ns; // out: all
	char message[256]; // out: after a negative result
};
// Makes the changes whose expected bytes are found. Needs a helper thread that serves the session and has
// registered for membarrier (NFP_SYNC_REGISTER). Returns 0, -EOPNOTSUPP when this target cannot be changed so
// now (nothing was changed, `message` says why), or -errno: each change says what became of it.
int nfp_change_live(struct nfp_live *live, struct nfp_session_header *header, struct nfp_change *changes,
                    uint32_t count);
// cdef end
#endif
