# SPDX-License-Identifier: Apache-2.0
"""Calls: system calls made in a target by injection, the helper thread and the probes (x86-64).

Each is listed with the arguments that seccomp filters examine; addresses and descriptors are made up. A call added to
native/core/inject.c or native/probe must be added here: tests/integration/test_seccomp_filters.py runs a whole session
under a filter that kills for every other call.
"""

from __future__ import annotations

from otel_nfprobe.arch.code_facts import Call, Need

ADDRESS = 0x7F0000000000
DESCRIPTOR = 9
NOWHERE = 0xFFFFFFFFFFFFFFFF  # descriptor -1
HERE = 0xFFFFFFFFFFFFFF9C  # AT_FDCWD
NONE, R, RW, RX = 0, 1, 3, 5
SHARED, PRIVATE, FIXED, ANONYMOUS, DENYWRITE = 1, 2, 0x10, 0x20, 0x800
NORESERVE, STACK, NOREPLACE = 0x4000, 0x20000, 0x100000
FILE_OFFSET = 1 << 28
OPTIONAL, OR_ENOSYS = Need.OPTIONAL, Need.OR_ENOSYS

# Only made where filters permit all of them: otherwise code is changed in a stop of all threads (patch.py).
SYNC_CORE_CALLS = (
    Call("membarrier", 324, (64, 0, 0)),  # REGISTER_PRIVATE_EXPEDITED_SYNC_CORE
    Call("membarrier", 324, (32, 0, 0)),  # PRIVATE_EXPEDITED_SYNC_CORE
    Call("rt_sigaction", 13, (5, 0, ADDRESS, 8)),  # SIGTRAP
    Call("rt_sigaction", 13, (5, ADDRESS, 0, 8)),
)
# By threads of the target in probes on functions described by the user: descriptions are not checked where filters do
# not permit it.
CHECK_CALLS = (Call("process_vm_readv", 310, (1, ADDRESS, 1, ADDRESS, 1, 0)),)
# By the helper thread, for the counters of the other threads: without these calls there are none.
COUNTER_CALLS = (
    Call("socketpair", 53, (1, 0x80805, 0, ADDRESS)),
    Call("recvmsg", 47, (DESCRIPTOR, ADDRESS, 0x40000000)),
    Call("mmap", 9, (0, 4096, R, SHARED, DESCRIPTOR, 0)),
    Call("mmap", 9, (ADDRESS, 4096, R, PRIVATE | ANONYMOUS | FIXED, NOWHERE, 0)),
    Call("munmap", 11, (ADDRESS, 4096)),
    Call("fcntl(F_DUPFD_CLOEXEC)", 72, (DESCRIPTOR, 1030, 0)),
    Call("ioctl", 16, (DESCRIPTOR, 0x2401, 1)),
    Call("close", 3, (DESCRIPTOR,)),
)
# By a thread of the target in a probe: its first record, and a ring that looks full; and by the kernel, for a thread
# that was stopped in a sleep.
PROBE_CALLS = (
    Call("restart_syscall", 219),
    Call("mmap", 9, (0, 1 << 24, RW, SHARED, DESCRIPTOR, FILE_OFFSET)),
    Call("gettid", 186),
    Call("getpid", 39),
)

# By the stopped thread, and by the C library's pthread_create there.
_START = (
    Call("mmap", 9, (0, 73728, RW, PRIVATE | ANONYMOUS, NOWHERE, 0)),
    Call("mprotect with PROT_EXEC", 10, (ADDRESS, 8192, RX)),
    Call("munmap", 11, (ADDRESS, 73728)),
    Call("mmap", 9, (0, 266240, NONE, PRIVATE | ANONYMOUS | STACK, NOWHERE, 0)),
    Call("mprotect", 10, (ADDRESS, 262144, RW)),
    Call("rt_sigprocmask", 14, (0, ADDRESS, ADDRESS, 8)),
    Call("rt_sigaction", 13, (33, ADDRESS, 0, 8), OPTIONAL),
)
_CLONE_GLIBC = (
    Call("clone3", 435, (ADDRESS, 88), OR_ENOSYS),
    Call("clone", 56, (0x3D0F00, ADDRESS, ADDRESS, ADDRESS, ADDRESS)),
)
_RSEQ = Call("rseq", 334, (ADDRESS, 32, 0, 0x53053053))
_CLONE_MUSL = (Call("clone", 56, (0x7D0F00, ADDRESS, ADDRESS, ADDRESS, ADDRESS)),)

