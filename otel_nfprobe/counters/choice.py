# SPDX-License-Identifier: Apache-2.0
"""Choice: maps `--counters NAME,...` to events of this machine. Opens nothing.

A name is one of `perf list` (generic, or of a device in /sys), a raw code (`r01c2`), terms of a device
(`cpu/event=0xc2,umask=0x1/`), a bundle, or `auto`. Counts user mode only unless `:k` or `:uk` follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.counters.bundles import BUNDLE_NAMES, BUNDLES, TOPDOWN, find_topdown
from otel_nfprobe.counters.devices import SYSFS, Device, Event, core_devices, is_core_type, read_devices
from otel_nfprobe.counters.namelist import COUNTERS_MAX, HELP, split_names, write_names
from otel_nfprobe.counters.names import TYPE_SOFTWARE, find_generic, generic_names, nearest
from otel_nfprobe.target.target import read_text

AUTO = "auto"
AUTO_NAMES = ("cycles", "instructions", "cache-misses", "branch-misses")
CPUINFO = "/proc/cpuinfo"
NONE = "none"
_MODIFIED = compile_late(r"(.*?)(?:(?:(?<=/)|:)([uk]{1,2}))?\Z")
_OTHER_MODIFIER = compile_late(r"(.+?)(?:(?<=/)|:)([ukhpPGHSDIWe]+)\Z")  # perf's other modifiers
_SLASHED = compile_late(r"([\w.-]+)/(.+?)/?\Z")


@dataclass(frozen=True, slots=True)
class Counter:
    """One requested counter.

    Attributes:
        name: displayed name.
        events: one; on a hybrid processor one per kind of core that can count it.
        user, kernel: the modes in which it counts.
        scale: multiplier of its counts.
    """

    name: str
    events: tuple[Event, ...]
    user: bool = True
    kernel: bool = False
    scale: int = 1

    @property
    def is_software(self) -> bool:
        """Counted by the kernel and read by the monitor, not in the probes."""
        return self.events[0].type == TYPE_SOFTWARE

    def event_for(self, cpus: Iterable[int]) -> Event:
        """Returns the event for a thread that may run on these CPUs."""
        fitting = self._fitting(cpus)
        return fitting[0] if fitting else self.events[0]

    def is_counted_on(self, cpus: Iterable[int]) -> bool:
        """Returns whether any of these CPUs has an event for it."""
        return bool(self._fitting(cpus))

    def _fitting(self, cpus: Iterable[int]) -> list[Event]:
        allowed = frozenset(cpus)
        return [event for event in self.events if not event.cpus or allowed & event.cpus]


@dataclass(frozen=True, slots=True)
class CounterChoice:
    """The counters of a session.

    Attributes:
        auto: whatever the machine has; without any, the session continues.
        counters: in the order of the option, hardware and software.
        notes: sentences for the user.
    """

    auto: bool = False
    counters: tuple[Counter, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def hardware(self) -> tuple[Counter, ...]:
        """The counters that probes read."""
        return tuple(counter for counter in self.counters if not counter.is_software)

    @property
    def software(self) -> tuple[Counter, ...]:
        """The counters that the monitor reads."""
        return tuple(counter for counter in self.counters if counter.is_software)

    def __str__(self) -> str:
        """Returns the counters that probes read in the format of `read_names`, as stored in a recording."""
        return write_names(name_counters(self.hardware))


def name_counters(counters: Iterable[Counter]) -> tuple[tuple[str, int], ...]:
    """Returns the name and scale of each."""
    return tuple((counter.name, counter.scale) for counter in counters)


def choose_counters(text: str, root: Path = SYSFS, cpuinfo: str | None = None) -> CounterChoice:
    """Resolves the option's text on this machine.

    Args:
        text: of `--counters`.
        root: of sysfs.
        cpuinfo: text of /proc/cpuinfo; None: that of this machine.

    Raises:
        UsageError: a name is unknown, or there are too many.
    """
    names = split_names(text)
    if names == [NONE]:
        return CounterChoice()
    machine = _Machine(read_devices(root), read_text(CPUINFO) if cpuinfo is None else cpuinfo)
    auto = AUTO in names
    found: dict[str, Counter] = {}
    for name in names:
        for counter in machine.find(name):
            found.setdefault(counter.name, counter)
    choice = CounterChoice(auto, tuple(found.values()), tuple(machine.notes()))
    if len(choice.hardware) > COUNTERS_MAX:
        sentence = f"A probe reads at most {COUNTERS_MAX} counters; these are {len(choice.hardware)}."
        raise UsageError(sentence, HELP)
    return choice


class _Machine:
    # Resolves names.
    def __init__(self, devices: Sequence[Device], cpuinfo: str) -> None:
        self._devices = list(devices)
        self._cores = core_devices(self._devices)
        self._cpuinfo = cpuinfo

    def notes(self) -> list[str]:
        if len(self._cores) < 2:
            return []
        kinds = " and ".join(core.name for core in self._cores)
        return [
            f"This processor has cores of several kinds ({kinds}): a thread that moves from one kind to another is"
            " counted on one of them only, and its other calls are marked as not counted."
        ]

    def find(self, name: str) -> list[Counter]:
        if name in BUNDLES:
            return [self._counter(part) for part in BUNDLES[name]]
        if name == AUTO:
            return [self._counter(part) for part in AUTO_NAMES]
        if name == TOPDOWN:
            return self._topdown()
        return [self._counter(name)]

    def _topdown(self) -> list[Counter]:
        core = self._cores[0] if self._cores else None
        parts = find_topdown(self._cpuinfo, core.events) if core else ()
        if core is None or not parts:
            raise UsageError(
                f"This processor has no counters that make {TOPDOWN} (docs/counters.md).", "nfprobe doctor"
            )
        return [Counter(part.label, (core.resolve(part.terms),), scale=part.scale) for part in parts]

    def _counter(self, text: str) -> Counter:
        matched = _MODIFIED.match(text)
        assert matched is not None
        plain, modes = matched[1], matched[2] or "u"
        shown, events = self._events(plain)
        name = shown if modes == "u" else f"{shown}:{modes}"
        return Counter(name, events, "u" in modes, "k" in modes)

    def _events(self, name: str) -> tuple[str, tuple[Event, ...]]:
        slashed = _SLASHED.match(name)
        if slashed and not _OTHER_MODIFIER.match(name):
            return name.rstrip("/") + "/", (self._device(slashed[1]).resolve(slashed[2]),)
        found = find_generic(name)
        if found is not None:
            shown, kind, config = found
            if len(self._cores) < 2 or not is_core_type(kind):
                return shown, (Event(kind, config),)
            return shown, tuple(core.of_generic(kind, config) for core in self._cores)
        holders = [device for device in self._cores if name in device.events]
        if holders:
            return name, tuple(device.resolve(name) for device in holders)
        raise self._unknown(name)

    def _device(self, name: str) -> Device:
        for device in self._devices:
            if device.name == name:
                return device
        if name == "cpu" and self._cores:  # perf accepts the name on hybrid processors as well
            return self._cores[0]
        if name == "cpu":
            raise UsageError("This machine exposes no processor counters (no device cpu).", "nfprobe doctor")
        known = ", ".join(device.name for device in self._devices) or "none"
        raise UsageError(f"No counter device is called {name!r}; there are: {known}.", "nfprobe doctor")

    def _is_known(self, name: str) -> bool:
        try:
            return bool(self._events(name))
        except UsageError:
            return False

    def _unknown(self, name: str) -> UsageError:
        if (modified := _OTHER_MODIFIER.match(name)) and self._is_known(modified[1]):
            sentence = f"{name!r}: of perf's modifiers only u and k apply when counting calls."
            return UsageError(sentence, f"--counters {modified[1]}")
        known = [*generic_names(), *BUNDLE_NAMES, AUTO, *(event for core in self._cores for event in core.events)]
        near = nearest(name, dict.fromkeys(known))
        hint = f"; similar names: {', '.join(near)}" if near else "; perf list shows names"
        return UsageError(f"No counter is called {name!r}{hint}.", HELP)
