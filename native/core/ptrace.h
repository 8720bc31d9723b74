// SPDX-License-Identifier: Apache-2.0
// A seized thread of a target: stop it, look at it, let it go as if nothing had happened. Used by inject.c
// and stop.c, which alone touch a target.
#ifndef NFPROBE_PTRACE_H
#define NFPROBE_PTRACE_H
#include "arch/arch.h"
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

#define NFP_CALL_STOP (SIGTRAP | 0x80) // at a system call, with PTRACE_O_TRACESYSGOOD

struct nfp_seized {
	pid_t tid;
	int stopped;
	int gone;   // it exited, or was killed
	int signal; // taken from it while it was stopped; given back when it goes on
	int foreign; // another process, which runs in the target's memory
	int state; // watch.c's own
	int visited; // it has been seen at a place where it makes no thread
	struct nfp_registers registers; // valid while stopped
};

uint64_t nfp_now_ns(void);

// While a thread of the target stands still, the monitor goes before other work of this machine, as far as
// its rights allow. Not by a real-time class: a target on the same CPU would never get to its stop.
struct nfp_priority {
	int priority;
	int slack_ns;
};
void nfp_priority_boost(struct nfp_priority *before);
void nfp_priority_restore(const struct nfp_priority *before);

// All return 0 or -errno. Called in the patch process only, which has no other use for SIGALRM and ITIMER_REAL.
// -EAGAIN: a thread of the process seems to be in an exec, which waits for the end of those that are traced: let them go,
// and try again.
int nfp_seize(pid_t tid, struct nfp_seized *thread);
// The same with PTRACE_O_* options.
int nfp_seize_with(pid_t tid, long options, struct nfp_seized *thread);
int nfp_interrupt(struct nfp_seized *thread);
// Waits until the thread has stopped for the interrupt and reads its registers. -ETIMEDOUT when it does not.
int nfp_wait_interrupted(struct nfp_seized *thread, uint64_t deadline_ns);
// Waits for any stop. `status` as waitpid gives it. -ESTALE: the thread has started another program, and was let go.
int nfp_wait_stop(struct nfp_seized *thread, uint64_t deadline_ns, int *status);
// The signal that a stop of this status reports, or 0 when it has another reason.
int nfp_signal_of(int status);
// Whether it is one of those that stop a whole process.
int nfp_is_group_stop(int signal);
// Makes the stopped thread execute the syscall instruction that `registers` stand at, with what is in them, and
// leaves it stopped behind it. Returns the system call's result, or -errno; patience_ns is for each step.
int64_t nfp_step_over_call(struct nfp_seized *thread, struct nfp_registers *registers, uint64_t patience_ns);
// A system call that only the stop ended with EINTR is made again, then the thread runs on, untraced.
int nfp_release(struct nfp_seized *thread);
// Whether that may be so. Then the registers of the stopped thread say so to the kernel, which alone knows whether a
// handler of the program runs before the thread goes on: only then the program sees EINTR.
int nfp_restart_interrupted_call(struct nfp_registers *registers);
#endif
