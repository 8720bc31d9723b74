# SPDX-License-Identifier: Apache-2.0
"""Slices: a recording cut into up to 64 equal times, and what each function did in each of them. Columns in.

How much a function's time differs from slice to slice is what chance makes of it; diff.py compares that with the
difference between two recordings. What probes cost, and the time in which the scheduler kept the thread from
running, is taken off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import CallFlag, Columns, Rows
from otel_nfprobe.pipeline.context_switches import Absences, overlap_ticks

SLICES_MAX = 64
FIRST_WIDTH_TICKS = 1 << 16

Table = NDArray[np.float64]


class TimeSlices:
    """Sums by time slice, in bounded memory: the slices grow twice as long whenever there are too many.

    Args:
        costs: what a probed call of each function costs by itself (dtype COST), by function id.
        switches: of the whole recording, dtype SWITCH.

    Attributes:
        calls, own_ticks, total_ticks: of each function, shape (functions, SLICES_MAX).
        packets, batches: that were received, shape (SLICES_MAX,).
        width_ticks: of a slice.
    """

    def __init__(self, costs: Rows, switches: Rows) -> None:
        self._inside = costs["inside_ticks"].astype(np.float64)
        self._around = np.maximum(costs["whole_ticks"].astype(np.float64) - self._inside, 0)
        self._away = Absences(switches)
        self._begin: int | None = None
        self.width_ticks = FIRST_WIDTH_TICKS
        self.calls, self.own_ticks, self.total_ticks = (np.zeros((len(costs), SLICES_MAX)) for _ in range(3))
        self.packets, self.batches = np.zeros(SLICES_MAX), np.zeros(SLICES_MAX)

    def add(self, columns: Columns) -> None:
        """Adds one take."""
        calls, batches = columns.calls, columns.batches
        starts = [rows["start_ticks"] for rows in (calls, batches) if len(rows)]
        if not starts:
            return
        if self._begin is None:
            self._begin = min(int(ticks.min()) for ticks in starts)
        self._make_room(max(int(ticks.max()) for ticks in starts))
        at = self._find(batches["start_ticks"])
        self.packets += np.bincount(at, batches["size"], SLICES_MAX)
        self.batches += np.bincount(at, None, SLICES_MAX)
        self._add_calls(calls)

    def used(self) -> int:
        """How many slices hold anything."""
        filled = np.flatnonzero(self.batches + self.calls.sum(axis=0))
        return int(filled[-1]) + 1 if len(filled) else 0

    def _add_calls(self, calls: Rows) -> None:
        function = calls["function"].astype(np.int64)
        known = (function < len(self.calls)) & ((calls["flags"] & CallFlag.MARK) == 0)
        ran, own = self._time_calls(calls)
        at = (function * SLICES_MAX + self._find(calls["start_ticks"]))[known]
        for table, weights in ((self.calls, None), (self.own_ticks, own[known]), (self.total_ticks, ran[known])):
            table += np.bincount(at, weights, table.size)[: table.size].reshape(table.shape)

    def _time_calls(self, calls: Rows) -> tuple[Table, Table]:
        """Time from entry to exit and own time of each call, in ticks."""
        away = np.zeros(len(calls), np.int64)
        start, end = calls["start_ticks"].astype(np.int64), calls["end_ticks"].astype(np.int64)
        for thread in np.unique(calls["thread"]).tolist():
            rows = np.flatnonzero(calls["thread"] == thread)
            spans = self._away.during(thread, int(start[rows].min()), int(end[rows].max()))
            away[rows] = overlap_ticks(spans, start[rows], end[rows])
        function = np.minimum(calls["function"], len(self._inside))
        inside, around = np.append(self._inside, 0.0)[function], np.append(self._around, 0.0)[function]
        total = (end - start - away).astype(np.float64)
        total -= np.where(calls["flags"] & CallFlag.CLIPPED, 0, calls["cost_ticks"])
        own = calls["self_ticks"] - away - inside
        nested = np.flatnonzero(calls["parent"] < len(calls))
        # A caller's own time is without its callees, whatever kept those; their probes are in it in part.
        np.add.at(own, calls["parent"][nested], (away - around)[nested])
        return total, own

    def _find(self, ticks: NDArray[np.uint64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (ticks.astype(np.int64) - (self._begin or 0)) // self.width_ticks
        return found.clip(0, SLICES_MAX - 1)

    def _make_room(self, last_ticks: int) -> None:
        while (last_ticks - (self._begin or 0)) // self.width_ticks >= SLICES_MAX:
            self.width_ticks *= 2
            for table in (self.calls, self.own_ticks, self.total_ticks, self.packets, self.batches):
                halves = table.reshape(*table.shape[:-1], SLICES_MAX // 2, 2).sum(axis=-1)
                table[..., : SLICES_MAX // 2], table[..., SLICES_MAX // 2 :] = halves, 0
