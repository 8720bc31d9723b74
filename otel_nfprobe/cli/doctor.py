# SPDX-License-Identifier: Apache-2.0
"""`nfprobe doctor [PID]`: reports what this machine, user and target allow, with advice for the rest."""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import platform
from itertools import islice
from typing import Any

from otel_nfprobe.adapters.base import Adapter
from otel_nfprobe.adapters.installed import adapter_names, choose_adapter
from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.printable import printable_value
from otel_nfprobe.base.processors import HOST, NAMES
from otel_nfprobe.causes.cpu_watch import CpuWatch
from otel_nfprobe.causes.firmware import FirmwareWatch
from otel_nfprobe.cli.main import EXIT_DONE, print_json
from otel_nfprobe.cli.process_argument import parse_process
from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.linux.descriptors import NO_PIDFD_GETFD, can_take
from otel_nfprobe.linux.kallsyms import read_symbols
from otel_nfprobe.linux.namespaces import foreign_namespaces, root_directory
from otel_nfprobe.linux.tracepoints import read_tracepoint
from otel_nfprobe.probes.inject import safe_calls
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import nothing_to_probe
from otel_nfprobe.target.library_file import sees_proc
from otel_nfprobe.target.target import Target, Thread, read_status, read_text


class DoctorCommand:
    """Reports what this machine, this user and, with a PID, this target allow. Changes nothing.

    The exit status is that of the first problem that would stop `nfprobe attach PID` with the same --adapter, or 0: it
    is 2 if no adapter knows the process.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "pid", type=parse_process, nargs="?", metavar="PID", help="the process to check, or its name"
        )
        parser.add_argument(
            "--adapter", default="auto", metavar="NAME", help="as for attach: auto, none, a name, or a YAML file"
        )
        parser.add_argument(
            "--fix-hints", action="store_true", help="also print the commands and settings that would allow the rest"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")

    def run(self, arguments: argparse.Namespace) -> int:
        found: dict[str, Any] = {"machine": describe_machine(), "user": describe_user()}
        if arguments.fix_hints:
            found["fix_hints"] = find_hints(found["machine"])
        status = EXIT_DONE
        if arguments.pid is not None:
            found["target"] = examine_target(Target(arguments.pid), arguments.adapter)
            status = int(found["target"]["exit_status"])
        if arguments.json:
            print_json(found)
        else:
            _print(printable_value(found))
        return status


def examine_target(target: Target, adapter: str = "auto") -> dict[str, Any]:
    """Reports what attaching to this process would encounter; never raises because of the target."""
    facts: dict[str, Any] = {
        "pid": target.pid,
        "name": target.name,
        "executable": target.executable,
        "can_be_probed": True,
        "exit_status": EXIT_DONE,
        "notes": [],
    }
    try:
        facts["notes"] = check_target(target)
        modules = target.modules()
        facts["modules"] = len(modules)
        facts["build_id"] = modules[0].build_id if modules else ""
        facts["threads"] = [_describe_thread(thread) for thread in target.threads()]
        fit = [thread for thread in target.threads() if thread.tid not in target.unfit_threads]
        facts["blocked_thread"] = _blocked_thread(fit)
        facts["place"] = _describe_place(target)
    except NfprobeError as error:
        facts.update(can_be_probed=False, **_refusal(error))
        return facts
    try:
        _examine_adapter(facts, target, choose_adapter(adapter, target))
    except NfprobeError as error:
        facts.update(_refusal(error))
    return facts


def _refusal(error: NfprobeError) -> dict[str, Any]:
    return {"exit_status": error.exit_status, "reason": error.sentence, "next_command": error.next_command}


def _examine_adapter(facts: dict[str, Any], target: Target, adapter: Adapter | None) -> None:
    """Adds which adapter knows the process, and what it finds there.

    Raises:
        NfprobeError: no adapter knows it, or it finds no functions: attach without --functions would be refused.
    """
    facts["adapter"] = None
    if adapter is None:
        facts["notes"].append(f"installed adapters: {', '.join(adapter_names())}")
        raise nothing_to_probe(target)
    facts["adapter"] = adapter.name
    facts["notes"].append(f"adapter {adapter.name}: {adapter.recognise(target)}")
    facts["notes"] += [f"{role.label}: {role.name}" for role in adapter.roles(target)]
    facts["notes"] += adapter.notes(target)


def _describe_place(target: Target) -> dict[str, Any]:
    return {
        "c_library": "musl" if target.runs_on_musl else "glibc",
        "namespaces": foreign_namespaces(target.pid),
        "root": root_directory(target.pid),
        "sees_proc": sees_proc(target),
    }


def _describe_thread(thread: Thread) -> dict[str, Any]:
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "system_call": thread.system_call,
        "cpus": sorted(thread.cpus),
        "policy": thread.policy,
    }


def _blocked_thread(threads: list[Thread]) -> int | None:
    """Returns the thread through which the probe library would be loaded, or None: a busy one would be waited for."""
    rank = safe_calls()
    blocked = [thread for thread in threads if thread.system_call in rank]
    return min(blocked, key=lambda thread: rank[thread.system_call or 0]).tid if blocked else None


def _print(found: dict[str, Any]) -> None:
    for title in ("machine", "user"):
        print(title)
        for name, fact in found[title].items():
            print(f"  {name:<22} {fact['value']}")
            if fact["advice"]:
                print(f"  {'':<22} -> {fact['advice']}")
    if "fix_hints" in found:
        _print_hints(found["fix_hints"])
    target = found.get("target")
    if target is None:
        return
    print(f"process {target['pid']} ({target['name']}, {target['executable'] or 'no program'})")
    if not target["can_be_probed"]:
        _print_refusal("cannot be probed", target)
        return
    counts = f"{target['modules']} modules, {len(target['threads'])} threads"
    print(f"  can be probed; {counts}, build id {target['build_id']}")
    _print_place(target["place"])
    through = target["blocked_thread"]
    where = f"thread {through}, which is blocked" if through else "a busy thread's next harmless system call"
    print(f"  the probe library would be loaded through {where}")
    print(f"  adapter: {target.get('adapter') or 'none'}")
    for note in target["notes"]:
        print(f"  note: {note}")
    if "reason" in target:
        _print_refusal("attach without --functions is refused", target)


def _print_hints(hints: list[dict[str, str]]) -> None:
    print("to allow more" if hints else "nothing more to allow")
    for hint in hints:
        print(f"  {hint['allows']}")
        for line in hint["do"].splitlines():
            print(f"    {line}")


def _print_refusal(what: str, target: dict[str, Any]) -> None:
    print(f"  {what}: {target['reason']}")
    if target["next_command"]:
        print(f"  next: {target['next_command']}")


def _print_place(place: dict[str, Any]) -> None:
    lives = (
        f"in other namespaces than nfprobe: {', '.join(place['namespaces'])}"
        if place["namespaces"]
        else "in the same namespaces as nfprobe"
    )
    root = f"; root directory {place['root']}" if place["root"] not in ("", "/") else ""
    way = "" if place["sees_proc"] else "; it sees no /proc, so the probe library is loaded from a temporary file"
    print(f"  {place['c_library']}; {lives}{root}{way}")


# ---- the machine ----------------------------------------------------------------------------------------------------
# What this machine and this user allow. Queries the kernel and changes nothing.


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
    "seccomp filters": "whether a filter forbids the probe library is unknown until it is loaded",
}
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
NOEXEC = "/proc/sys/vm/memfd_noexec"


def describe_machine() -> dict[str, dict[str, str]]:
    """Returns facts by name, each with `value` and `advice` ("" if none is needed)."""
    machine = platform.machine()
    return {
        "kernel": _fact(f"{platform.system()} {platform.release()} {platform.version()}"),
        "architecture": _fact(machine, "" if machine == HOST.machine else f"nfprobe works on {NAMES} only"),
        "cpus": _fact(f"{os.cpu_count()} ({_cpu_field('model name') or 'unknown'})"),
        "time stamp counter": _tsc(),
        "ptrace scope": _ptrace_scope(),
        "membarrier sync-core": _membarrier(),
        "executable memfd": _memfd(),
        "descriptors of targets": _fact("yes") if can_take() else _fact("no", NO_PIDFD_GETFD),
        "performance counters": _counters(),
        "tracepoints": _tracepoints(),
        "tasks of whole CPUs": _cpu_tasks(),
        "firmware's interrupts": _firmware(),
        "kernel symbols": _kernel_names(),
        "kernel types (BTF)": _fact("present" if os.path.exists("/sys/kernel/btf/vmlinux") else "absent"),
    }


def _tracepoints() -> dict[str, str]:
    try:
        found = read_tracepoint("sched:sched_switch")
    except NfprobeError as error:
        return _fact(f"no: {error.sentence}", error.next_command)
    return _fact("yes" if found else "no", "" if found else "interrupts and steal time are not recorded")


def _cpu_tasks() -> dict[str, str]:
    watch = CpuWatch()
    try:
        watch.follow(sorted(os.sched_getaffinity(0))[:1])
    finally:
        watch.close()
    return _fact(
        "no" if watch.refusal else "yes", "of tasks that run instead, the first is named" if watch.refusal else ""
    )


def _firmware() -> dict[str, str]:
    watch = FirmwareWatch()
    try:
        watch.follow(sorted(os.sched_getaffinity(0))[:1])
    finally:
        watch.close()
    if not watch.refusal:
        return _fact("counted")
    return _fact(f"not counted: {watch.refusal}", "their time is attributed to functions, or not explained")


def _kernel_names() -> dict[str, str]:
    is_known = any(symbol.address for symbol in islice(read_symbols(), 1))
    advice = "in which system calls threads sleep is not recorded: kernel.kptr_restrict"
    return _fact("yes" if is_known else "no", "" if is_known else advice)


def describe_user() -> dict[str, dict[str, str]]:
    """As describe_machine, for the current user."""
    effective = _effective_capabilities()
    held = {name for name, bit in CAPABILITIES.items() if effective >> bit & 1}
    facts = {
        "user": _fact(f"uid {os.geteuid()}"),
        "capabilities": _fact(", ".join(name for name in CAPABILITIES if name in held) or "none of the relevant ones"),
    }
    for deed, ways in DEEDS.items():
        if any(held.issuperset(way) for way in ways):
            facts[deed] = _fact("yes")
        else:
            needs = " or ".join(" and ".join(way) for way in ways)
            facts[deed] = _fact(f"no (needs {needs})", CONSEQUENCES[deed])
    return facts


# ---- what would allow more ------------------------------------------------------------------------------------------


WANTED = ("CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_PERFMON")
"""With these everything is possible: the others of CAPABILITIES are parts of CAP_SYS_ADMIN."""
TRACING = "/sys/kernel/tracing/events"
SETTINGS = {  # of facts about the machine whose advice is no command
    "ptrace scope": "sysctl kernel.yama.ptrace_scope=0",
    "tasks of whole CPUs": "sysctl kernel.perf_event_paranoid=-1",
    "kernel symbols": "sysctl kernel.kptr_restrict=0",
}


def find_hints(machine: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Returns what to do about facts with an advice: `allows`, what for, and `do`, lines to type or to write.

    Nothing is said of what no setting changes, such as a virtual machine without counters.
    """
    effective = _effective_capabilities()
    missing = [name for name in WANTED if not effective >> CAPABILITIES[name] & 1]
    hints = []
    for name, fact in machine.items():
        command, _, _ = fact["advice"].partition(" (")
        if fact["advice"] and name in SETTINGS and _can_be_set(name, fact["value"], missing):
            command = SETTINGS[name]
        if command.startswith("sysctl "):
            hints.append({"allows": name, "do": f"sudo {command}"})
    if machine["tracepoints"]["advice"] and not os.path.isdir(TRACING):
        hints.append({"allows": "tracepoints", "do": f"sudo mount -t tracefs tracefs {os.path.dirname(TRACING)}"})
    return hints + (_give_capabilities(missing) if missing else [])


