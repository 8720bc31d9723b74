# SPDX-License-Identifier: Apache-2.0
"""Counter devices: the processor's counters, their events and fields, as described by the kernel in /sys.

    /sys/bus/event_source/devices/cpu/type            number of the device
                                     /events/NAME      "event=0xcd,umask=0x1,ldlat=3"
                                     /format/FIELD     "config:0-7,32-35": the field's bits, lowest first
                                     /rdpmc or the like 0: programs may not read counters
                                     /cpus             on a hybrid processor: CPUs that have this device

Only reads files; with `root`, tests use file trees of other machines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.counters.names import TYPE_HARDWARE, TYPE_RAW, TYPE_SOFTWARE, find_generic

SYSFS = Path("/sys")
_WORDS = ("config", "config1", "config2")
HELP = "nfprobe doctor"


@dataclass(frozen=True, slots=True)
class Event:
    """Arguments of perf_event_open.

    Attributes:
        type: of the perf event.
        config, config1, config2: which event.
        cpus: CPUs that can count it; empty: all.
    """

    type: int
    config: int = 0
    config1: int = 0
    config2: int = 0
    cpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Device:
    """One counter device.

    Attributes:
        name: directory in /sys.
        type: perf type.
        events: terms by event name.
        fields: word and bits by field name.
        cpus: CPUs that have it; empty: all.
        direct: 0 nobody reads counters, 1 programs that have one open, 2 every program; None: not stated.
    """

    name: str
    type: int
    events: dict[str, str] = field(default_factory=dict)
    fields: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    cpus: frozenset[int] = frozenset()
    direct: int | None = None

    @property
    def is_core(self) -> bool:
        """Whether it counts the work of a processor core for a thread."""
        return is_core_name(self.name)

    def resolve(self, terms: str) -> Event:
        """Resolves a list of terms to an event, such as `event=0xcd,umask=1` or `mem-loads,ldlat=30`.

        Raises:
            UsageError: a term is unknown or out of range.
        """
        event = Event(self.type, cpus=self.cpus)
        for term in terms.split(","):
            event = self._apply(event, term.strip())
        return event

    def _apply(self, event: Event, term: str) -> Event:
        name, equals, text = term.partition("=")
        if not equals and name in self.events:
            for inner in self.events[name].split(","):
                event = self._apply(event, inner.strip())
            return event
        if not equals and name not in self.fields:
            return self._generic(event, name)
        if name == "name" or name == "period":
            return event
        value = _number(text, term) if equals else 1
        if name in _WORDS and name not in self.fields:
            return _put(event, name, getattr(event, name) | value)
        if name not in self.fields:
            raise UsageError(f"{self.name} has no field {name!r}; it has {', '.join(sorted(self.fields))}.", HELP)
        word, bits = self.fields[name]
        if value >> len(bits):
            raise UsageError(f"{term!r} does not fit: {name} of {self.name} has {len(bits)} bits.", HELP)
        mask = sum(1 << bit for bit in bits)
        spread = sum((value >> index & 1) << bit for index, bit in enumerate(bits))
        return _put(event, word, getattr(event, word) & ~mask | spread)

    def _generic(self, event: Event, name: str) -> Event:
        found = find_generic(name)
        if found is None or found[1] == TYPE_SOFTWARE:
            raise UsageError(f"{self.name} has no event {name!r}.", HELP)
        return self.of_generic(found[1], found[2])

    def of_generic(self, kind: int, config: int) -> Event:
        """Returns a generic event of this device; on hybrid processors it names the device."""
        if kind == TYPE_RAW:
            return Event(self.type, config, cpus=self.cpus)
        # PERF_PMU_TYPE_SHIFT: the device's number is in the upper half.
        return Event(kind, config | self.type << 32 if self.cpus else config, cpus=self.cpus)


def _put(event: Event, word: str, value: int) -> Event:
    if word == "config":
        return replace(event, config=value)
    return replace(event, config1=value) if word == "config1" else replace(event, config2=value)


def _number(text: str, term: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"{term!r} is not a term: = must be followed by a number, such as 0x1f.", HELP) from None


def read_devices(root: Path = SYSFS) -> list[Device]:
    """Returns all counter devices, those of processor cores first; unreadable ones are left out."""
    found = []
    base = root / "bus" / "event_source" / "devices"
    for directory in sorted(base.iterdir()) if base.is_dir() else []:
        number = _read(directory / "type")
        if number.isdigit():
            found.append(_read_device(directory, int(number)))
    return sorted(found, key=lambda device: (not device.is_core, device.name != "cpu_core", device.name))


def _read_device(directory: Path, number: int) -> Device:
    direct = _read(directory / of_host().counter_reading)
    # Scales and units of events are files next to them.
    events = {name: text for name, text in _files(directory / "events") if "." not in name}
    fields = {name: _bits(text) for name, text in _files(directory / "format")}
    return Device(
        directory.name,
        number,
        events,
        {name: place for name, place in fields.items() if place is not None},
        parse_cpus(_read(directory / "cpus")),
        int(direct) if direct.isdigit() else None,
    )


def _bits(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Parses `config:0-7,32-35` into the word and its bits, lowest first."""
    word, _, ranges = text.partition(":")
    return (word, tuple(_expand(ranges))) if word in _WORDS else None


def parse_cpus(text: str) -> frozenset[int]:
    """Parses `0-3,8` into CPUs."""
    return frozenset(_expand(text))


def _expand(text: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return []
        found += range(int(first), int(last or first) + 1)
    return found


def _files(directory: Path) -> list[tuple[str, str]]:
    if not directory.is_dir():
        return []
    return [(path.name, _read(path)) for path in sorted(directory.iterdir())]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def is_core_name(name: str) -> bool:
    """Returns whether a device of this name counts per thread."""
    return re.fullmatch(of_host().core_devices, name) is not None


def core_devices(devices: list[Device]) -> list[Device]:
    """Returns the devices that count per thread; several on a hybrid processor, none where there are no counters."""
    return [device for device in devices if device.is_core]


def is_core_type(kind: int) -> bool:
    """Returns whether only a core device counts this perf type."""
    return kind == TYPE_HARDWARE or kind >= 3
