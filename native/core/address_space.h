// SPDX-License-Identifier: Apache-2.0
// The memory of one program, by a descriptor of /proc/PID/mem that was opened when the program was checked. The kernel
// binds such a descriptor to the memory that the process had then: when the process has started another program
// (exec), reads and writes give nothing, or reach memory that no thread of the process runs in. A process id is the
// other program's by then. So code and data are read and written through this descriptor only.
//
// Registers have no such descriptor. That those of a thread of ours are changed, never of another program's, rests on:
//  - A stopped thread cannot exec. When another thread of its process does, the kernel ends it.
//  - Each thread is seized with PTRACE_O_TRACEEXEC: one that execs while it runs says so at its next stop.
//  - Then it is asked, once and after that, whether it runs in the descriptor's memory: nfp_runs_in.
//  - A thread id can only pass to another thread of ours when the first thread of a process ends and another one execs,
//    which gets the number of the process. Where several are seized the first one has PTRACE_O_TRACEEXIT: until
//    its end was reported and answered the exec waits for it. Where only one is seized, who gets its number is not
//    traced, and the kernel answers ESRCH.
#ifndef NFPROBE_ADDRESS_SPACE_H
#define NFPROBE_ADDRESS_SPACE_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Whether the program has ended, or its process has started another one.
int nfp_memory_is_gone(int memory);
// All bytes or none: return 0 or -errno, -ESTALE when the memory is gone.
int nfp_memory_read(int memory, uint64_t address, void *bytes, size_t count);
int nfp_memory_write(int memory, uint64_t address, const void *bytes, size_t count);

// Whether a thread runs in that memory, or in a copy that a fork has made of it. Each exec puts 16 random bytes into the
// memory of the program that it starts; they are compared, at the address where the thread's own program has them.
int nfp_runs_in(pid_t tid, int memory);
#endif
