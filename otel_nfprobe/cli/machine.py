# SPDX-License-Identifier: Apache-2.0
"""What this machine and this user allow. Asks the kernel and changes nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path
from typing import Any

from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.linux.descriptors import NO_PIDFD_GETFD, can_take

SYS_MEMBARRIER, SYS_MEMFD_CREATE = 324, 319
MEMBARRIER_SYNC_CORE = 1 << 5  # MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE
MFD_CLOEXEC, MFD_EXEC = 1, 0x10
CAPABILITIES = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_NICE": 23,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
# What this user can do only with one of these sets of capabilities (docs/targets.md).
DEEDS = {
    "other users' processes": (("CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"),),
    "replaced files": (("CAP_SYS_ADMIN",), ("CAP_CHECKPOINT_RESTORE",)),
    "seccomp filters": (("CAP_SYS_ADMIN",),),
}
CONSEQUENCES = {
    "other users' processes": "sudo nfprobe ...",
    "replaced files": "functions of a library whose file was replaced or deleted are not probed",
    "seccomp filters": "whether a filter forbids the probe library is not known before it is loaded",
}
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
NOEXEC = "/proc/sys/vm/memfd_noexec"


def describe_machine() -> dict[str, dict[str, str]]:
    """Facts by name, each with `value` and `advice` ("" when there is nothing to do)."""
    machine = platform.machine()
    return {
        "kernel": _fact(f"{platform.system()} {platform.release()} {platform.version()}"),
        "architecture": _fact(machine, "" if machine == "x86_64" else "nfprobe works on x86-64 only"),
        "cpus": _fact(f"{os.cpu_count()} ({_cpu_model()})"),
        "time stamp counter": _tsc(),
        "ptrace scope": _ptrace_scope(),
        "membarrier sync-core": _membarrier(),
        "executable memfd": _memfd(),
        "descriptors of targets": _fact("yes") if can_take() else _fact("no", NO_PIDFD_GETFD),
        "performance counters": _counters(),
        "kernel types (BTF)": _fact("present" if os.path.exists("/sys/kernel/btf/vmlinux") else "absent"),
    }


def describe_user() -> dict[str, dict[str, str]]:
    """As describe_machine, for the user that runs this."""
    effective = _effective_capabilities()
    held = {name for name, bit in CAPABILITIES.items() if effective >> bit & 1}
    facts = {
        "user": _fact(f"uid {os.geteuid()}"),
        "capabilities": _fact(", ".join(name for name in CAPABILITIES if name in held) or "none of those that matter"),
    }
    for deed, ways in DEEDS.items():
        if any(held.issuperset(way) for way in ways):
            facts[deed] = _fact("yes")
        else:
            needs = " or ".join(" and ".join(way) for way in ways)
            facts[deed] = _fact(f"no (needs {needs})", CONSEQUENCES[deed])
    return facts


def _fact(value: str, advice: str = "") -> dict[str, str]:
    return {"value": value, "advice": advice}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _tsc() -> dict[str, str]:
    flags: set[str] = set()
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            break
    sound = {"constant_tsc", "nonstop_tsc"} <= flags
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    advice = "" if sound else "times are wrong where the counter stops or changes its rate"
    return _fact(f"{'constant' if sound else 'not constant'}; clock source {source or 'unknown'}", advice)


def _ptrace_scope() -> dict[str, str]:
    scope = _read(YAMA)
    if not scope:
        return _fact("no restriction (Yama is not in this kernel)")
    words = {
        "0": "own processes",
        "1": "own children only, else CAP_SYS_PTRACE",
        "2": "CAP_SYS_PTRACE only",
        "3": "nobody",
    }
    advice = "attaching is impossible until a reboot" if scope == "3" else ""
    if scope in ("1", "2") and not _effective_capabilities() >> CAPABILITIES["CAP_SYS_PTRACE"] & 1:
        advice = "sudo nfprobe ..."
    return _fact(f"{scope}: {words.get(scope, 'unknown')}", advice)


def _syscall(number: int, *arguments: Any) -> tuple[int, int]:
    """Result and errno of a system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    return result, ctypes.get_errno()


def _membarrier() -> dict[str, str]:
    result, error = _syscall(SYS_MEMBARRIER, ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0))
    if result < 0:
        return _fact(f"no ({os.strerror(error)})", "code is changed in one short stop of all threads")
    if result & MEMBARRIER_SYNC_CORE:
        return _fact("yes")
    return _fact("no", "code is changed in one short stop of all threads")


def _memfd() -> dict[str, str]:
    result, error = _syscall(SYS_MEMFD_CREATE, b"nfprobe-doctor", ctypes.c_uint(MFD_CLOEXEC | MFD_EXEC))
    if result < 0 and error == errno.EINVAL:  # kernels before 6.3 know no MFD_EXEC
        result, error = _syscall(SYS_MEMFD_CREATE, b"nfprobe-doctor", ctypes.c_uint(MFD_CLOEXEC))
    if result < 0:
        return _fact(f"refused ({os.strerror(error)})", f"sysctl vm.memfd_noexec=0 (it is {_read(NOEXEC) or 'absent'})")
    os.close(result)
    return _fact("yes")


def _counters() -> dict[str, str]:
    """Tries to count on this thread, as is done for the target's."""
    refusal = find_refusal(choose_counters("cycles"))
    if refusal is None:
        return _fact(f"yes (perf_event_paranoid {_read(PARANOID)})")
    return _fact(f"none: {refusal.reason}", "" if refusal.advice == "nfprobe doctor" else refusal.advice)


def _effective_capabilities() -> int:
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
