# SPDX-License-Identifier: Apache-2.0
"""Short sends: transmit calls that took fewer packets than they were handed, because a queue was full. Pure.

The record of a transmit call has both numbers. What it left is offered again by the program, or freed: a call of the
same function that follows at once in the same batch, and is handed as many packets as were left, offers them again, and
only what the last of such calls leaves is dropped.

Short calls that follow each other are one row: so many packets, from the entry of the first to the exit of the last.
Columns in, rows of dtype QUEUE_DROP out; explained by drop_causes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, CallFlag, Columns, Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.linux.queue_counters import Queue, QueueKind
from otel_nfprobe.pipeline.queue_drops import make_row, no_queue_drops

GAP_S = 0.005  # between two short calls of one row, at most
LONGEST_S = 1.0  # of a row
LATE_S = 0.2  # columns of a thread may come so long after those of others
OFFERED_MAX = 0xFFFF  # packets of a call: more cannot be
_COUNT_BITS = np.uint64(32)  # of the packets taken, in the value of a call; above them: handed to it
_LOW = np.uint64(0xFFFFFFFF)


def select_sends(calls: Rows, functions: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Returns the rows of calls of these functions that hand on packets and say how many, in the order of their start.

    Not those inside another one, such as a driver's below a bonded port: these are the same packets.
    """
    wanted = CallFlag.VALUE | CallFlag.TRANSMIT
    rows = np.flatnonzero((calls["flags"] & (wanted | CallFlag.CONTINUED)) == wanted)
    is_send = (calls["value"][rows] >> _COUNT_BITS <= OFFERED_MAX) & np.isin(calls["function"][rows], functions)
    rows = rows[is_send]
    above = calls["parent"][rows].astype(np.int64)
    while (has_parent := above < len(calls)).any():
        parent = np.where(has_parent, above, 0)
        outermost = ~has_parent | ((calls["flags"][parent] & CallFlag.TRANSMIT) == 0)
        rows, parent, has_parent = rows[outermost], parent[outermost], has_parent[outermost]
        further = calls["parent"][parent].astype(np.int64)
        # A parent stands before its children: another one is of a damaged recording.
        above = np.where(has_parent & (further < parent), further, NONE)
    ordered: NDArray[np.intp] = rows[np.argsort(calls["start_ticks"][rows], kind="stable")]
    return ordered


def count_taken(calls: Rows) -> NDArray[np.int64]:
    """Returns how many packets each of these calls took."""
    taken: NDArray[np.int64] = (calls["value"] & _LOW).astype(np.int64)
    return taken


def count_left(calls: Rows, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Returns how many packets each of a function's calls has left to be freed.

    Args:
        rows: of calls of one thread and function, in the order of their start.
    """
    of = calls[rows]
    offered, taken = (of["value"] >> _COUNT_BITS).astype(np.int64), count_taken(of)
    left: NDArray[np.int64] = np.maximum(offered - taken, 0)
    # A parent stands before its children, so behind a call come the calls in it, and then what followed it.
    between = np.maximum(rows[1:] - 1, 0)
    follows = calls["start_ticks"][between] <= of["end_ticks"][:-1]
    is_again = (left[:-1] > 0) & (offered[1:] == left[:-1]) & (of["batch"][1:] == of["batch"][:-1]) & follows
    left[:-1][is_again] = 0
    return left


@dataclass
class _Row:
    # In the making.
    since: int
    until: int
    packets: int


class ShortSends:
    """Finds the rows of one session, drain by drain.

    Args:
        ticks_per_second: of its clock.
    """

    def __init__(self, ticks_per_second: float) -> None:
        self._names: dict[int, str] = {}
        self._functions = np.zeros(0, np.uint32)
        self._gap, self._longest, self._late = (round(s * ticks_per_second) for s in (GAP_S, LONGEST_S, LATE_S))
        self._open: dict[tuple[int, int], _Row] = {}  # by thread and function
        self._latest = 0

    def learn(self, names: Mapping[int, str]) -> None:
        """Adds transmit functions whose calls say what they were handed, by their IDs."""
        self._names.update(names)
        self._functions = np.array(sorted(self._names), np.uint32)

    def add(self, columns: Columns) -> Rows:
        """Adds drained columns; returns the rows that have ended."""
        calls = columns.calls
        if len(calls):
            self._latest = max(self._latest, int(calls["end_ticks"].max()))
        ended: list[Rows] = []
        if len(self._functions) and len(calls):
            rows = select_sends(calls, self._functions)
            keys = calls["thread"][rows].astype(np.uint64) << _COUNT_BITS | calls["function"][rows]
            for key in distinct(keys).tolist():
                of = rows[keys == key]
                left = count_left(calls, of)
                if left.any():
                    ended += self._add(key, calls[of[left > 0]], left[left > 0])
        ended += self._end([key for key, row in self._open.items() if row.until + self._late < self._latest])
        return np.concatenate(ended) if ended else no_queue_drops()

    def finish(self) -> Rows:
        """Returns the last rows."""
        ended = self._end(list(self._open))
        return np.concatenate(ended) if ended else no_queue_drops()

    def _add(self, key: int, calls: Rows, left: NDArray[np.int64]) -> list[Rows]:
        """Adds short calls of one thread and function; returns the rows that they end."""
        place = key >> 32, key & 0xFFFFFFFF
        starts, ends = calls["start_ticks"].astype(np.int64), calls["end_ticks"].astype(np.int64)
        turns = (starts - starts[0]) // self._longest
        firsts = np.flatnonzero(np.append(True, (starts[1:] - ends[:-1] > self._gap) | (np.diff(turns) > 0)))
        counts = np.add.reduceat(left, firsts)
        lasts = np.append(firsts[1:], len(starts)) - 1
        ended: list[Rows] = []
        for since, until, packets in zip(starts[firsts].tolist(), ends[lasts].tolist(), counts.tolist(), strict=True):
            row = self._open.get(place)
            if row is not None and (since - row.until > self._gap or until - row.since > self._longest):
                ended += self._end([place])
                row = None
            if row is None:
                self._open[place] = _Row(since, until, packets)
            else:
                row.since, row.until = min(row.since, since), max(row.until, until)
                row.packets += packets
        return ended

    def _end(self, places: list[tuple[int, int]]) -> list[Rows]:
        ended = []
        for thread, function in places:
            row = self._open.pop((thread, function))
            queue = Queue(QueueKind.TRANSMIT, function, f"transmit {self._names[function]}")
            since = max(row.since, 0)  # a target may write any time
            ended.append(make_row(queue, (since, max(row.until, since)), row.packets, thread))
        return ended
