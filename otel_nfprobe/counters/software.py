# SPDX-License-Identifier: Apache-2.0
"""Software counters: what the kernel counts for each thread, read by the monitor at intervals and never in a probe."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.shm.threadtable import Claim

INTERVAL_S = 0.1


@dataclass
class _Thread:
    descriptors: list[int]
    last: list[int]
    start_ticks: int


@dataclass
class SoftwareCounters:
    """The software counters of all threads of one session.

    Attributes:
        counters: what is counted.
        notify: tells a person, once for each reason.
    """

    counters: tuple[Counter, ...]
    notify: Callable[[str], None]
    kernel: Kernel = field(default_factory=Kernel)
    _threads: dict[int, _Thread] = field(default_factory=dict)  # by thread ID
    _totals: dict[int, list[int]] = field(default_factory=dict)  # including ended threads
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
        """Adds up what every thread has counted since it was read last."""
        for tid, thread in self._threads.items():
            self._read_one(tid, thread)

    def _read_one(self, tid: int, thread: _Thread) -> None:
        if not thread.descriptors:
            return
        values = [(self.kernel.read(descriptor) or (0, 0, 0))[0] for descriptor in thread.descriptors]
        counts = [value - last for value, last in zip(values, thread.last, strict=True)]
        total = self._totals.setdefault(tid, [0] * len(counts))
        self._totals[tid] = [before + count for before, count in zip(total, counts, strict=True)]
        thread.last = values

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
        self._said.clear()

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
        thread = _Thread([], [0] * len(self.counters), claim.start_ticks)
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
            self.notify(f"{reason}.")

    def _end(self, tid: int) -> None:
        self._close(self._threads.pop(tid))

    def _close(self, thread: _Thread) -> None:
        for descriptor in thread.descriptors:
            with suppress(OSError):
                self.kernel.close(descriptor)
        thread.descriptors = []
