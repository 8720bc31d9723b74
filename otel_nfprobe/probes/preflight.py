# SPDX-License-Identifier: Apache-2.0
"""Preflight: can this process be probed? Every refusal, each as one sentence, before anything in the process is
changed.

It only opens /proc/PID/mem for writing, which asks the kernel for permission to trace the process and changes nothing.
"""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.arch.architecture import of_host, of_machine
from otel_nfprobe.arch.code_facts import Call, Need
from otel_nfprobe.base.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.elf.elf import ElfImage, read_image
from otel_nfprobe.elf.modules import MUSL_SYMBOL
from otel_nfprobe.linux.bpf import FilterError, Instruction, SystemCall, run_filter
from otel_nfprobe.linux.descriptors import NO_PIDFD_GETFD, can_take
from otel_nfprobe.probes.inject import candidates
from otel_nfprobe.target.library_file import has_place, no_place
from otel_nfprobe.target.linkmap import LinkMap
from otel_nfprobe.target.target import Target, read_stat, read_status, read_task_status, read_text

# ---- seccomp filters ------------------------------------------------------------------------------------------------
# Seccomp: would the filters of a target let the probe library do its work? Asked before anything is touched.
#
# The filters of each thread are read by ptrace and run on every system call that injection, the helper thread and
# the probes make (the architecture lists them). Reading takes CAP_SYS_ADMIN and no filter on the monitor itself;
# without that the answer is a note.


MODE_STRICT, MODE_FILTER = "1", "2"
INSTRUCTIONS_MAX = 32768  # the kernel's limit for all filters of a thread
FILTERS_MAX = 1024
RSEQ_SYMBOL = "__rseq_size"  # in glibc's ld.so: 0 when the kernel or a filter refused
# A stop ends them with restart_syscall.
SLEEPS = ("poll", "nanosleep", "futex", "restart_syscall", "clock_nanosleep", "ppoll")

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
class FilterDecision:
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


def judge(programs: Sequence[Program], call: SystemCall) -> FilterDecision:
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
        return FilterDecision(ERRNO, errno.ENOSYS)
    if action not in (*DEEDS, ERRNO, LOG, ALLOW):
        return FilterDecision(KILL_PROCESS)
    return FilterDecision(action, min(data, 4095) if action == ERRNO else 0)


def first_forbidden(programs: Sequence[Program], calls: Sequence[Call]) -> tuple[Call, FilterDecision] | None:
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
    target.unfit_threads = set()
    wanted = [thread.tid for thread in candidates(target)]  # before a look at their filters wakes them for a moment
    host = of_host()
    calls = host.injection_calls(musl, _registers_rseq(target))
    known: dict[tuple[Program, ...], tuple[Call, FilterDecision] | None] = {}
    unfit: dict[int, tuple[Call, FilterDecision]] = {}
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
            _refuse(target, first_forbidden(programs, host.probe_calls))
            known[key] = first_forbidden(programs, calls)
            may_sync_cores &= first_forbidden(programs, host.sync_core_calls) is None
            target.may_check_memory &= first_forbidden(programs, host.check_calls) is None
            _note_counters(target, first_forbidden(programs, host.counter_calls))
        forbidden = known[key]
        if forbidden is not None:
            unfit[tid] = forbidden
    target.unfit_threads = set(unfit)
    if wanted and all(tid in unfit for tid in wanted):
        _refuse(target, unfit[wanted[0]])
    target.may_sync_cores = may_sync_cores
    return [f"Process {target.pid} has a seccomp filter; it permits every required system call."]


def _registers_rseq(target: Target) -> bool:
    """Returns whether glibc has registered this program's first thread for restartable sequences."""
    for module in target.modules():
        symbol = module.image.exports.get(RSEQ_SYMBOL) if module.is_dynamic_linker else None
        if symbol is not None:
            return any(target.read(module.base + symbol.address, 4))
    return False


def _note_counters(target: Target, forbidden: tuple[Call, FilterDecision] | None) -> None:
    if forbidden is not None:
        call, verdict = forbidden
        target.counters_forbidden = f"its seccomp filter {verdict.describe()} {call.label}"


def _refuse(target: Target, forbidden: tuple[Call, FilterDecision] | None) -> None:
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
    sleeps = {of_host().system_calls[name] for name in SLEEPS}
    for thread in sorted(target.threads(), key=lambda thread: thread.system_call in sleeps):
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


# ---- the checks -----------------------------------------------------------------------------------------------------


