# SPDX-License-Identifier: Apache-2.0
"""Context switches: when threads of the target did not run, as rows. Pure: arrays in, arrays out.

One row lasts from the moment when the scheduler took a thread off its CPU until the thread ran again. A *preempted*
thread could have continued: that time is not attributed to the target's code. A thread that gave up its CPU (a lock, a
sleep, a stop by a signal or debugger) spent the time in the function that waited.
"""

from __future__ import annotations

from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import Rows

SWITCH = np.dtype(
    [
        ("out_ticks", "<u8"),
        ("in_ticks", "<u8"),
        ("thread", "<u4"),
        ("flags", "<u4"),
        ("from_cpu", "<u4"),
        ("to_cpu", "<u4"),
    ]
)
"""thread: its index in the thread table; flags: SwitchFlag; the two CPUs differ if the thread migrated."""

SWITCHES_MAX = 1 << 20  # per recording


class SwitchFlag(IntFlag):
    PREEMPTED = lib.NFP_SWITCH_PREEMPTED
    HELD = lib.NFP_SWITCH_HELD  # another thread of the target kept it from running (holds.py)
    INCOMPLETE = lib.NFP_SWITCH_INCOMPLETE  # records of the scheduler were lost before this row


def no_switches() -> Rows:
    """Returns an empty array of rows."""
    return np.empty(0, SWITCH)


class Absences:
    """Rows of drained columns or of a recording, for finding the times that a thread did not run.

    Args:
        switches: of dtype SWITCH, in any order; those of one thread do not overlap.
    """

    def __init__(self, switches: Rows) -> None:
        order = np.lexsort((switches["out_ticks"], switches["thread"]))
        threads, first = np.unique(switches["thread"][order], return_index=True)
        parts = np.split(switches[order], first[1:]) if len(switches) else []
        self._by_thread = dict(zip(threads.tolist(), parts, strict=True))

    def during(self, thread: int, start_ticks: int, end_ticks: int, preempted_only: bool = True) -> NDArray[np.int64]:
        """Returns each interval in [start, end] when a thread did not run: shape (n, 2), in order, clipped."""
        rows = self._by_thread.get(thread)
        if rows is None or end_ticks <= start_ticks:
            return np.empty((0, 2), np.int64)
        first = int(np.searchsorted(rows["in_ticks"], np.uint64(start_ticks), side="right"))
        last = int(np.searchsorted(rows["out_ticks"], np.uint64(end_ticks), side="left"))
        rows = rows[first:last]
        if preempted_only:
            rows = rows[(rows["flags"] & SwitchFlag.PREEMPTED) != 0]
        spans = np.stack((rows["out_ticks"], rows["in_ticks"]), axis=1).astype(np.int64)
        return spans.clip(start_ticks, end_ticks)


def overlap_ticks(spans: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how much of each interval [start, end] the spans cover, which are in order and do not overlap.

    Args:
        spans: shape (n, 2).
        starts, ends: shape (m,).

    Returns:
        shape (m,).
    """
    if not len(spans):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0])))

    def covered(until: NDArray[np.int64]) -> NDArray[np.int64]:
        index = np.searchsorted(spans[:, 0], until, side="right")
        last = np.maximum(index - 1, 0)
        partly = np.where(index > 0, np.minimum(until, spans[last, 1]) - spans[last, 0], 0)
        total: NDArray[np.int64] = before[last] + np.maximum(partly, 0)
        return total

    inside: NDArray[np.int64] = np.maximum(covered(ends) - covered(starts), 0)
    return inside
