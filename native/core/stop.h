// SPDX-License-Identifier: Apache-2.0
// Change code or data bytes of a target while all its threads stand still, once and briefly.
#ifndef NFPROBE_STOP_H
#define NFPROBE_STOP_H
#include "change.h"
#include <stdint.h>

// cdef begin
struct nfp_stop {
	int32_t pid;
	int32_t memory_fd; // of /proc/PID/mem, opened when the target was checked (address_space.h)
	uint32_t threads; // out: stopped
	uint32_t moved; // out: program counters moved
	uint32_t changed; // out: changes made
	uint64_t stopped_ns; // out: from the first interrupt until the last thread ran again
	char message[256]; // out: after a negative result
};
// Makes all changes whose expected bytes are found, or none: a mismatch is marked and the rest is made.
// Returns 0 or -errno; on an error nothing was changed. -ESTALE: the process has started another program.
int nfp_stop_and_change(struct nfp_stop *stop, struct nfp_change *changes, uint32_t count,
                        const struct nfp_move *moves, uint64_t patience_ns);
// Writes bytes without stopping anyone: for data such as a GOT slot, one aligned store of eight bytes.
// Returns 0, -errno, or -EILSEQ if the current bytes are not `expected`.
int nfp_change_word(int32_t memory_fd, uint64_t address, uint64_t expected, uint64_t replacement);
// cdef end
#endif
