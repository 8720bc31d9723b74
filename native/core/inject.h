// SPDX-License-Identifier: Apache-2.0
// Inject: start the helper thread in a target through one of its own threads, which is stopped once at a
// place where it holds no lock of libc: blocked in a harmless system call, or entering one.
#ifndef NFPROBE_INJECT_H
#define NFPROBE_INJECT_H
#include "abi/boot.h"

// cdef begin
struct nfp_inject {
	int32_t pid;
	int32_t memory_fd; // of /proc/PID/mem, opened when the target was checked (address_space.h)
	const int32_t *tids; // of threads that may be chosen, the best first
	uint32_t tid_count;
	uint64_t syscall_address; // of an instruction of the target's libc that makes a system call
	const uint8_t *bootstrap; // bootstrap.bin
	uint32_t bootstrap_bytes;
	uint64_t patience_ns; // for one of them to come to a safe place
	// Answers.
	int32_t tid;                // the chosen thread; 0: none came to a safe place
	uint32_t tried;             // so many of `tids` were stopped
	uint64_t code_address;
	uint64_t data_address; // of struct nfp_boot in the target
	uint64_t stopped_ns; // how long the thread was stopped
	int64_t system_call; // number of the system call it was in
	char message[256]; // what went wrong, after a negative result
};
// Returns 0 or -errno; then the target is as it was. -EAGAIN: no thread came to a safe place; they may be
// tried again.
int nfp_inject(struct nfp_inject *inject, struct nfp_boot *boot);
// cdef end
#endif
