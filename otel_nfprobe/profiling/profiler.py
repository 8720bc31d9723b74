# SPDX-License-Identifier: Apache-2.0
"""The profiler: samples each running thread of the target many times a second through perf_event_open.

One perf event per thread: the processor's cycle counter with the most precise addresses available (PEBS, IBS) or,
without such a counter, the software event cpu-clock. The session's counters are in the same group (below), and each
sample contains their values. The target is not changed. Each record states whether its address is exact.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.counters.threads import ThreadGroup
from otel_nfprobe.linux.perfring import (
    HEADER,
    NO_KERNEL,
    event_attributes,
    find_ended,
    map_largest_ring,
    open_event,
    take_records,
)
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.profiling.samples import NOT_KNOWN, SAMPLE, CountedSamples, SampleCounts, SampleFlag, Words, is_known

# ---- what samples ---------------------------------------------------------------------------------------------------
# Sampling events, the most precise first.


HARDWARE, SOFTWARE = lib.PERF_TYPE_HARDWARE, lib.PERF_TYPE_SOFTWARE
PRECISIONS = (3, 2, 1, 0)


@dataclass(frozen=True, slots=True)
class Source:
    """A sampling event: `type` and precise_ip of perf_event_attr; `user_only`: excludes kernel code."""

    type: int
    precision: int
    user_only: bool

    @property
    def name(self) -> str:
        """For people."""
        event = "cycles" if self.type == HARDWARE else "cpu-clock"
        modifiers = ("u" if self.user_only else "") + "p" * self.precision
        return f"{event}:{modifiers}" if modifiers else event


SOURCES = tuple(
    Source(kind, precision, user_only)
    for kind, precisions in ((HARDWARE, PRECISIONS), (SOFTWARE, (0,)))
    for precision in precisions
    for user_only in (False, True)
)


class Placing(NamedTuple):
    """How a source's event is opened: on a thread, in the group of `leader` (-1: none), with values or without."""

    tid: int
    leader: int = -1
    reads: bool = False


Open = Callable[[Source, int, Placing], int]


def open_source(source: Source, hertz: int, placing: Placing) -> int:
    """Opens the sampling event of a thread. Raises OSError."""
    flags = lib.NFP_EVENT_FREQ | (NO_KERNEL if source.user_only else 0)
    config = lib.PERF_COUNT_HW_CPU_CYCLES if source.type == HARDWARE else lib.PERF_COUNT_SW_CPU_CLOCK
    attributes = event_attributes(source.type, config, flags, sample_freq=hertz, sample_type=SAMPLE_TYPE)
    lib.nfp_event_set_precision(attributes, source.precision)
    if placing.reads:
        attributes.sample_type, attributes.read_format = SAMPLE_TYPE | lib.PERF_SAMPLE_READ, READ_FORMAT
    return open_event(attributes, placing.tid, placing.leader)


# ---- records of the kernel ------------------------------------------------------------------------------------------
# The kernel's sample records: where a thread was, and the counters of the sampled group. Pure.
#
#     header  address  pid tid  time  cpu  period  | number of values  ns enabled  ns running  (value, id) for each
#
# The part after the bar exists only if the samples contain values; the sampling event is one of the counters.


SAMPLE_TYPE = lib.PERF_SAMPLE_IP | lib.PERF_SAMPLE_TID | lib.PERF_SAMPLE_TIME | lib.PERF_SAMPLE_CPU
SAMPLE_TYPE |= lib.PERF_SAMPLE_PERIOD
READ_FORMAT = lib.PERF_FORMAT_TOTAL_TIME_ENABLED | lib.PERF_FORMAT_TOTAL_TIME_RUNNING
READ_FORMAT |= lib.PERF_FORMAT_ID | lib.PERF_FORMAT_GROUP
# Bits of a record's misc.
MODE, IN_KERNEL = lib.PERF_RECORD_MISC_CPUMODE_MASK, lib.PERF_RECORD_MISC_KERNEL
EXACT = lib.PERF_RECORD_MISC_EXACT_IP

