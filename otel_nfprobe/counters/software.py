# SPDX-License-Identifier: Apache-2.0
"""Software counters: counted by the kernel for each thread, read by the monitor at intervals and never in a probe.

An interval is joined by time to the calls and batches that ran in it: it is only known that the events happened then,
on that thread.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.shm.threadtable import Claim

INTERVAL_S = 0.1
INTERVALS_MAX = 100_000  # older ones are dropped, their sums are kept
SOFTWARE_MAX = 16

INTERVAL = np.dtype(
    [
        ("thread", "<u4"),
        ("tid", "<u4"),
        ("start_ticks", "<u8"),
        ("end_ticks", "<u8"),
        ("counts", "<u8", (SOFTWARE_MAX,)),
    ]
)


@dataclass
class _Thread:
    index: int
    descriptors: list[int]
    last: list[int]
    read_ticks: int
    start_ticks: int


@dataclass
class SoftwareCounters:
    """The software counters of all threads of one session.

    Attributes:
        counters: what is counted.
        ticks: reads the timestamp counter.
        say: reports to the user, once per reason.
    """

    counters: tuple[Counter, ...]
    ticks: Callable[[], int]
    say: Callable[[str], None]
    kernel: Kernel = field(default_factory=Kernel)
    _threads: dict[int, _Thread] = field(default_factory=dict)  # by thread ID
    _totals: dict[int, list[int]] = field(default_factory=dict)  # including ended threads
    _rows: list[tuple[int, int, int, int, list[int]]] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)
    _due_at: float = 0.0
    _before: list[dict[str, int]] = field(default_factory=list)  # totals of counters used before a change

    def follow(self, claims: Iterable[Claim], is_ours: Callable[[int], bool]) -> None:
        """Reads what is due; starts new threads and ends those that are gone.

        Args:
            claims: of the living threads.
            is_ours: whether a thread ID belongs to the target at this moment.
        """
        if not self.counters:
            return
        living = {claim.tid: claim for claim in claims}
        for tid, thread in list(self._threads.items()):
            if tid not in living or living[tid].start_ticks != thread.start_ticks:
                self._read_one(tid, thread)
                self._end(tid)
        for tid in living.keys() - self._threads.keys():
            self._threads[tid] = self._begin(living[tid])
            if not is_ours(tid):  # it has ended, and its thread ID was reused by another process
                self._end(tid)
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + INTERVAL_S
            self.read()

    def read(self) -> None:
        """Ends the interval of every thread and starts the next."""
        for tid, thread in self._threads.items():
            self._read_one(tid, thread)
        del self._rows[:-INTERVALS_MAX]

    def _read_one(self, tid: int, thread: _Thread) -> None:
        if not thread.descriptors:
            return
        values = [(self.kernel.read(descriptor) or (0, 0, 0))[0] for descriptor in thread.descriptors]
        now = self.ticks()
        counts = [value - last for value, last in zip(values, thread.last, strict=True)]
        self._rows.append((thread.index, tid, thread.read_ticks, now, counts))
        total = self._totals.setdefault(tid, [0] * len(counts))
        self._totals[tid] = [before + count for before, count in zip(total, counts, strict=True)]
        thread.last, thread.read_ticks = values, now

    def close(self) -> None:
        """Reads once more and closes the counters of all threads."""
        if self.counters:
            self.read()
        for tid in list(self._threads):
            self._end(tid)

    def begin_anew(self, counters: tuple[Counter, ...]) -> None:
        """Switches to these counters; the counts of the previous ones stay in the totals."""
        self.close()
        self._before = self.totals()
        self.counters = counters
        self._totals.clear()
        self._rows.clear()
        self._said.clear()

    def intervals(self) -> Rows:
        """Returns all intervals kept, dtype INTERVAL, in the order of their ends."""
        rows = np.zeros(len(self._rows), INTERVAL)
        for place, (index, tid, start, end, counts) in enumerate(self._rows):
            rows[place] = index, tid, start, end, counts + [0] * (SOFTWARE_MAX - len(counts))
        return rows

    def totals(self) -> list[dict[str, int]]:
        """Returns the total counts of each thread, with its `tid`."""
        names = [counter.name for counter in self.counters]
        found = {entry["tid"]: dict(entry) for entry in self._before}
        for tid, sums in self._totals.items():
            entry = found.setdefault(tid, {"tid": tid})
            for name, count in zip(names, sums, strict=True):
                entry[name] = entry.get(name, 0) + count
        return [found[tid] for tid in sorted(found)]

    def _begin(self, claim: Claim) -> _Thread:
        thread = _Thread(claim.index, [], [0] * len(self.counters), self.ticks(), claim.start_ticks)
        try:
            for counter in self.counters:
                thread.descriptors.append(self._open(counter, claim.tid))
        except OSError as error:
            self._close(thread)
            if not isinstance(error, ProcessLookupError):
                self._tell(f"software counters of threads: {error.strerror}")
        return thread

    def _open(self, counter: Counter, tid: int) -> int:
        # Context switches and migrations happen in the kernel: without kernel mode there are none.
        try:
            return self.kernel.open(replace(counter, kernel=True), counter.events[0], tid, disabled=False)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            self._tell(f"{counter.name} is counted in user mode only (kernel.perf_event_paranoid is above 1)")
            return self.kernel.open(counter, counter.events[0], tid, disabled=False)

    def _tell(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self.say(f"{reason}.")

    def _end(self, tid: int) -> None:
        self._close(self._threads.pop(tid))

    def _close(self, thread: _Thread) -> None:
        for descriptor in thread.descriptors:
            with suppress(OSError):
                self.kernel.close(descriptor)
        thread.descriptors = []


def counts_during(intervals: Rows, rows: Rows, count: int) -> NDArray[np.uint64]:
    """Returns the counts of the intervals that each call or batch overlaps: an upper bound of its own events.

    Args:
        intervals: dtype INTERVAL, those of one thread in order.
        rows: with `thread`, `start_ticks` and `end_ticks`.
        count: number of counters.

    Returns:
        shape (len(rows), count).
    """
    found = np.zeros((len(rows), count), np.uint64)
    for thread in np.unique(rows["thread"]):
        own = intervals[intervals["thread"] == thread]
        mine = np.flatnonzero(rows["thread"] == thread)
        if not len(own):
            continue
        sums = np.concatenate((np.zeros((1, count), np.uint64), np.cumsum(own["counts"][:, :count], axis=0)))
        first = np.searchsorted(own["end_ticks"], rows["start_ticks"][mine], side="right")
        last = np.searchsorted(own["start_ticks"], rows["end_ticks"][mine], side="right")
        found[mine] = sums[np.maximum(last, first)] - sums[first]
    return found
