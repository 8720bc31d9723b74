// SPDX-License-Identifier: Apache-2.0
// Launch: start a program and hold it before its first instruction, so that probes can be put in first.
//
//   nfp_launch_start     fork, exec; the program stands at its exec, traced by the calling thread
//   nfp_launch_to_entry  the dynamic linker runs; the program stands at its entry point, still traced
//   nfp_launch_hold      its main thread waits with all signals blocked, traced by nobody, the
//                        program's code as it was: whoever attaches finds a thread blocked in a harmless call
//   nfp_launch_release   the main thread stands at the entry point again and runs
//
// Until it is released the program is killed when the calling thread ends, by whatever cause: it never ran.
#ifndef NFPROBE_LAUNCH_H
#define NFPROBE_LAUNCH_H
#include <stdint.h>

// cdef begin
struct nfp_launch {
	const char *path; // of the program or script
	char *const *arguments; // argv, ending with NULL
	char *const *environment; // ending with NULL
	uint64_t entry; // set before nfp_launch_to_entry: AT_ENTRY
	int32_t
	    memory_fd; // set before nfp_launch_release: of /proc/PID/mem, opened at the entry point (address_space.h)
	uint64_t syscall_address; // set before nfp_launch_hold: of an instruction that makes a system call
	// Answers.
	int32_t pid;
	int32_t ended; // 1: it has ended and was collected; then status is as waitpid gives it
	int32_t status;
	uint64_t signal_mask; // of the main thread at the entry point
	uint8_t registers[320]; // struct nfp_registers, there
};
// All return 0 or -errno. -ECHILD: the program has ended (`ended` is set where it was collected here).
// -errno of execve when there is no such program; then nothing is left to collect.
int nfp_launch_start(struct nfp_launch *launch);
// -EAGAIN: the program has replaced itself before it came there, and stands at that exec.
int nfp_launch_to_entry(struct nfp_launch *launch);
int nfp_launch_hold(struct nfp_launch *launch);
int nfp_launch_release(struct nfp_launch *launch);
// cdef end
#endif
