# SPDX-License-Identifier: Apache-2.0
"""The group of events that one thread is sampled with: what samples it, and the counters whose values samples hold.

    joined    the thread's pinned group, which probes read; in it the event that samples, and software counters
    leading   the event that samples, behind it software counters
    alone     the event that samples; its samples hold no values

In the pinned group nothing competes for the processor's counters. The event that samples is the most precise that the
kernel takes there; a cycle counter that does not fit would keep the whole group from counting, so it gives way to the
kernel's clock.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.counters.threads import ThreadGroup
from otel_nfprobe.linux.perfring import map_largest_ring
from otel_nfprobe.profiling.samplecounts import Words
from otel_nfprobe.profiling.samplerecords import Records, record_dtype
from otel_nfprobe.profiling.samplesource import HARDWARE, SOURCES, Open, Placing, Source, open_source

PAGES = (64, 16, 2)  # of a buffer; users without rights may lock little memory


class Wanted(NamedTuple):
    """What the samples of one thread should hold.

    Attributes:
        group: the thread's pinned group; None: it has none.
        hardware: the counters of such groups.
        software: counters of the kernel.
    """

    group: ThreadGroup | None = None
    hardware: tuple[Counter, ...] = ()
    software: tuple[Counter, ...] = ()


class Way(Enum):
    """How a thread is sampled, the best first."""

    JOINED = "joined"
    LEADING = "leading"
    ALONE = "alone"


@dataclass
class SampleGroup:
    """One thread's events that are open for its samples.

    Attributes:
        counters: of the values, in the group's order.
        ids: of all events of the group, the one that samples among them.
        places: of the counters among these.
        before: its last sample.
        is_broken: whether something is missing behind that.
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
        """The descriptor of the event that samples."""
        return self.opened[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the counters."""
        return tuple(counter.name for counter in self.counters)

    def may_be_too_much(self) -> bool:
        """Whether it is a cycle counter more in a group that has to fit as a whole."""
        return self.way is Way.JOINED and self.source.type == HARDWARE


@dataclass
class GroupOpener:
    """Opens groups for the threads of one session, and remembers what the kernel refused.

    Attributes:
        hertz: samples in each second that a thread runs.
        open_one: opens the event that samples.
        kernel: opens counters.
        say: tells a person, once for each sentence.
    """

    hertz: int
    open_one: Open = open_source
    kernel: Kernel = field(default_factory=Kernel)
    say: Callable[[str], None] = lambda sentence: None
    _sources: dict[Way, tuple[Source, ...]] = field(default_factory=dict)  # from the first that was taken on
    _refusal: dict[Way, str] = field(default_factory=dict)  # the last one
    _said: set[str] = field(default_factory=set)

    def open(self, tid: int, wanted: Wanted) -> SampleGroup:
        """The best group that can be had for a thread.

        Args:
            tid: as the monitor sees it.

        Raises:
            OSError: none; ProcessLookupError: the thread has ended.
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
        """Gives its events back; those of the pinned group stay."""
        group.buffer.close()
        for descriptor in reversed(group.opened):
            self.kernel.close(descriptor)

    def make_way(self, group: SampleGroup) -> None:
        """The pinned group does not count with a cycle counter more: closes it, and joins with none from now on."""
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
        # As the monitor's own software counters: most of what they count happens in the kernel.
        try:
            return self.kernel.open(replace(counter, kernel=True), counter.events[0], tid, leader)
        except PermissionError:
            return self.kernel.open(counter, counter.events[0], tid, leader)

    def _tell(self, group: SampleGroup) -> None:
        wanted = group.wanted
        if wanted.hardware and wanted.group is None:
            return  # its counters may be on their way, and else it was said why
        missing = [counter.name for counter in (*wanted.hardware, *wanted.software) if counter not in group.counters]
        if missing:
            reason = self._refusal.get(Way.JOINED if wanted.group else Way.LEADING, "unknown error")
            sentence = f"Samples do not hold {', '.join(missing)}: perf_event_open says {reason}."
        elif group.names:
            sentence = f"Samples ({group.source.name}) hold {', '.join(group.names)}."
            if group.way is Way.JOINED and group.source.type != HARDWARE:
                reason = self._refusal.get(Way.JOINED, "")
                sentence = f"{sentence[:-1]}; beside these no cycle counter samples ({reason})."
        else:
            return
        if sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)


def _is_of_use(way: Way, wanted: Wanted) -> bool:
    if way is Way.JOINED:
        return wanted.group is not None and bool(wanted.group.descriptors)
    return way is Way.ALONE or bool(wanted.software)
