# SPDX-License-Identifier: Apache-2.0
"""Groups that threads are sampled in, on a processor that is made up: what joins what, and what gives way to what.

Its events are memory files with a buffer as the kernel makes one, so that true readers read them; a group with more
hardware events than it has room for is in its error state until it is started again, as a pinned group is.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.clock import Clock, ClockPair
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.counters.threads import ThreadCounters, ThreadGroup
from otel_nfprobe.profiling.profiler import HARDWARE, Counted, Placing, Profiler, Source
from otel_nfprobe.profiling.samples import NOT_KNOWN
from tests.unit.profiling.test_samplerecords import LOST, Sample

CLOCK = Clock.from_pairs([ClockPair(0, 0, 1), ClockPair(1000, 1000, 1)])
CYCLES, SLOTS = Counter("cycles", (Event(0, 0),)), Counter("slots-all", (Event(4, 1),), scale=6)
FAULTS, CLOCKED = Counter("page-faults", (Event(1, 2),)), Counter("task-clock", (Event(1, 1),))
RING_BYTES = 64 * mmap.PAGESIZE
TID = 1234
ALL = ["cycles", "slots-all", "page-faults", "task-clock"]


class Machine(Kernel):
    """Room for so many hardware events in a group.

    Attributes:
        groups: of each event that is open its leader and whether it is a hardware event.
        refused: says which sources are not opened, and why.
        started: how often a group was started again.
    """

    def __init__(self, room: int = 8) -> None:
        self.room = room
        self.groups: dict[int, tuple[int, bool]] = {}
        self.sources: list[tuple[str, bool, bool]] = []
        self.refused: Callable[[Source, Placing], int] = lambda source, placing: 0
        self.counters_refused: set[str] = set()
        self.started = 0
        self.stuck: set[int] = set()

    def open_one(self, source: Source, hertz: int, placing: Placing) -> int:
        self.sources.append((source.name, placing.leader >= 0, placing.reads))
        if number := self.refused(source, placing):
            raise OSError(number, os.strerror(number))
        return self._add(placing.leader, source.type == HARDWARE)

    def open(self, counter: Counter, event: Event, tid: int, group: int = -1, disabled: bool = True) -> int:
        if counter.name in self.counters_refused or (counter.kernel and "kernel" in self.counters_refused):
            raise PermissionError(errno.EACCES, "Permission denied")
        return self._add(group, not counter.is_software)

    def _add(self, leader: int, is_hardware: bool) -> int:
        descriptor = os.memfd_create("event")
        os.ftruncate(descriptor, mmap.PAGESIZE + RING_BYTES)
        self.groups[descriptor] = (leader if leader >= 0 else descriptor), is_hardware
        return descriptor

    def enable(self, leader: int) -> None:
        self.started += 1
        self.stuck.discard(leader)

    def disable(self, leader: int) -> None:
        pass

    def read(self, descriptor: int) -> tuple[int, int, int] | None:
        leader = self.groups[descriptor][0]
        if sum(of == leader and is_hardware for of, is_hardware in self.groups.values()) > self.room:
            self.stuck.add(leader)
        return None if leader in self.stuck else (0, 0, 0)

    def identify(self, descriptor: int) -> int:
        return 1000 + descriptor

    def close(self, descriptor: int) -> None:
        del self.groups[descriptor]
        os.close(descriptor)

    def pinned(self) -> ThreadGroup:
        """The counters of a thread, as threads.py opens them."""
        leader = self.open(CYCLES, CYCLES.events[0], TID)
        return ThreadGroup(TID, [leader, self.open(SLOTS, SLOTS.events[0], TID, leader)])


class Watched:
    """A profiler of one thread on such a machine."""

    def __init__(self, machine: Machine, counted: Counted) -> None:
        self.machine, self.counted, self.said = machine, counted, list[str]()
        profiler = partial(Profiler, CLOCK, 99, lambda tid: True)
        self.profiler = profiler(lambda: self.counted, self.said.append, machine.open_one, machine)

    def watch(self) -> list[str]:
        """What its samples hold from now on."""
        self.profiler.watch([TID])
        return list(self.group.names)

    @property
    def group(self) -> Any:
        return self.profiler._groups[TID]

    def write(self, *records: bytes) -> None:
        """What the kernel writes into the buffer of the event that samples."""
        descriptor, data = self.group.opened[0], b"".join(records)
        (head,) = struct.unpack("<Q", os.pread(descriptor, 8, 1024))
        os.pwrite(descriptor, data, mmap.PAGESIZE + head)
        os.pwrite(descriptor, struct.pack("<Q", head + len(data)), 1024)

    def sample(self, *values: int) -> bytes:
        return Sample(7, values, 10, 10, tuple(self.group.ids.tolist())).pack()

    def read(self) -> list[tuple[list[str], list[list[int]]]]:
        """Names and counts of each set of samples."""
        return [(list(names), counts.T.tolist()) for _, (names, counts) in self.profiler.read({TID: 0})]


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    for descriptor in list(machine.groups):
        machine.close(descriptor)


def of(machine: Machine) -> Counted:
    return Counted({TID: machine.pinned()}, (CYCLES, SLOTS), (FAULTS, CLOCKED))


def test_joined(machine: Machine) -> None:
    """The most precise event, in the thread's own group; values by the ids of the events, whatever stands between."""
    counted = of(machine)
    watched = Watched(machine, counted)
    assert watched.watch() == ALL == watched.watch()
    assert machine.sources == [("cycles:ppp", True, True)]
    leader = counted.groups[TID].descriptors[0]
    assert {of for of, _ in machine.groups.values()} == {leader}
    watched.write(
        watched.sample(100, 10, 55, 1, 7), watched.sample(150, 12, 99, 1, 9), watched.sample(150, 12, 0, 1, 9)
    )
    expected = [[NOT_KNOWN] * 4, [50, 12, 0, 2], [NOT_KNOWN] * 4]  # slots have a scale; the third time one fell
    assert watched.read() == [(ALL, expected)]
    watched.write(watched.sample(160, 12, 50, 2, 9))
    assert watched.read() == [(ALL, [[10, 0, 1, 0]])]
    watched.write(LOST)
    assert watched.read() == []
    watched.write(watched.sample(160, 12, 50, 2, 9), watched.sample(161, 12, 50, 2, 9))
    assert watched.read() == [(ALL, [[NOT_KNOWN] * 4, [1, 0, 0, 0]])]
    assert (watched.profiler.lost, watched.profiler.taken, watched.profiler.counted) == (30, 6, 3)
    watched.profiler.close()
    assert len(machine.groups) == 2  # the thread's own counters
    assert watched.said == ["Samples (cycles:ppp) hold cycles, slots-all, page-faults, task-clock."]


