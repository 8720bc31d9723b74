// SPDX-License-Identifier: Apache-2.0
// All threads of a target, seized: they run on until they are interrupted.
#ifndef NFPROBE_THREAD_SET_H
#define NFPROBE_THREAD_SET_H
#include "change.h"
#include "ptrace.h"
#include <stdint.h>

#define NFP_THREAD_SET_MAX 8192

struct nfp_thread_set {
	int32_t pid;
	long options; // PTRACE_O_*, at least TRACEEXEC
	struct nfp_seized *items;
	uint32_t count;
};

// All return 0 or more, or -errno.
int nfp_thread_set_make(struct nfp_thread_set *threads, int32_t pid, long options);
struct nfp_seized *nfp_thread_set_find(const struct nfp_thread_set *threads, pid_t tid);
// A place for one more thread, or NULL.
struct nfp_seized *nfp_thread_set_add(struct nfp_thread_set *threads, pid_t tid);
// Seizes threads that are not known. Returns how many.
int nfp_thread_set_seize_new(struct nfp_thread_set *threads);
// Whether there is no thread that is not known: a listing leaves living threads out while others end. 0, too, when one began
// or ended in this moment.
int nfp_thread_set_is_whole(const struct nfp_thread_set *threads);
// Seizes other processes that run in the target's memory: children made by vfork or posix_spawn that have not
// come to their exec. Returns how many.
int nfp_thread_set_seize_sharers(struct nfp_thread_set *threads);
// Whether the target, all of whose threads are seized, still runs in the memory of the descriptor: 0, or -ESTALE.
int nfp_thread_set_check(const struct nfp_thread_set *threads, int memory);
// Whether this process traces it.
int nfp_is_traced_here(pid_t tid);
// 1 the process runs in the target's memory, 0 in its own, -errno unknown.
int nfp_shares_memory(int32_t pid, pid_t other);

// The system call that a thread is blocked in, -1 when it is ready to run or blocked elsewhere.
long nfp_blocked_in(pid_t tid);
// Whether a thread waits for a process that runs in the target's memory, made by it.
int nfp_has_sharer(int32_t pid, pid_t tid);

// Moves a stopped thread's program counter, and those that wait in signal frames on its stack, out of bytes
// that change. Returns how many were moved, or -EBUSY when one has no place to go. Registers must have been read.
int nfp_move_out(struct nfp_seized *thread, int memory, const struct nfp_plan *plan);
#endif
