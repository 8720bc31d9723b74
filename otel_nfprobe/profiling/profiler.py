# SPDX-License-Identifier: Apache-2.0
"""The profiler: has the kernel note where each thread of the target is, so many times a second of its running.

One perf event per thread: the processor's cycle counter with the most precise addresses that it gives (PEBS, IBS), or,
where there is no such counter, the software event cpu-clock. In a group with it stand the session's counters
(samplegroup.py), whose values each sample holds. Nothing in the target changes. Each record says whether its address
is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.counters.threads import ThreadGroup
from otel_nfprobe.linux.perfring import find_ended, take_records
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.profiling.samplecounts import CountedSamples, SampleCounts, Words, is_known
from otel_nfprobe.profiling.samplegroup import GroupOpener, SampleGroup, Wanted
from otel_nfprobe.profiling.samplerecords import EXACT, IN_KERNEL, MODE, Records, Taken, find_increases, split_records
from otel_nfprobe.profiling.samples import SAMPLE, SampleFlag
from otel_nfprobe.profiling.samplesource import HARDWARE, Open, Source, open_source

THREADS_MAX = 256  # each has a file descriptor and a buffer


@dataclass
class Counted:
    """What a session counts: the pinned groups of its threads by tid, with their counters, and software counters."""

    groups: Mapping[int, ThreadGroup] = field(default_factory=dict)
    hardware: tuple[Counter, ...] = ()
    software: tuple[Counter, ...] = ()

    def of(self, tid: int) -> Wanted:
        """What the samples of a thread should hold."""
        return Wanted(self.groups.get(tid), self.hardware, self.software)


class Profiler:
    """The samples of the threads of one target.

    Args:
        clock: of the session; for its rate.
        hertz: samples in each second that a thread runs.
        is_ours: whether a number is that of a thread of the target at this moment.
        find_counted: what the session counts at this moment.
        say: tells a person, once, what samples hold.
        open_one: opens the event that samples; tests put another one here.
        kernel: opens counters; the same.

    Attributes:
        lost: samples that found their buffer full.
        counted: samples of which it is known what the thread counted before.
        counters: names of those that samples hold.
        source: what makes the kernel look; None before the first thread.
    """

    def __init__(
        self,
        clock: Clock,
        hertz: int,
        is_ours: Callable[[int], bool],
        find_counted: Callable[[], Counted] = Counted,
        say: Callable[[str], None] = lambda sentence: None,
        open_one: Open = open_source,
        kernel: Kernel | None = None,
    ) -> None:
        self.lost = self.taken = self.counted = 0
        self.counters: list[str] = []
        self.source: Source | None = None
        self._clock = RawClock(clock)
        self._find_counted, self._is_ours = find_counted, is_ours
        self._opener = GroupOpener(hertz, open_one, kernel or Kernel(), say)
        self._groups: dict[int, SampleGroup] = {}

    def watch(self, tids: Iterable[int]) -> None:
        """Begins with threads, and again with those that are counted otherwise than before; not with ended ones.

        Args:
            tids: as the monitor sees them.

        Raises:
            NfprobeError: the kernel does not allow it.
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
        """Ends with the threads that are gone; one that has got the number of such a thread is another one."""
        ended = set(find_ended([group.sampling for group in self._groups.values()]))
        for tid in [tid for tid, group in self._groups.items() if group.sampling in ended]:
            self._end(tid)

    def relieve(self, tid: int) -> bool:
        """The counters of a thread do not fit: takes the cycle counter out that samples; False: it has none there."""
        group = self._groups.get(tid)
        if group is None or not group.may_be_too_much():
            return False
        self._opener.make_way(self._groups.pop(tid))
        return True

    def read(self, indexes: Mapping[int, int]) -> list[CountedSamples]:
        """What was seen since the last call.

        Args:
            indexes: of threads in the thread table, by tid as the monitor sees it; others are left out.

        Returns:
            for each set of counters the samples that hold them, those of one thread in order.
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
        """Ends with all threads."""
        for tid in list(self._groups):
            self._end(tid)

    def _begin(self, tid: int, wanted: Wanted) -> None:
        try:
            group = self._groups[tid] = self._opener.open(tid, wanted)
        except ProcessLookupError:
            return
        except OSError as error:
            reason = error.strerror or "unknown error"
            raise NfprobeError(f"There is no profile: perf_event_open says {reason}.", "nfprobe doctor") from None
        if not self._is_ours(tid):  # it has ended, and another process has its number
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
    """What the group's counters counted before each sample, multiplied as their names say."""
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