def _can_be_set(name: str, value: str, missing: list[str]) -> bool:
    if name == "ptrace scope":
        return value[0] in "12"
    if name == "tasks of whole CPUs":
        paranoid = _read(PARANOID)
        is_forbidden = "CAP_PERFMON" in missing and "CAP_SYS_ADMIN" in missing
        return is_forbidden and paranoid.lstrip("-").isdecimal() and int(paranoid) > -1
    return True


def _give_capabilities(missing: list[str]) -> list[dict[str, str]]:
    short = [name.removeprefix("CAP_") for name in missing]
    added = ",".join(f"+{name.lower()}" for name in short)
    user = "--reuid=$(id -u) --regid=$(id -g) --init-groups"
    lines = ["securityContext:", "  capabilities:", f"    add: [{', '.join(short)}]"]
    return [
        {
            "allows": f"{', '.join(missing)}, for one command",
            "do": f"sudo setpriv {user} --inh-caps={added} --ambient-caps={added} nfprobe attach PID",
        },
        {"allows": "the same in a container", "do": " ".join(f"--cap-add={name}" for name in short)},
        {"allows": "the same in Kubernetes", "do": "\n".join(lines)},
    ]


def _fact(value: str, advice: str = "") -> dict[str, str]:
    return {"value": value, "advice": advice}


