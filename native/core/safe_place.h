// SPDX-License-Identifier: Apache-2.0
// A thread of a target that stands where it holds no lock of libc: blocked in a harmless system call, or entering
// one. Several are followed at once; the first that comes to such a place is kept, the others run on as they were.
#ifndef NFPROBE_SAFE_PLACE_H
#define NFPROBE_SAFE_PLACE_H
#include "ptrace.h"

#define NFP_FOLLOWED_MAX 64

struct nfp_safe_place {
	int32_t pid;
	const int32_t *tids; // the best first; of more than NFP_FOLLOWED_MAX the first ones
	uint32_t count;
	// Answers.
	uint32_t tried; // so many of them were stopped
	int at_entry; // stopped at the entry of a system call, not inside one
	uint64_t since_ns; // when it stopped there
	struct nfp_seized thread;
};

// Returns 0 with the thread stopped and its registers read, or -errno with none stopped: -EAGAIN when none came to a
// safe place within patience_ns, -ESTALE when one of them has started another program, or else why the last of them
// could not be traced.
int nfp_safe_place_find(struct nfp_safe_place *place, uint64_t patience_ns);
#endif