_RECORD_SAMPLE, _RECORD_LOST = lib.PERF_RECORD_SAMPLE, lib.PERF_RECORD_LOST
_LOST_AT = 16  # offset of the count in its record
_PLACE = [
    ("type", "<u4"),
    ("misc", "<u2"),
    ("size", "<u2"),
    ("address", "<u8"),
    ("pid", "<u4"),
    ("tid", "<u4"),
    ("time_ns", "<u8"),
    ("cpu", "<u4"),
    ("reserved", "<u4"),
    ("period", "<u8"),
]
_READ = [("count", "<u8"), ("enabled_ns", "<u8"), ("running_ns", "<u8")]
_VALUE = np.dtype([("value", "<u8"), ("id", "<u8")])
_PLACE_BYTES = np.dtype(_PLACE).itemsize
_READ_BYTES = np.dtype(_READ).itemsize

Records = NDArray[np.void]


@cache
def record_dtype(values: int) -> np.dtype[Any]:
    """Returns the dtype of a record with this many values."""
    return np.dtype([*_PLACE, *_READ, ("values", _VALUE, (values,))] if values else _PLACE)


class Taken(NamedTuple):
    """The content of a buffer.

    Attributes:
        records: dtype record_dtype.
        breaks: indices of records before which samples are missing (len(records): after the last).
        lost: number of missing samples.
    """

    records: Records
    breaks: NDArray[np.intp]
    lost: int


def split_records(data: bytes, values: int = 0) -> Taken:
    """Extracts the samples from complete records.

    Args:
        values: per sample. If a sample has another number, because its group was changed, its values and IDs
            are 0.
    """
    dtype = record_dtype(values)
    if data and len(data) % dtype.itemsize == 0:
        records = np.frombuffer(data, dtype)
        if np.all((records["type"] == _RECORD_SAMPLE) & (records["size"] == dtype.itemsize)):
            return Taken(records, np.empty(0, np.intp), 0)
    kept: list[Records] = [np.empty(0, dtype)]
    breaks, lost, at = [], 0, 0
    while at + HEADER.size <= len(data):
        kind, _, size = HEADER.unpack_from(data, at)
        if size < HEADER.size or at + size > len(data):
            break
        if kind != _RECORD_SAMPLE:
            breaks.append(len(kept) - 1)
            if kind == _RECORD_LOST and size >= _LOST_AT + 8:
                lost += int(struct.unpack_from("<Q", data, at + _LOST_AT)[0])
        elif size == dtype.itemsize:
            kept.append(np.frombuffer(data, dtype, 1, at))
        elif values and _is_whole(data, at, size):
            other = np.zeros(1, dtype)
            other.view(np.uint8)[:_PLACE_BYTES] = np.frombuffer(data, np.uint8, _PLACE_BYTES, at)
            kept.append(other)
        at += size
    return Taken(np.concatenate(kept), np.array(breaks, np.intp), lost)


def _is_whole(data: bytes, at: int, size: int) -> bool:
    if size < _PLACE_BYTES + _READ_BYTES:
        return False
    (count,) = struct.unpack_from("<Q", data, at + _PLACE_BYTES)
    return size == _PLACE_BYTES + _READ_BYTES + int(count) * _VALUE.itemsize


def find_increases(records: Records, before: Records, breaks: NDArray[np.intp], ids: Words) -> Words:
    """Returns by how much each counter of a group increased between samples.

    Args:
        records: of one thread, with values.
        before: the preceding record, or none.
        breaks: as returned by split_records.
        ids: of the counters, in the group's order.

    Returns:
        shape (len(ids), len(records)): NOT_KNOWN at the very first sample, after a break, if the group was
            another one, and if it did not count all the time that the thread ran.
    """
    rows = np.concatenate((before, records))
    found = np.full((len(ids), len(records)), NOT_KNOWN, np.uint64)
    if len(rows) < 2 or not len(records):
        return found
    values, ran = rows["values"]["value"], rows["running_ns"]
    whole = (rows["values"]["id"] == ids).all(axis=1)
    known = whole[1:] & whole[:-1] & (values[1:] >= values[:-1]).all(axis=1)
    known &= np.diff(rows["enabled_ns"]) == np.diff(ran)
    behind = breaks[breaks < len(records)] - (1 - len(before))
    known[behind[behind >= 0]] = False
    found[:, len(records) - len(known) :][:, known] = np.diff(values, axis=0)[known].T
    return found


# ---- events of one thread -------------------------------------------------------------------------------------------
# The event group that samples one thread: the sampling event, and the counters whose values samples contain.
#
#     joined    the thread's pinned group, which probes read, plus the sampling event and software counters
#     leading   the sampling event, then software counters
#     alone     the sampling event; its samples contain no values
#
# In the pinned group nothing competes for hardware counters. The sampling event is the most precise that the kernel
# accepts there; a cycle counter that does not fit would stop the whole group from counting, so it falls back to the
# kernel's clock.


