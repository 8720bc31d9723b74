# SPDX-License-Identifier: Apache-2.0
"""Seccomp: would the filters of a target permit the probe library's system calls? Checked before anything is changed.

The filters of each thread are read by ptrace and run on every system call that injection, the helper thread and the
probes make (listed in calls.py). Reading requires CAP_SYS_ADMIN and no filter on the monitor itself; without that the
result is a note.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.arch.x86_64.calls import (
    CHECK_CALLS,
    COUNTER_CALLS,
    PROBE_CALLS,
    SYNC_CORE_CALLS,
    Call,
    Need,
    injection_calls,
)
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.linux.bpf import FilterError, Instruction, SystemCall, run_filter
from otel_nfprobe.probes.inject import candidates
from otel_nfprobe.target.target import Target, read_task_status

MODE_STRICT, MODE_FILTER = "1", "2"
INSTRUCTIONS_MAX = 32768  # the kernel's limit for all filters of a thread
FILTERS_MAX = 1024
RSEQ_SYMBOL = "__rseq_size"  # in glibc's ld.so: 0 when the kernel or a filter refused
SLEEPS = (7, 35, 202, 219, 230, 271)  # poll, nanosleep, futex, ...: a stop ends them with restart_syscall

ACTION_MASK = 0xFFFF0000
KILL_PROCESS, KILL_THREAD, TRAP, ERRNO = 0x80000000, 0x00000000, 0x00030000, 0x00050000
ASK_USER, TRACE, LOG, ALLOW = 0x7FC00000, 0x7FF00000, 0x7FFC0000, 0x7FFF0000
DEEDS = {
    KILL_PROCESS: "kills it for",
    KILL_THREAD: "kills a thread for",
    TRAP: "sends it SIGSYS for",
    ASK_USER: "lets another process decide about",
}

Program = tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class FilterVerdict:
    """The result of a thread's filters for one system call.

    Attributes:
        action: the strongest of their actions.
        error: errno returned to the caller, for ERRNO.
    """

    action: int
    error: int = 0

    @property
    def is_allowed(self) -> bool:
        """Whether the call is made."""
        return self.action in (ALLOW, LOG)

    def forbids(self, call: Call) -> bool:
        """Returns whether this prevents the probe library from working."""
        if self.is_allowed:
            return False
        if self.action == ASK_USER:
            return call.need != Need.OPTIONAL
        if self.action != ERRNO:
            return True
        return call.need == Need.ESSENTIAL or (call.need == Need.OR_ENOSYS and self.error != errno.ENOSYS)

    def describe(self) -> str:
        """Returns what the filter does, to be followed by the call's name."""
        if self.action == ERRNO:
            return f"answers {errno.errorcode.get(self.error, f'error {self.error}')} to"
        return DEEDS.get(self.action, "forbids")


def judge(programs: Sequence[Program], call: SystemCall) -> FilterVerdict:
    """Combines all filters of a thread for a system call: the kernel applies the strongest action.

    A malformed program counts as one that kills.
    """
    strongest = ALLOW
    for program in programs:
        try:
            word = run_filter(program, call)
        except FilterError:
            word = KILL_PROCESS
        if _strength(word) < _strength(strongest):
            strongest = word
    action, data = strongest & ACTION_MASK, strongest & 0xFFFF
    if action == TRACE:  # no tracer handles it: the kernel returns ENOSYS
        return FilterVerdict(ERRNO, errno.ENOSYS)
    if action not in (*DEEDS, ERRNO, LOG, ALLOW):
        return FilterVerdict(KILL_PROCESS)
    return FilterVerdict(action, min(data, 4095) if action == ERRNO else 0)


def first_forbidden(programs: Sequence[Program], calls: Sequence[Call]) -> tuple[Call, FilterVerdict] | None:
    """Returns the first of the calls that the filters forbid, or None."""
    for call in calls:
        verdict = judge(programs, SystemCall(call.number, call.arguments))
        if verdict.forbids(call):
            return call, verdict
    return None


def read_filters(tid: int) -> list[Program] | None:
    """Returns the seccomp filters of a thread, the oldest first; None if this user may not read them.

    Raises:
        ProcessLookupError: the thread has ended.
    """
    room = ffi.new("struct nfp_instruction[]", INSTRUCTIONS_MAX)
    lengths = ffi.new("uint32_t[]", FILTERS_MAX)
    count = lib.nfp_read_filters(tid, room, INSTRUCTIONS_MAX, lengths, FILTERS_MAX)
    if count in (-errno.ESRCH, -errno.EPERM):  # EPERM: it is exiting; this user's permission was checked before
        raise ProcessLookupError(tid)
    if count < 0:
        return None
    found: list[Program] = []
    start = 0
    for length in lengths[0:count]:
        found.append(
            tuple(
                Instruction(int(item.code), int(item.jump_true), int(item.jump_false), int(item.value))
                for item in room[start : start + length]
            )
        )
        start += length
    return found