def test_less_precise_where_that_cannot_join(machine: Machine) -> None:
    """As on AMD, where precise events belong to another device."""
    machine.refused = lambda source, placing: errno.EINVAL if placing.leader >= 0 and source.precision else 0
    watched = Watched(machine, of(machine))
    assert watched.watch() == ALL
    assert machine.sources[-1] == ("cycles", True, True)
    assert watched.profiler.source is not None
    assert watched.profiler.source.name == "cycles"


def test_what_does_not_fit_gives_way_at_once(machine: Machine) -> None:
    machine.room = 2
    watched = Watched(machine, of(machine))
    assert watched.watch() == ALL
    assert machine.sources[-1] == ("cpu-clock", True, True)
    assert machine.started == 8  # the group counts on after each try
    assert watched.said == [
        "Samples (cpu-clock) hold cycles, slots-all, page-faults, task-clock; no cycle counter is available for"
        " sampling next to these (Device or resource busy)."
    ]


def test_what_does_not_fit_later_gives_way_then(machine: Machine) -> None:
    """Somebody takes counters while the session runs, or the thread did not run when its group was opened."""
    watched = Watched(machine, of(machine))
    watched.watch()
    session: Any = SimpleNamespace(threads=SimpleNamespace(living=list), pid=1)
    said: list[str] = []
    counting = ThreadCounters(session, (CYCLES,), said.append, kernel=machine, relieve=watched.profiler.relieve)
    counting._groups[0] = watched.counted.groups[TID]
    counting._look()
    assert machine.started == 0
    machine.room = 2
    counting._look()
    assert (machine.started, said) == (1, [])
    assert watched.profiler._groups == {}
    assert watched.watch() == ALL
    assert machine.sources[-1] == ("cpu-clock", True, True)
    machine.room = 1  # the counters themselves do not fit any more
    counting._look()
    assert said == [
        "A thread is not counted: no counters are left beside those used by other programs or the NMI watchdog."
    ]
    assert watched.group.way.name == "JOINED"