PAGES = (64, 16, 2)  # of a buffer; unprivileged users may lock little memory


class Wanted(NamedTuple):
    """What the samples of one thread should contain.

    Attributes:
        group: the thread's pinned group; None if it has none.
        hardware: the counters of such groups.
        software: software counters.
    """

    group: ThreadGroup | None = None
    hardware: tuple[Counter, ...] = ()
    software: tuple[Counter, ...] = ()


class Way(Enum):
    """How a thread is sampled, in order of preference."""

    JOINED = "joined"
    LEADING = "leading"
    ALONE = "alone"


@dataclass
class SampleGroup:
    """One thread's sampling events.

    Attributes:
        counters: of the values, in the group's order.
        ids: of all events of the group, including the sampling event.
        places: indices of the counters among these.
        before: its last sample.
        is_broken: whether samples are missing after it.
    """

    wanted: Wanted
    way: Way
    source: Source
    opened: list[int]
    buffer: mmap.mmap
    counters: tuple[Counter, ...]
    ids: Words
    places: list[int]
    before: Records
    is_broken: bool = False

    @property
    def sampling(self) -> int:
        """Returns the descriptor of the sampling event."""
        return self.opened[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the counters."""
        return tuple(counter.name for counter in self.counters)

    def may_be_too_much(self) -> bool:
        """Returns whether it adds a cycle counter to a group that must fit as a whole."""
        return self.way is Way.JOINED and self.source.type == HARDWARE


@dataclass
class GroupOpener:
    """Opens groups for the threads of one session, and remembers refusals of the kernel.

    Attributes:
        hertz: samples in each second that a thread runs.
        open_one: opens the sampling event.
        kernel: opens counters.
        notify: tells the user each sentence once.
    """

    hertz: int
    open_one: Open = open_source
    kernel: Kernel = field(default_factory=Kernel)
    notify: Callable[[str], None] = lambda sentence: None
    _sources: dict[Way, tuple[Source, ...]] = field(default_factory=dict)  # starting with the first accepted one
    _refusal: dict[Way, str] = field(default_factory=dict)  # the last one
    _said: set[str] = field(default_factory=set)

    def open(self, tid: int, wanted: Wanted) -> SampleGroup:
        """Opens the best available group for a thread.

        Args:
            tid: in the monitor's PID namespace.

        Raises:
            OSError: none is available; ProcessLookupError: the thread has ended.
        """
        ways = [way for way in Way if _is_of_use(way, wanted)]
        for way in ways:
            for index, source in enumerate(self._sources.get(way, SOURCES)):
                try:
                    found = self._try(tid, wanted, way, source)
                except ProcessLookupError:
                    raise
                except OSError as error:
                    failure = error
                    self._refusal[way] = error.strerror or "unknown error"
                    continue
                self._sources.setdefault(way, SOURCES[index:])
                self._tell(found)
                return found
        raise failure

    def close(self, group: SampleGroup) -> None:
        """Closes its events; those of the pinned group stay open."""
        group.buffer.close()
        for descriptor in reversed(group.opened):
            self.kernel.close(descriptor)

    def make_way(self, group: SampleGroup) -> None:
        """The pinned group does not count with an additional cycle counter: closes it, and uses none from now on."""
        self.close(group)
        self._sources[Way.JOINED] = tuple(source for source in SOURCES if source.type != HARDWARE)
        self._refusal[Way.JOINED] = os.strerror(errno.EBUSY)
        self._restart(group.wanted)

    def _restart(self, wanted: Wanted) -> None:
        if wanted.group is not None and wanted.group.descriptors:
            with suppress(OSError):
                self.kernel.enable(wanted.group.descriptors[0])

    def _try(self, tid: int, wanted: Wanted, way: Way, source: Source) -> SampleGroup:
        pinned = wanted.group.descriptors if way is Way.JOINED and wanted.group is not None else []
        opened: list[int] = []
        try:
            placing = Placing(tid, pinned[0] if pinned else -1, way is not Way.ALONE)
            opened.append(self.open_one(source, self.hertz, placing))
            for counter in wanted.software if placing.reads else ():
                opened.append(self._open_counter(counter, tid, pinned[0] if pinned else opened[0]))
            if pinned and self._is_stuck(pinned[0]):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            return self._describe(wanted, way, source, pinned, opened)
        except BaseException:
            for descriptor in reversed(opened):
                self.kernel.close(descriptor)
            if opened and pinned and self._is_stuck(pinned[0]):
                self._restart(wanted)
            raise

    def _is_stuck(self, leader: int) -> bool:
        with suppress(OSError):
            return self.kernel.read(leader) is None
        return False

    def _describe(self, wanted: Wanted, way: Way, source: Source, pinned: list[int], opened: list[int]) -> SampleGroup:
        ids = [self.kernel.identify(event) for event in (*pinned, *opened)] if way is not Way.ALONE else []
        counters = (*(wanted.hardware if pinned else ()), *wanted.software) if ids else ()
        places = [place for place in range(len(ids)) if place != len(pinned)]
        nothing = np.empty(0, record_dtype(len(ids)))
        buffer = map_largest_ring(opened[0], PAGES)
        return SampleGroup(wanted, way, source, opened, buffer, counters, np.array(ids, np.uint64), places, nothing)

    def _open_counter(self, counter: Counter, tid: int, leader: int) -> int:
        # Include the kernel, as the monitor's own software counters do: most such events occur there.
        try:
            return self.kernel.open(replace(counter, kernel=True), counter.events[0], tid, leader)
        except PermissionError:
            return self.kernel.open(counter, counter.events[0], tid, leader)

    def _tell(self, group: SampleGroup) -> None:
        wanted = group.wanted
        if wanted.hardware and wanted.group is None:
            return  # its counters may be pending; otherwise the reason was reported
        missing = [counter.name for counter in (*wanted.hardware, *wanted.software) if counter not in group.counters]
        if missing:
            reason = self._refusal.get(Way.JOINED if wanted.group else Way.LEADING, "unknown error")
            sentence = f"Samples do not contain {', '.join(missing)}: perf_event_open says {reason}."
        elif group.names:
            sentence = f"Samples ({group.source.name}) hold {', '.join(group.names)}."
            if group.way is Way.JOINED and group.source.type != HARDWARE:
                reason = self._refusal.get(Way.JOINED, "")
                sentence = f"{sentence[:-1]}; no cycle counter is available for sampling next to these ({reason})."
        else:
            return
        if sentence not in self._said:
            self._said.add(sentence)
            self.notify(sentence)


def _is_of_use(way: Way, wanted: Wanted) -> bool:
    if way is Way.JOINED:
        return wanted.group is not None and bool(wanted.group.descriptors)
    return way is Way.ALONE or bool(wanted.software)


# ---- all threads ----------------------------------------------------------------------------------------------------


THREADS_MAX = 256  # each has a file descriptor and a buffer


@dataclass
class Counted:
    """A session's counters: the pinned groups of its threads by tid, with their counters, and software counters."""

    groups: Mapping[int, ThreadGroup] = field(default_factory=dict)
    hardware: tuple[Counter, ...] = ()
    software: tuple[Counter, ...] = ()

    def of(self, tid: int) -> Wanted:
        """Returns what the samples of a thread should contain."""
        return Wanted(self.groups.get(tid), self.hardware, self.software)


class Profiler:
    """Samples the threads of one target.

    Args:
        clock: of the session; for its tick rate.
        hertz: samples in each second that a thread runs.
        is_ours: returns whether a thread ID currently belongs to the target.
        find_counted: returns the session's current counters.
        notify: tells the user, once, what samples contain.
        open_one: opens the sampling event; replaced by tests.
        kernel: opens counters; replaced by tests.

    Attributes:
        lost: samples lost because the buffer was full.
        counted: samples whose counter increase is known.
        counters: names of those that samples contain.
        source: the sampling event; None before the first thread.
    """

    def __init__(
        self,
        clock: Clock,
        hertz: int,
        is_ours: Callable[[int], bool],
        find_counted: Callable[[], Counted] = Counted,
        notify: Callable[[str], None] = lambda sentence: None,
        open_one: Open = open_source,
        kernel: Kernel | None = None,
    ) -> None:
        self.lost = self.taken = self.counted = 0
        self.counters: list[str] = []
        self.source: Source | None = None
        self._clock = RawClock(clock)
        self._find_counted, self._is_ours = find_counted, is_ours
        self._opener = GroupOpener(hertz, open_one, kernel or Kernel(), notify)
        self._groups: dict[int, SampleGroup] = {}

    def watch(self, tids: Iterable[int]) -> None:
        """Starts sampling threads, and restarts those whose counters changed; ended threads are not restarted.

        Args:
            tids: in the monitor's PID namespace.

        Raises:
            NfprobeError: the kernel does not permit it.
        """
        counted = self._find_counted()
        for tid in tids:
            wanted, group = counted.of(tid), self._groups.get(tid)
            if group is not None and group.wanted == wanted:
                continue
            if group is None and len(self._groups) >= THREADS_MAX:
                continue
            self._end(tid)
            self._begin(tid, wanted)

    def end_gone(self) -> None:
        """Removes ended threads; a new thread that reuses an ID is a different thread."""
        ended = set(find_ended([group.sampling for group in self._groups.values()]))
        for tid in [tid for tid, group in self._groups.items() if group.sampling in ended]:
            self._end(tid)

    def relieve(self, tid: int) -> bool:
        """The counters of a thread do not fit: removes its cycle counter for sampling; False: it has none there."""
        group = self._groups.get(tid)
        if group is None or not group.may_be_too_much():
            return False
        self._opener.make_way(self._groups.pop(tid))
        return True

    def read(self, indexes: Mapping[int, int]) -> list[CountedSamples]:
        """Returns the samples since the last call.

        Args:
            indexes: of threads in the thread table, by tid in the monitor's PID namespace; others are left out.

        Returns:
            for each set of counters the samples that contain them, those of one thread in order.
        """
        found: dict[tuple[str, ...], list[tuple[Rows, Words]]] = {}
        for tid, group in self._groups.items():
            taken = split_records(take_records(group.buffer), len(group.ids))
            self.lost += taken.lost
            counts = _count(group, taken)
            if len(taken.records) and tid in indexes:
                rows = self._describe(taken.records, indexes[tid], group.source)
                found.setdefault(group.names, []).append((rows, counts))
                self._sum_up(group, counts)
        return [
            CountedSamples(
                np.concatenate([rows for rows, _ in parts]),
                SampleCounts(names, np.concatenate([counts for _, counts in parts], axis=1)),
            )
            for names, parts in found.items()
        ]

    def close(self) -> None:
        """Stops sampling all threads."""
        for tid in list(self._groups):
            self._end(tid)

    def _begin(self, tid: int, wanted: Wanted) -> None:
        try:
            group = self._groups[tid] = self._opener.open(tid, wanted)
        except ProcessLookupError:
            return
        except OSError as error:
            reason = error.strerror or "unknown error"
            raise NfprobeError(f"Profiling failed: perf_event_open says {reason}.", "nfprobe doctor") from None
        if not self._is_ours(tid):  # it ended, and another process reused its thread ID
            self._end(tid)
            return
        self.source = group.source

    def _end(self, tid: int) -> None:
        if tid in self._groups:
            self._opener.close(self._groups.pop(tid))

    def _sum_up(self, group: SampleGroup, counts: Words) -> None:
        self.taken += counts.shape[1]
        self.counted += int(is_known(counts).any(axis=0).sum())
        self.counters += [name for name in group.names if name not in self.counters]

    def _describe(self, records: Records, index: int, source: Source) -> Rows:
        rows = np.zeros(len(records), SAMPLE)
        rows["ticks"] = self._clock.ticks(records["time_ns"])
        rows["address"], rows["cpu"] = records["address"], records["cpu"]
        rows["thread"] = index
        rows["period"] = np.minimum(records["period"], 0xFFFFFFFF)
        flags: NDArray[np.int64] = np.where(records["misc"] & EXACT, SampleFlag.PRECISE, 0)
        flags |= np.where((records["misc"] & MODE) == IN_KERNEL, SampleFlag.IN_KERNEL, 0)
        if source.type == HARDWARE:
            flags |= SampleFlag.HARDWARE
        rows["flags"] = flags
        return rows


def _count(group: SampleGroup, taken: Taken) -> Words:
    """Returns the group's counter increases before each sample, scaled according to their names."""
    records, breaks, _ = taken
    if group.is_broken:
        breaks = np.append(breaks, 0)
    if not len(records) or not group.counters:
        group.is_broken = bool(len(breaks))
        return np.empty((len(group.counters), len(records)), np.uint64)
    group.is_broken = bool(np.any(breaks == len(records)))
    found = find_increases(records, group.before, breaks, group.ids)[group.places]
    group.before = records[-1:].copy()
    scales = np.array([[counter.scale] for counter in group.counters], np.uint64)
    return np.where(is_known(found), found * scales, found)
