# SPDX-License-Identifier: Apache-2.0
"""Availability: whether the counters of a choice are available, tried on nfprobe's own thread, or why not.

One sentence per reason. Nothing in a target is touched.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.counters.choice import Counter, CounterChoice
from otel_nfprobe.counters.devices import SYSFS, core_devices, is_core_name, read_devices
from otel_nfprobe.counters.perf import Kernel

PROC = Path("/proc")
DOCTOR = "nfprobe doctor"
IN_KERNEL = ("context-switches", "cpu-migrations", "cgroup-switches")
_NOT_THERE = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL)
_FORBIDDEN = (errno.EPERM, errno.EACCES)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why counters are unavailable.

    Attributes:
        reason: a clause for a sentence, without a full stop.
        advice: what to do about it, a command if there is one.
    """

    reason: str
    advice: str = DOCTOR


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where reasons are looked up; tests substitute other places."""

    sysfs: Path = SYSFS
    proc: Path = PROC

    def has_counters(self) -> bool:
        """Returns whether the kernel exposes a counter device of the processor."""
        return bool(core_devices(read_devices(self.sysfs)))

    def is_hypervised(self) -> bool:
        """Returns whether this is a virtual machine."""
        return "hypervisor" in self._words("cpuinfo", "flags")

    def paranoid(self) -> str:
        """Returns kernel.perf_event_paranoid, or ""."""
        return self._read("sys/kernel/perf_event_paranoid")

    def watches_nmi(self) -> bool:
        """Returns whether the kernel's watchdog uses one counter of each CPU."""
        return self._read("sys/kernel/nmi_watchdog") == "1"

    def is_filtered(self) -> bool:
        """Returns whether a seccomp filter applies to nfprobe's own system calls, as in most containers."""
        return self._words("self/status", "Seccomp") == ["2"]

    def reading_is_off(self) -> bool:
        """Returns whether the kernel forbids all programs to read counters."""
        return any(device.direct == 0 for device in core_devices(read_devices(self.sysfs)))

    def _words(self, path: str, name: str) -> list[str]:
        for line in self._read(path).splitlines():
            key, colon, rest = line.partition(":")
            if colon and key.strip() == name:
                return rest.split()
        return []

    def _read(self, path: str) -> str:
        try:
            return (self.proc / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


def find_refusal(
    choice: CounterChoice, kernel: Kernel | None = None, around: Surroundings | None = None
) -> Refusal | None:
    """Returns why the hardware counters of a choice are unavailable on this machine at present; None: they are
    available.
    """
    kernel, around = kernel or Kernel(), around or Surroundings()
    if not choice.hardware:
        return None
    opened: list[int] = []
    try:
        for counter in choice.hardware:
            try:
                opened.append(kernel.open(counter, counter.events[0], 0, opened[0] if opened else -1))
            except OSError as error:
                return _explain(error, counter, bool(opened), kernel, around)
        return _try_to_count(opened, kernel, around)
    finally:
        for descriptor in reversed(opened):
            kernel.close(descriptor)


def find_software_refusal(
    choice: CounterChoice, kernel: Kernel | None = None, around: Surroundings | None = None
) -> Refusal | None:
    """Returns why software counters of a choice are unavailable to this user; None: they are available."""
    kernel, around = kernel or Kernel(), around or Surroundings()
    for counter in choice.software:
        # These happen in the kernel: without kernel mode they would all be 0.
        needed = replace(counter, kernel=True) if counter.name in IN_KERNEL else counter
        try:
            kernel.close(kernel.open(needed, counter.events[0], 0))
        except OSError as error:
            if error.errno in _FORBIDDEN:
                refusal = _explain_forbidden(needed, around)
                return Refusal(f"{counter.name}: {refusal.reason}", refusal.advice)
            return _explain(error, counter, False, kernel, around)
    return None


def explain_thread(
    error: OSError, counter: Counter, in_group: bool, cpus: Iterable[int], kernel: Kernel, around: Surroundings
) -> Refusal:
    """Returns why a thread of the target cannot have a counter that nfprobe's own thread can.

    Args:
        in_group: others were opened before it.
        cpus: CPUs on which the thread may run.
    """
    if not counter.is_counted_on(cpus):
        return Refusal(f"the cores it may run on cannot count {counter.name}", "perf list")
    if error.errno in _FORBIDDEN:
        return Refusal("this user may not count in it: it has another user or more privileges", "sudo nfprobe attach")
    return _explain(error, counter, in_group, kernel, around)


def _explain(error: OSError, counter: Counter, in_group: bool, kernel: Kernel, around: Surroundings) -> Refusal:
    number = error.errno or 0
    if number == errno.ENOSYS:
        return Refusal("this kernel, or a seccomp filter around nfprobe, has no perf_event_open")
    if number in _FORBIDDEN:
        return _explain_forbidden(counter, around)
    if number == errno.EBUSY:
        return _explain_held(around)
    if number == errno.EMFILE:
        return Refusal("too many files are open", "ulimit -n 65536")
    if number not in _NOT_THERE:
        return Refusal(f"perf_event_open says {os.strerror(number)}")
    device = counter.name.partition("/")[0] if "/" in counter.name else ""
    if device and not is_core_name(device):
        return Refusal(f"{device} counts for the whole machine, not per thread", "perf stat -a")
    if not around.has_counters():
        where = (
            "this virtual machine's hypervisor exposes none" if around.is_hypervised() else "the kernel exposes none"
        )
        return Refusal(f"there is no performance monitoring unit: {where}")
    if in_group and _opens_alone(counter, kernel):
        return Refusal(f"the processor cannot count so many at once: no counter is left for {counter.name}")
    guest = " (a virtual machine may have some counters only)" if around.is_hypervised() else ""
    return Refusal(f"the processor cannot count {counter.name}{guest}", "perf list")


def _explain_forbidden(counter: Counter, around: Surroundings) -> Refusal:
    paranoid = around.paranoid()
    needed = 1 if counter.kernel else 2
    if around.is_filtered() and not (paranoid.lstrip("-").isdigit() and int(paranoid) > needed):
        return Refusal(
            "a seccomp filter around nfprobe forbids perf_event_open, as containers do",
            "run nfprobe outside the container, or with a profile that permits perf_event_open",
        )
    return Refusal(
        f"this user may not count (kernel.perf_event_paranoid is {paranoid or 'unknown'})",
        f"sysctl kernel.perf_event_paranoid={needed}",
    )


def _explain_held(around: Surroundings) -> Refusal:
    if around.watches_nmi():
        return Refusal(
            "there are too few free counters: the kernel's NMI watchdog uses one on each CPU",
            "sysctl kernel.nmi_watchdog=0",
        )
    return Refusal("there are too few free counters: another program (perf, VPP's perfmon) uses them", "pgrep -a perf")


def _opens_alone(counter: Counter, kernel: Kernel) -> bool:
    try:
        kernel.close(kernel.open(counter, counter.events[0], 0))
    except OSError:
        return False
    return True


def _try_to_count(opened: list[int], kernel: Kernel, around: Surroundings) -> Refusal | None:
    try:
        kernel.enable(opened[0])
        found = kernel.read(opened[0])
        readable = kernel.may_read_directly(opened[0])
        kernel.disable(opened[0])
    except OSError as error:
        return Refusal(f"the counters do not start: {error.strerror}")
    if found is None or found[2] < found[1]:
        return _explain_held(around)
    reading = of_host().counter_reading
    if around.reading_is_off():
        return Refusal(
            f"programs may not read counters (the kernel's {reading} setting is 0)",
            f"echo 1 > /sys/bus/event_source/devices/cpu/{reading}",
        )
    if not readable:
        return Refusal(f"the counters cannot be read by {reading} here")
    return None
