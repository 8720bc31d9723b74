# SPDX-License-Identifier: Apache-2.0
"""The thread table of a session, read as arrays: each access copies the entries in use once.

The target writes it, so every access may find anything; the kernel decides which IDs are its threads (threadids.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import Rows, copy_rows
from otel_nfprobe.shm.threadcounts import COUNT_MAX, LateCounts, ThreadCounts
from otel_nfprobe.shm.threadids import ThreadIds

COUNTED = ("empty_polls", "empty_ticks", "batches", "received_packets", "transmit_calls", "transmitted_packets",
           "refused_packets", "dropped_packets", "punted_packets", "handed_over_packets",
           "taken_over_packets", "timed_ticks")  # fmt: skip
COUNTED_LATE = ("identified_packets", "unplaced_packets", "unheld_packets", "checked_packets", "differing_packets",
                "copying")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claim:
    """A thread that has an entry, and belonged to the target when checked; `tid` is the monitor's."""

    index: int
    tid: int
    start_ticks: int


@dataclass(frozen=True)
class Claims:
    """The entries in use.

    Attributes:
        index: in the thread table.
        tid: in the target's PID namespace.
        start_ticks: when the entry was claimed.
        has_counters: whether its thread has counted packets or polls.
    """

    index: NDArray[np.intp]
    tid: NDArray[np.uint32]
    start_ticks: NDArray[np.uint64]
    has_counters: NDArray[np.bool_]

    def are_outdated(self) -> NDArray[np.bool_]:
        """Returns whose thread ID was reused by a younger thread; same shape."""
        order = np.lexsort((self.start_ticks, self.tid))
        tids, starts = self.tid[order], self.start_ticks[order]
        has_next = tids[1:] == tids[:-1]
        outdated = np.zeros(len(order), np.bool_)
        outdated[order[:-1]] = has_next & (starts[1:] != starts[:-1])
        return outdated

    def were_in(self, before: Claims) -> NDArray[np.bool_]:
        """Returns which of these claims already existed in `before`, with the same thread and start; same shape."""
        if not len(before.index):
            return np.zeros(len(self.index), np.bool_)
        place = np.minimum(np.searchsorted(before.index, self.index), len(before.index) - 1)
        same: NDArray[np.bool_] = before.index[place] == self.index
        same &= (before.tid[place] == self.tid) & (before.start_ticks[place] == self.start_ticks)
        return same


