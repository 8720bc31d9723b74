# SPDX-License-Identifier: Apache-2.0
"""Queuing periods: which batches a packet waited for, and since when its queue was not empty. Pure.

A poll that returned fewer packets than requested left its queue empty; so did polls that found nothing, visible as a
gap between two batches. The queuing period of a packet begins with the last such poll before its arrival. What ran from
then until its own batch began determines its wait. While every poll comes back full there is no such begin: the thread
is saturated, and the period begins at the start of the columns, or with the packet's own batch if its arrival is also
unknown. Where polls report when a batch's queue was last seen empty (`earliest_ticks`), the period begins there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import BatchFlag, Columns, PacketFlag, Rows
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.pipeline.absences import Absences, StealTime, overlap_ticks

STOLEN_PARTS = 4  # batches that the steal time of one interval is laid on
STOLEN_SHARE_MIN = 0.5  # of what is left to be laid: the minimum excess of a batch that it is laid on


class Period(NamedTuple):
    """Positions [first, own) in a thread's timeline: the batches that ran before the packet's own."""

    first: int
    own: int
    is_saturated: bool


class Timeline:
    """The batches of one thread by time; all arrays have one entry per batch, times in ticks.

    Attributes:
        rows: indices of columns.batches.
        until: when the thread continued with the next batch: the next poll, if it followed immediately.
        preempted: time from start to `until` in which the thread was kept from running.
        usual: usual duration of a batch of this size.
        over: the time beyond that; may be negative.
        gap_over: the part of `over` after its last call, while packets were waiting.
        stolen: the part of `over` that the hypervisor took (`_place_steal`); of what it took at other times see
            `stolen_before`.
        aftermath: the part of `over` that interrupts cost beside their own time: entry and exit of the kernel, and
            caches that are cold afterwards. At most as long as they were themselves.
    """

    def __init__(
        self,
        columns: Columns,
        rows: NDArray[np.intp],
        thread: int,
        baseline: Baseline,
        away: Absences,
        steal: StealTime,
    ) -> None:
        batches = columns.batches[rows]
        self.rows = rows
        self.start = batches["start_ticks"].astype(np.int64)
        self.end = batches["end_ticks"].astype(np.int64)
        self.size = batches["size"].astype(np.int64)
        following = np.append(self.start[1:], self.end[-1:])
        span = (int(self.start[0]), int(following[-1])) if len(rows) else (0, 0)
        preempted = away.during(thread, *span)
        slept = away.during(thread, *span, preempted_only=False)
        gap = following - self.end
        gap_away = overlap_ticks(slept, self.end, following)
        gap_preempted = overlap_ticks(preempted, self.end, following)
        full = (batches["flags"] & BatchFlag.FULL) != 0
        waiting = full & np.append(_first_arrivals(columns, rows)[1:] < self.end[:-1], False)[: len(rows)]
        self.is_idle = ((gap - gap_away > baseline.idle_ticks) | (gap_away > gap_preempted)) & ~waiting
        self.gap_over = np.where(waiting, np.maximum(gap - gap_preempted - baseline.gap_ticks, 0), 0)
        self.until = np.where(self.is_idle, self.end, np.maximum(following, self.end))
        self.preempted = overlap_ticks(preempted, self.start, self.until)
        usual = baseline.batch_ticks(self.size) + np.where(self.is_idle, 0, baseline.gap_ticks)
        self.usual = np.rint(usual).astype(np.int64)
        self.over = self.until - self.start - self.usual
        self.stolen, self._stolen_elsewhere = _place_steal(self, steal.during(thread, *span))
        interrupted = overlap_ticks(away.interrupts(thread, *span), self.start, self.until)
        self.aftermath = np.minimum(interrupted, np.maximum(self.over - self.preempted - self.stolen, 0))
        begins = ~full
        begins[1:] |= self.is_idle[:-1]
        self._begins = begins
        self._saturated = (batches["flags"] & BatchFlag.SATURATED) != 0
        self._emptied = np.where(~self._saturated, batches["earliest_ticks"], 0).astype(np.int64)
        self._first = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0)) if len(rows) else rows

    def period(self, own: int, arrival_ticks: int) -> Period:
        """Returns the queuing period of a packet of the batch at position `own`."""
        if self._emptied[own]:  # batches that ran since its queue was seen empty
            return Period(min(int(np.searchsorted(self.start, self._emptied[own])), own), own, False)
        at = int(np.searchsorted(self.start, arrival_ticks, side="right")) - 1
        if at >= own:
            return Period(own, own, bool(self._saturated[own]))
        if at < 0:
            return Period(0, own, True)
        if self.is_idle[at] and arrival_ticks >= self.end[at]:
            return Period(at + 1, own, False)
        first = int(self._first[at])
        return Period(first, own, not self._begins[first])

    def stolen_before(self, first: int, since_ticks: int) -> int:
        """Returns how much the hypervisor can have taken of the time from `since_ticks` to the batch at position
        `first`, in which no batch ran.
        """
        if not len(self._stolen_elsewhere):
            return 0
        out, back, ticks = self._stolen_elsewhere.T
        inside = np.minimum(back, int(self.start[first])) - np.maximum(out, since_ticks)
        return int(np.minimum(inside, ticks).clip(0).sum())


def _place_steal(timeline: Timeline, steal: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns how much of each batch's excess was steal time, and what was stolen at other times.

    The scheduler says how much was stolen between two updates, not where. A hypervisor takes a CPU for one or a few
    contiguous times, so it is laid where the thread stood still longest: on the batches with the largest excess in the
    interval, unless each of them is small beside what was stolen, which then fell into a time without batches.

    Returns:
        ticks of each batch, and an array of shape (n, 3): begin and end of an interval, and ticks.
    """
    stolen = np.zeros(len(timeline.rows), np.int64)
    elsewhere: list[tuple[int, int, int]] = []
    over = np.maximum(timeline.over - timeline.preempted, 0)
    for out, back, ticks in zip(
        *(steal[name].tolist() for name in ("out_ticks", "in_ticks", "part_ticks")), strict=True
    ):
        first = int(np.searchsorted(timeline.until, out, side="right"))
        last = int(np.searchsorted(timeline.start, back, side="left"))
        inside = np.minimum(timeline.until[first:last], back) - np.maximum(timeline.start[first:last], out)
        left = np.minimum(over[first:last] - stolen[first:last], inside)
        for at in np.argsort(-left, kind="stable")[:STOLEN_PARTS]:
            if left[at] <= 0 or left[at] < STOLEN_SHARE_MIN * ticks:
                break
            taken = min(int(left[at]), ticks)
            stolen[first + at] += taken
            ticks -= taken
        if ticks:
            elsewhere.append((out, back, ticks))
    return stolen, np.array(elsewhere, np.int64).reshape(-1, 3)


def _first_arrivals(columns: Columns, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Returns when the first identified packet of each batch arrived; the maximum integer where unknown."""
    batches, packets = columns.batches[rows], columns.packets
    never = np.iinfo(np.int64).max
    if not len(packets):
        return np.full(len(rows), never)
    first = packets[np.minimum(batches["first_packet"], len(packets) - 1)]
    known = (batches["packets"] > 0) & ((first["flags"] & PacketFlag.ARRIVAL_KNOWN) != 0)
    return np.where(known, first["arrival_ticks"].astype(np.int64), never)


def make_timelines(columns: Columns, baseline: Baseline, away: Absences, steal: StealTime) -> dict[int, Timeline]:
    """Returns one timeline per thread, by thread index."""
    batches = columns.batches
    order = np.lexsort((batches["start_ticks"], batches["thread"]))
    threads, first = np.unique(batches["thread"][order], return_index=True)
    parts = np.split(order, first[1:]) if len(order) else []
    return {
        int(thread): Timeline(columns, part, int(thread), baseline, away, steal)
        for thread, part in zip(threads, parts, strict=True)
    }