KERNEL_THREAD_FLAG = 0x00200000  # PF_KTHREAD in /proc/PID/stat
SHELLS = (
    "ash",
    "bash",
    "busybox",
    "csh",
    "dash",
    "fish",
    "ksh",
    "ksh93",
    "mksh",
    "rbash",
    "sh",
    "tcsh",
    "zsh",
)
LIBC_NAMES = ("libc.so", "libc-2.", "ld-musl", "libc.musl")
CHILDREN_SHOWN = 3
OWN_TRACER_PATIENCE_S = 10.0
START_LOOKS = 2_500
START_LOOKS_S = 0.002
AT_REST_LOOKS = 125  # a program that sleeps this long without a switch is not loading a library
YAMA_PATH = "/proc/sys/kernel/yama/ptrace_scope"


def check_target(target: Target) -> list[str]:
    """Checks whether the process can be probed. Changes nothing. Returns notes for the user.

    Raises:
        UsageError: it is no longer a process.
        NfprobeError: this user may not.
        RefusedError: it cannot be probed.
    """
    _ = of_machine(platform.machine()).processor  # raises where it is not supported
    status = read_status(target.pid)
    _check_life(target, status)
    try:
        return _check_living(target, status)
    except (NfprobeError, OSError):
        _check_life(target, read_status(target.pid))  # if it has ended in the meantime, nothing else matters
        raise


def _check_living(target: Target, status: dict[str, str]) -> list[str]:
    _check_rights(target)
    _check_tracer(target, status)
    image = _read_executable(target)
    _check_program(target, image)
    _check_shell(target)
    _await_start(target)
    musl = _check_libc(target)
    notes = check_filters(target, musl)
    if not has_place(target):
        raise RefusedError(no_place(target), f"ls -l /proc/{target.pid}/root")
    if not can_take():
        raise NfprobeError(NO_PIDFD_GETFD, "nfprobe doctor")
    return notes + describe_unreadable(target)


def _check_life(target: Target, status: dict[str, str]) -> None:
    if not status:
        raise UsageError(f"No process has pid {target.pid}.", "pgrep -a NAME")
    state = status.get("State", "")[:1]
    if state in ("Z", "X"):
        parent = status.get("PPid", "?")
        raise RefusedError(
            f"Process {target.pid} ({target.name}) has ended; its parent {parent} has not reaped it yet.",
            f"ps -o pid,stat,cmd -p {parent}",
        )
    if int(read_stat(target.pid)[6]) & KERNEL_THREAD_FLAG:
        raise RefusedError(
            f"Process {target.pid} ({target.name}) is a kernel thread; only programs can be probed.",
            "pgrep -a NAME",
        )