# By the C library: a thread's start and end, malloc, dlopen.
_LIBRARY = (
    Call("set_robust_list", 273, (ADDRESS, 24), OPTIONAL),
    Call("set_tid_address", 218, (ADDRESS,), OPTIONAL),
    Call("brk", 12, (0,), OPTIONAL),
    Call("getrandom", 318, (ADDRESS, 8, 1), OPTIONAL),
    Call("mmap", 9, (0, 1 << 27, NONE, PRIVATE | ANONYMOUS | NORESERVE, NOWHERE, 0)),
    Call("sched_getaffinity", 204, (0, 128, ADDRESS), OPTIONAL),
    Call("read", 0, (DESCRIPTOR, ADDRESS, 832)),
    Call("pread64", 17, (DESCRIPTOR, ADDRESS, 832, 64), OPTIONAL),
    Call("lseek", 8, (DESCRIPTOR, 0, 0), OPTIONAL),
    Call("mmap", 9, (0, 36864, R, PRIVATE | DENYWRITE, DESCRIPTOR, 0)),
    Call("mmap with PROT_EXEC", 9, (ADDRESS, 12288, RX, PRIVATE | FIXED | DENYWRITE, DESCRIPTOR, 8192)),
    Call("mmap", 9, (ADDRESS, 8192, RW, PRIVATE | FIXED | DENYWRITE, DESCRIPTOR, 16384)),
    Call("mmap", 9, (ADDRESS, 8192, RW, PRIVATE | FIXED | ANONYMOUS, NOWHERE, 0)),
    Call("mprotect", 10, (ADDRESS, 4096, R)),
    Call("close", 3, (DESCRIPTOR,)),
    Call("membarrier", 324, (8, 0, 0), OPTIONAL),  # by musl, when it loads thread-local storage
    Call("madvise", 28, (ADDRESS, 262144, 4), OPTIONAL),  # MADV_DONTNEED of the stack
    Call("exit", 60, (0,)),
)
_FILES_GLIBC = (
    Call("openat", 257, (HERE, ADDRESS, 0x80000)),
    Call("newfstatat", 262, (DESCRIPTOR, ADDRESS, ADDRESS, 0x1000)),
)
_FILES_MUSL = (
    Call("open", 2, (ADDRESS, 0x88000)),
    Call("fstat", 5, (DESCRIPTOR, ADDRESS)),
)

# By the bootstrap and the helper thread.
_HELPER = (
    Call("readlink", 89, (ADDRESS, ADDRESS, 63), OPTIONAL),
    Call("memfd_create", 319, (ADDRESS, 3)),
    Call("nanosleep", 35, (ADDRESS, 0)),
    Call("clock_nanosleep", 230, (0, 0, ADDRESS, 0)),
    Call("sched_setscheduler", 144, (0, 0, ADDRESS), OPTIONAL),
    Call("sched_setaffinity", 203, (0, 128, ADDRESS), OPTIONAL),
    Call("prctl(PR_SET_NAME)", 157, (15, ADDRESS)),
    Call("fchmod", 91, (DESCRIPTOR, 0o600)),
    Call("ftruncate", 77, (DESCRIPTOR, 1 << 34)),
    Call("fcntl(F_ADD_SEALS)", 72, (DESCRIPTOR, 1033, 7)),
    Call("fcntl(F_GET_SEALS)", 72, (DESCRIPTOR, 1034)),
    Call("fcntl(F_OFD_GETLK)", 72, (DESCRIPTOR, 36, ADDRESS)),
    Call("mmap", 9, (0, 1 << 24, RW, SHARED, DESCRIPTOR, 0)),
    Call("mmap with PROT_EXEC", 9, (ADDRESS, 1 << 20, RX, SHARED | NOREPLACE, DESCRIPTOR, 1 << 24)),
    Call("madvise(MADV_WIPEONFORK)", 28, (ADDRESS, 1 << 17, 18)),
    Call("madvise(MADV_POPULATE_WRITE)", 28, (ADDRESS, 1 << 24, 23), OPTIONAL),
    Call("futex(FUTEX_WAIT)", 202, (ADDRESS, 0, 1, ADDRESS)),
    Call("futex(FUTEX_WAKE)", 202, (ADDRESS, 1, 1)),
)


def injection_calls(musl: bool, registers_rseq: bool) -> tuple[Call, ...]:
    """Returns the calls of the thread that creates the helper thread, and of the helper thread, which inherits its
    filters.

    Args:
        registers_rseq: the program's threads have registered for restartable sequences. glibc ends the whole program
            when that fails for a new thread, and does not try if it failed for the first one.
    """
    by_library = _CLONE_MUSL + _FILES_MUSL if musl else _CLONE_GLIBC + _FILES_GLIBC
    sequences = (_RSEQ,) if registers_rseq else ()
    return (*PROBE_CALLS, *_START, *by_library, *sequences, *_LIBRARY, *_HELPER)