def check_filters(target: Target, musl: bool) -> list[str]:
    """Checks whether the target's filters let the probe library work. Returns notes for the user.

    Threads through which it cannot be loaded are added to `target.unfit_threads`.

    Raises:
        RefusedError: they do not; the sentence names the system call.
    """
    filtered = _filtered_threads(target)
    if not filtered:
        return []
    calls = injection_calls(musl, _registers_rseq(target))
    known: dict[tuple[Program, ...], tuple[Call, FilterVerdict] | None] = {}
    unfit: dict[int, tuple[Call, FilterVerdict]] = {}
    may_sync_cores = True
    for tid in filtered:
        try:
            programs = read_filters(tid)
        except ProcessLookupError:
            continue
        if programs is None:
            target.may_check_memory = False
            target.counters_forbidden = "its seccomp filter cannot be read by this user and may forbid what they need"
            return [
                f"Process {target.pid} has a seccomp filter that this user cannot read (that requires CAP_SYS_ADMIN "
                "and no filter on nfprobe itself); if it forbids a required call, the library does not load."
            ]
        key = tuple(programs)
        if key not in known:
            _refuse(target, first_forbidden(programs, PROBE_CALLS))
            known[key] = first_forbidden(programs, calls)
            may_sync_cores &= first_forbidden(programs, SYNC_CORE_CALLS) is None
            target.may_check_memory &= first_forbidden(programs, CHECK_CALLS) is None
            _note_counters(target, first_forbidden(programs, COUNTER_CALLS))
        forbidden = known[key]
        if forbidden is not None:
            unfit[tid] = forbidden
    _refuse_without_fit_thread(target, unfit)
    target.may_sync_cores = may_sync_cores
    return [f"Process {target.pid} has a seccomp filter; it permits every required system call."]


def _refuse_without_fit_thread(target: Target, unfit: dict[int, tuple[Call, FilterVerdict]]) -> None:
    target.unfit_threads = set()
    wanted = [thread.tid for thread in candidates(target)]
    target.unfit_threads = set(unfit)
    if wanted and all(tid in unfit for tid in wanted):
        _refuse(target, unfit[wanted[0]])


def _registers_rseq(target: Target) -> bool:
    """Returns whether glibc has registered this program's first thread for restartable sequences."""
    for module in target.modules():
        symbol = module.image.exports.get(RSEQ_SYMBOL) if module.is_dynamic_linker else None
        if symbol is not None:
            return any(target.read(module.base + symbol.address, 4))
    return False


def _note_counters(target: Target, forbidden: tuple[Call, FilterVerdict] | None) -> None:
    if forbidden is not None:
        call, verdict = forbidden
        target.counters_forbidden = f"its seccomp filter {verdict.describe()} {call.label}"


def _refuse(target: Target, forbidden: tuple[Call, FilterVerdict] | None) -> None:
    if forbidden is not None:
        call, verdict = forbidden
        raise RefusedError(
            f"Process {target.pid} ({target.name}) has a seccomp filter that {verdict.describe()} {call.label}, "
            "which the probe library needs.",
            f"grep Seccomp /proc/{target.pid}/status",
        )


def _filtered_threads(target: Target) -> list[int]:
    found = []
    # A filter that kills for restart_syscall must be found before a thread is stopped in its sleep.
    for thread in sorted(target.threads(), key=lambda thread: thread.system_call in SLEEPS):
        mode = read_task_status(target.pid, thread.tid).get("Seccomp", "0")
        if mode == MODE_STRICT:
            raise RefusedError(
                f"Process {target.pid} ({target.name}) is in strict seccomp mode; "
                "the kernel kills it at the first system call that loading a library needs.",
                f"grep Seccomp /proc/{target.pid}/status",
            )
        if mode == MODE_FILTER and thread.state not in "ZX":
            found.append(thread.tid)
    return found


def _strength(word: int) -> int:
    """Returns the strength of an action as compared by the kernel: as signed numbers, the smallest is the strongest."""
    action = word & ACTION_MASK
    return action - (1 << 32) if action & 0x80000000 else action