def _check_rights(target: Target) -> None:
    try:
        os.close(os.open(f"/proc/{target.pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise UsageError(f"No process has pid {target.pid}.", "pgrep -a NAME") from error
        raise NfprobeError(
            f"This user may not trace process {target.pid} ({target.name}): {_missing_right(target)}.",
            f"sudo nfprobe attach {target.pid}" if os.geteuid() else f"nfprobe doctor {target.pid}",
        ) from error


def _missing_right(target: Target) -> str:
    scope = read_text(YAMA_PATH).strip()
    if scope == "3":
        return f"{YAMA_PATH} is 3, which forbids it to everyone until a reboot"
    if not os.geteuid():
        return "root without CAP_SYS_PTRACE and CAP_DAC_OVERRIDE in its user namespace"
    owner = read_status(target.pid).get("Uid", "?").split()[0]
    if owner != str(os.geteuid()):
        return f"it belongs to user {owner}; that requires root, or CAP_SYS_PTRACE and CAP_DAC_OVERRIDE"
    if scope in ("1", "2"):
        return f"{YAMA_PATH} is {scope}, so that requires root or CAP_SYS_PTRACE"
    return (
        "it is not dumpable (for example, it has changed its user);"
        " that requires root, or CAP_SYS_PTRACE and CAP_DAC_OVERRIDE"
    )


def _find_tracer(target: Target, status: dict[str, str]) -> str:
    """Returns the name of the tracer; waits for another nfprobe, which traces only briefly."""
    tracer = status.get("TracerPid", "0")
    deadline = time.monotonic() + OWN_TRACER_PATIENCE_S
    while tracer != "0" and "nfprobe" in read_text(f"/proc/{tracer}/cmdline") and time.monotonic() < deadline:
        time.sleep(0.01)
        tracer = read_status(target.pid).get("TracerPid", "0")
    return tracer


def _check_tracer(target: Target, status: dict[str, str]) -> None:
    tracer = _find_tracer(target, status)
    if tracer != "0":
        name = read_text(f"/proc/{tracer}/comm").strip() or "?"
        raise RefusedError(
            f"Process {target.pid} ({target.name}) is being traced by {name} (pid {tracer}); "
            "a process can have only one tracer.",
            f"ps -o pid,cmd -p {tracer}",
        )


def _read_executable(target: Target) -> ElfImage:
    path = f"/proc/{target.pid}/exe"
    try:
        with open(path, "rb") as file:
            return read_image(file, target.executable)
    except OSError as error:
        raise NfprobeError(
            f"The program of process {target.pid} cannot be read: {error.strerror}.",
            f"sudo nfprobe doctor {target.pid}",
        ) from error
    except RefusedError as refusal:
        raise RefusedError(
            f"Process {target.pid} ({target.name}) cannot be probed: {refusal.sentence}",
            refusal.next_command or f"file {target.executable}",
        ) from refusal


def _check_program(target: Target, image: ElfImage) -> None:
    who = f"Process {target.pid} ({target.name})"
    if image.is_go:
        raise RefusedError(
            f"{who} is a Go program; Go moves stacks and checks return addresses: probes would break it.",
            f"perf top -p {target.pid}",
        )
    is_linker = image.soname.startswith("ld-linux") or image.find_export(MUSL_SYMBOL) is not None  # ld.so PROGRAM
    if not (image.has_interpreter or is_linker):
        raise RefusedError(
            f"{who} is statically linked; a library cannot be loaded into it.",
            f"nfprobe functions {target.executable}",
        )


def _check_shell(target: Target) -> None:
    shell = os.path.basename(target.executable.removesuffix(" (deleted)"))
    arguments = target.command_line[1:]
    script = _script_of(arguments)
    if shell not in SHELLS or script is None:
        return
    children = _descendants(target.pid)
    shown = ", ".join(f"{pid} ({name})" for pid, name in children[:CHILDREN_SHOWN])
    programs = [pid for pid, name in children if name not in SHELLS]
    raise RefusedError(
        f"Process {target.pid} is {shell}, which runs {script}; "
        + (f"it has started {shown}." if children else "it has no child process."),
        f"nfprobe attach {programs[0]}" if programs else f"ps --ppid {target.pid}",
    )


def _script_of(arguments: list[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith("-") and not argument.startswith("--") and argument.endswith("c"):
            text = " ".join(arguments[index + 1 : index + 2])
            return f"the command {text[:60]!r}"
        if not argument.startswith(("-", "+")):
            return f"the script {argument}"
    return None


def _descendants(pid: int) -> list[tuple[int, str]]:
    """Returns descendants of `pid`, nearest first, without optional kernel features."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            status = read_status(int(entry))
            if status.get("PPid", "").isdigit():
                children.setdefault(int(status["PPid"]), []).append((int(entry), status.get("Name", "?")))
    found: list[tuple[int, str]] = []
    level = children.get(pid, [])
    while level:
        found += level
        level = [child for parent, _ in level for child in children.get(parent, [])]
    return found


def describe_unreadable(target: Target) -> list[str]:
    """Returns which modules of a target are not probed because of their files, one sentence each."""
    return [
        f"Functions of {path} are not probed: {sentence}"
        for path, sentence in target.unreadable.items()
        if "libnfprobe-" not in path
    ]


def _await_start(target: Target) -> None:
    """Waits until the target's libraries are loaded. Earlier, missing libraries would not be probed, and a C library
    that is mapped but not yet relocated would crash the target at the first call. Later, this waits for dlopen as well.
    """
    before = None
    at_rest = 0
    for _ in range(START_LOOKS):
        has_libc = _has_libc(target)
        if at_rest > AT_REST_LOOKS or not target.is_alive() or (has_libc and _has_loaded(target)):
            return
        progress = _read_progress(target.pid)
        at_rest = at_rest + 1 if progress == before and progress.is_asleep and not has_libc else 0
        before = progress
        time.sleep(START_LOOKS_S)


class _Progress(NamedTuple):
    is_asleep: bool
    switches: tuple[str, str]


def _read_progress(pid: int) -> _Progress:
    # Of the first thread, which loads the libraries; a disk read is not an interruptible sleep (D).
    status = read_status(pid)
    switches = status.get("voluntary_ctxt_switches", ""), status.get("nonvoluntary_ctxt_switches", "")
    return _Progress(status.get("State", "").startswith(("S", "T")), switches)


# Checked once the C library is present: before it loads anything, glibc's linker is briefly idle as well.
def _has_loaded(target: Target) -> bool:
    try:
        return LinkMap(target).has_started()
    except NfprobeError:
        return False


def _has_libc(target: Target) -> bool:
    names = [os.path.basename(mapping.path) for mapping in target.maps() if mapping.is_executable]
    return any(name.startswith(LIBC_NAMES) for name in names)


def _check_libc(target: Target) -> bool:
    """Returns whether it is musl."""
    if not _has_libc(target):
        raise RefusedError(
            f"Process {target.pid} ({target.name}) has loaded no C library (neither glibc nor musl).",
            f"nfprobe functions {target.executable}",
        )
    return target.runs_on_musl