class ThreadTable:
    """The thread table.

    Args:
        rows: all its entries (THREAD), in memory writable by the target.
        ids: of the target's threads.
        header: of the session.
    """

    def __init__(self, rows: Rows, ids: ThreadIds, header: Any) -> None:
        self._rows = rows
        self._header = header
        self.ids = ids
        self._outer = np.zeros(len(rows), np.uint32)  # the monitor's thread IDs last known, by entry ...
        self._outer_of = np.zeros(len(rows), [("tid", "<u4"), ("start", "<u8")])  # ... and their claims

    @property
    def used(self) -> int:
        """Number of entries ever used, the first ones."""
        return min(int(self._header.threads), len(self._rows))

    def read(self) -> Rows:
        """Returns a copy of the entries ever used."""
        return copy_rows(self._rows[: self.used])

    def counts(self) -> list[ThreadCounts]:
        """Returns the counters of the threads that have written in this session."""
        rows = self.read()
        indexes = np.flatnonzero(rows["tid"])
        rows = rows[indexes]
        columns = [np.minimum(rows[name], COUNT_MAX).tolist() for name in COUNTED]
        lost = map(tuple, np.minimum(rows["lost"], COUNT_MAX).tolist())
        outer = self._find_outer(indexes, rows).tolist()
        starts = rows["start_ticks"].tolist()
        return [ThreadCounts(*row) for row in zip(indexes.tolist(), outer, *columns, lost, starts, strict=True)]

    def late_counts(self) -> list[LateCounts]:
        """Returns the threads' counts of late capture, where not every packet is identified."""
        rows = self.read()
        indexes = np.flatnonzero(rows["tid"])
        rows = rows[indexes]
        columns = [np.minimum(rows[name], COUNT_MAX).tolist() for name in COUNTED_LATE]
        return [LateCounts(*row) for row in zip(indexes.tolist(), *columns, strict=True)]

    def packet_balance(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns packets received by each thread, and transmitted or dropped by it; called often."""
        names = ("received", "taken_over", "handed_over", "transmitted", "dropped", "punted")
        rows = self._rows[: self.used]
        columns = (rows[f"{name}_packets"] for name in names)
        received, taken, put, *handed_on = (np.minimum(column, COUNT_MAX).astype(np.int64) for column in columns)
        if put.any():  # where drops and transmits are seen, a packet's receiver is always known
            received = received + taken
        return received, sum(handed_on, put)

    def copying(self) -> dict[int, int]:
        """Returns how many bytes of each packet threads copy before each call, by their entries; called often."""
        column = self._rows["copying"][: self.used]
        return {int(index): min(int(column[index]), COUNT_MAX) for index in np.flatnonzero(column)}

    def claims(self) -> Claims:
        """Returns the entries that threads have claimed and that are not released."""
        # Read starts first: a thread ID is written before its start (partner: describe in native/probe/thread.c).
        starts = self._rows["start_ticks"][: self.used].copy()
        rows = copy_rows(self._rows[: len(starts)])
        is_used = (rows["state"] == lib.NFP_THREAD_USED) & (starts != 0) & (starts == rows["start_ticks"])
        indexes = np.flatnonzero(is_used)
        rows = rows[indexes]
        has_counters = np.zeros(len(rows), np.bool_)
        for name in ("empty_polls", "batches", "transmit_calls", "dropped_packets", "punted_packets"):
            has_counters |= rows[name] != 0
        return Claims(indexes, rows["tid"], rows["start_ticks"], has_counters)

    def living(self) -> list[Claim]:
        """Returns the threads that have an entry and exist, according to the kernel: for a duplicate ID, the latest
        entry.
        """
        claims = self.claims()
        wanted = ~claims.are_outdated()
        indexes, inner, starts = claims.index[wanted], claims.tid[wanted], claims.start_ticks[wanted]
        outer = self.ids.outer(inner)
        there = ~self.ids.are_gone(outer)
        self._remember(indexes[there], inner[there], starts[there], outer[there])
        found = zip(indexes[there].tolist(), outer[there].tolist(), starts[there].tolist(), strict=True)
        return [Claim(*each) for each in found]

    def by_tid(self) -> dict[int, int]:
        """Returns entries by the monitor's IDs of their threads, including ended ones: for each ID, the latest."""
        rows = self.read()
        indexes = np.flatnonzero(rows["tid"])
        indexes = indexes[np.argsort(rows["start_ticks"][indexes], kind="stable")]
        outer = self._find_outer(indexes, rows[indexes])
        return {tid: index for tid, index in zip(outer.tolist(), indexes.tolist(), strict=True) if tid}

    def _find_outer(self, indexes: NDArray[np.intp], rows: Rows) -> NDArray[np.uint32]:
        """Returns the monitor's thread IDs; for an ended thread, the last known one."""
        outer = self.ids.outer(rows["tid"])
        if outer is rows["tid"] or np.array_equal(outer, rows["tid"]):
            return outer
        known = self._outer_of[indexes]
        same = (known["tid"] == rows["tid"]) & ((known["start"] == rows["start_ticks"]) | (rows["start_ticks"] == 0))
        fresh = (outer != 0) & ~same
        self._remember(indexes[fresh], rows["tid"][fresh], rows["start_ticks"][fresh], outer[fresh])
        return np.where((outer == 0) & same, self._outer[indexes], outer).astype(np.uint32)

    def _remember(
        self,
        indexes: NDArray[np.intp],
        inner: NDArray[np.uint32],
        starts: NDArray[np.uint64],
        outer: NDArray[np.uint32],
    ) -> None:
        self._outer[indexes] = outer
        self._outer_of["tid"][indexes], self._outer_of["start"][indexes] = inner, starts