@pytest.mark.parametrize("software", [(), (FAULTS,)])
def test_what_cannot_be_joined_at_all(machine: Machine, software: tuple[Counter, ...]) -> None:
    machine.refused = lambda source, placing: errno.EINVAL if placing.leader >= 0 else 0
    counted = of(machine)
    counted.software = software
    watched = Watched(machine, counted)
    assert watched.watch() == [counter.name for counter in software]
    assert machine.sources[-1] == ("cycles:ppp", False, bool(software))
    assert watched.said == ["Samples do not contain cycles, slots-all: perf_event_open says Invalid argument."]


def test_without_rights_there_are_samples(machine: Machine) -> None:
    """Counters of the kernel in user mode, where that is allowed, else none; where nothing is allowed, a sentence."""
    machine.counters_refused = {"kernel"}
    counted = Counted(software=(FAULTS,))
    assert Watched(machine, counted).watch() == ["page-faults"]
    machine.counters_refused = {"page-faults"}
    watched = Watched(machine, counted)
    assert watched.watch() == []
    assert watched.said == ["Samples do not contain page-faults: perf_event_open says Permission denied."]
    bare = struct.pack("<IHHQIIQIIQ", 9, 2, 48, 7, 1, 2, 3, 4, 0, 5)
    watched.write(bare)
    assert watched.read() == [([], [[]])]
    machine.refused = lambda source, placing: errno.EACCES
    with pytest.raises(NfprobeError, match="Profiling failed"):
        Watched(machine, counted).watch()


def test_other_counters_while_it_runs(machine: Machine) -> None:
    """Opened anew with these; nothing is known of the first sample; of what a thread no longer has nothing is said."""
    watched = Watched(machine, Counted())
    assert watched.watch() == []
    watched.counted = Counted(software=(FAULTS,))
    assert watched.watch() == ["page-faults"]
    watched.write(watched.sample(1, 5), watched.sample(2, 9))
    assert watched.read() == [(["page-faults"], [[NOT_KNOWN], [4]])]
    watched.counted = Counted({}, (CYCLES, SLOTS), (FAULTS,))  # the thread's own are on their way
    assert watched.watch() == ["page-faults"]
    said = list(watched.said)
    watched.counted = of(machine)
    assert watched.watch() == ALL
    watched.write(watched.sample(100, 10, 55, 1, 7), watched.sample(150, 12, 99, 1, 9))
    assert watched.read() == [(ALL, [[NOT_KNOWN] * 4, [50, 12, 0, 2]])]
    group = watched.group
    watched.counted = of(machine)  # others of the same names
    assert watched.watch() == ALL
    assert watched.group is not group
    assert len(watched.said) == len(said) + 1
    assert watched.profiler.counters == ["page-faults", "cycles", "slots-all", "task-clock"]


def test_threads_that_hold_others(machine: Machine) -> None:
    """Each set of counters has samples of its own."""
    counted = of(machine)
    watched = Watched(machine, counted)
    watched.profiler.watch([TID, 77])
    for tid, values in ((TID, (1, 2, 3, 4, 5)), (77, (1, 2, 3))):
        group = watched.profiler._groups[tid]
        data = Sample(7, values, ids=tuple(group.ids.tolist())).pack()
        os.pwrite(group.opened[0], data, mmap.PAGESIZE)
        os.pwrite(group.opened[0], struct.pack("<Q", len(data)), 1024)
    found = watched.profiler.read({TID: 0, 77: 1})
    assert [list(item.counted.names) for item in found] == [ALL, ALL[2:]]
    assert [item.rows["thread"].tolist() for item in found] == [[0], [1]]
    assert all(np.all(item.counted.counts == np.uint64(NOT_KNOWN)) for item in found)