def _read(path: str) -> str:
    return read_text(path).strip()


def _cpu_field(name: str) -> str:
    lines = read_text("/proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _tsc() -> dict[str, str]:
    flags = set(_cpu_field("flags").split())
    sound = flags >= of_host().clock_flags
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    advice = "" if sound else "times are wrong if the counter stops or changes its rate"
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


def _syscall(name: str, *arguments: Any) -> tuple[int, int]:
    """Returns result and errno of a system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    result = int(libc.syscall(ctypes.c_long(of_host().system_calls[name]), *arguments))
    return result, ctypes.get_errno()


def _membarrier() -> dict[str, str]:
    result, error = _syscall("membarrier", ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0))
    if result < 0:
        return _fact(f"no ({os.strerror(error)})", "code is changed in one short stop of all threads")
    if result & MEMBARRIER_SYNC_CORE:
        return _fact("yes")
    return _fact("no", "code is changed in one short stop of all threads")


def _memfd() -> dict[str, str]:
    result, error = _syscall("memfd_create", b"nfprobe-doctor", ctypes.c_uint(MFD_CLOEXEC | MFD_EXEC))
    if result < 0 and error == errno.EINVAL:  # kernels before 6.3 lack MFD_EXEC
        result, error = _syscall("memfd_create", b"nfprobe-doctor", ctypes.c_uint(MFD_CLOEXEC))
    if result < 0:
        return _fact(f"refused ({os.strerror(error)})", f"sysctl vm.memfd_noexec=0 (it is {_read(NOEXEC) or 'absent'})")
    os.close(result)
    return _fact("yes")


def _counters() -> dict[str, str]:
    """Tries to count on this thread, as is done for the target's threads."""
    refusal = find_refusal(choose_counters("cycles"))
    if refusal is None:
        return _fact(f"yes (perf_event_paranoid {_read(PARANOID)})")
    return _fact(f"none: {refusal.reason}", "" if refusal.advice == "nfprobe doctor" else refusal.advice)


def _effective_capabilities() -> int:
    return int(read_status(os.getpid()).get("CapEff", "0"), 16)
