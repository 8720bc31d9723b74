# SPDX-License-Identifier: Apache-2.0
"""Latency causes: what made a packet late. Pure: columns, absences and the baseline in, one row per packet out.

A packet's life runs from its arrival (the entry of its receive call when the arrival is unknown) to the end of the call
that transmitted or dropped it. Its excess is its latency minus the median. Its wait is examined over its queuing period
(period.py): with the usual durations of batches of their sizes, the wait is exactly

    (usual time of what ran before it - time from the period's begin to its arrival) + excess of what ran before it

The first term is a *burst*: more packets arrived than are usually processed in that time. The second is charged to the
batches; within each of them to what kept the thread from running (another task, interrupts, another thread of the
target, the hypervisor), and to functions for their excess beyond that.
The packet's own batch is examined in the same way; the additional usual time of a larger batch is *batching*.

The largest of these is the cause if it explains at least half of the excess; otherwise the cause is unknown. A function
is charged over all batches of the period; the batch in which it took longest is the culprit:

* own: the packet's own batch; queue: an earlier one;
* preemption, interrupt, host: the batch that stood still longest; the function that ran then is not blamed;
* barrier: the same, where another thread of the target held this one (holds.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE, UNKNOWN, Columns, Rows, life_start_ticks, place_handovers
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.causes.burst import find_flow
from otel_nfprobe.causes.excess import BatchExcess
from otel_nfprobe.causes.holds import add_held, find_held, find_longest
from otel_nfprobe.causes.period import Period, Timeline, make_timelines
from otel_nfprobe.pipeline.absences import (
    AbsenceFlag,
    AbsenceKind,
    Absences,
    StealTime,
    name_absence,
    no_absences,
)

SUBSTANTIAL_SHARE = 0.5
LARGE_BATCH = 2
BATCHES_EXAMINED = 64  # per period: those with the largest excess
WORTH_SHARE = 0.004  # of the wait: the minimum excess of a batch to be examined


class CauseKind(IntEnum):
    UNKNOWN = lib.NFP_TAIL_UNKNOWN
    OWN = lib.NFP_TAIL_OWN
    QUEUE = lib.NFP_TAIL_QUEUE
    BATCHING = lib.NFP_TAIL_BATCHING
    BURST = lib.NFP_TAIL_BURST
    PREEMPTION = lib.NFP_TAIL_PREEMPTION
    BARRIER = lib.NFP_TAIL_BARRIER
    INTERRUPT = lib.NFP_TAIL_INTERRUPT
    HOST = lib.NFP_TAIL_HOST
    FAULT = lib.NFP_TAIL_FAULT
    WAIT = lib.NFP_TAIL_WAIT


STOOD_STILL = (CauseKind.PREEMPTION, CauseKind.BARRIER, CauseKind.INTERRUPT, CauseKind.HOST)
"""Causes outside of the thread: the batch did not run meanwhile, and no function is blamed."""


_CAUSES = {
    AbsenceKind.SWITCH: CauseKind.PREEMPTION,
    AbsenceKind.VECTOR: CauseKind.INTERRUPT,
    AbsenceKind.IRQ: CauseKind.INTERRUPT,
    AbsenceKind.SOFTIRQ: CauseKind.INTERRUPT,
    AbsenceKind.NMI: CauseKind.INTERRUPT,
    AbsenceKind.FAULT: CauseKind.FAULT,
    AbsenceKind.CALL: CauseKind.FAULT,
    AbsenceKind.WAIT: CauseKind.WAIT,
}

CAUSE = np.dtype(
    [
        ("kind", "u1"),
        ("saturated", "u1"),
        ("function", "<u4"),
        ("excess_ticks", "<u8"),
        ("batch_id", "<u8"),
        ("batch", "<u4"),
        ("call", "<u4"),
        ("share", "<f8"),
        ("flow_packet", "<u4"),
        ("flow_share", "<f4"),
        ("hold", "<u4"),
        ("by", f"S{lib.NFP_TAIL_BY_BYTES}"),
    ]
)
"""kind: CauseKind. function, call (index in calls): the culprit, or NONE. batch, batch_id: the culprit's, for batching
and bursts the packet's own; NONE and 0 when unknown. excess_ticks: the excess that the cause explains. share: of the
packet's excess, at most 1. flow_packet: for a burst, a packet of the flow that contributed most, or NONE; flow_share:
that flow's share. hold: for a barrier, the index in holds of the longest one, or NONE. saturated: no poll before the
packet had left its queue empty. by: what the CPU did instead of the thread for most of the time (UTF-8).
"""
_INDEXES = ("function", "batch", "call", "flow_packet", "hold")


class _Stage(NamedTuple):
    # One of the batches that a packet was in, by row. In ticks: since when the packet waited for it, its begin, and its
    # end, where the wait for the next one begins.

    batch: int
    since: int
    begin: int
    until: int


@dataclass
class _Charges:
    # What one packet's excess is charged to, in ticks. By function: the total, and its largest part with batch and
    # call.
    total: dict[int, float] = field(default_factory=dict)
    part: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    # By cause and what the CPU did instead, and by cause the longest time in one batch, with the batch.
    away: dict[tuple[CauseKind, str], float] = field(default_factory=dict)
    stood: dict[CauseKind, tuple[float, int]] = field(default_factory=dict)

    def copy(self) -> _Charges:
        return _Charges(dict(self.total), dict(self.part), dict(self.away), dict(self.stood))

    def charge(self, function: int, ticks: float, batch: int, call: int) -> None:
        self.total[function] = self.total.get(function, 0.0) + ticks
        if ticks > self.part.get(function, (0.0, 0, 0))[0]:
            self.part[function] = (ticks, batch, call)

    def charge_absence(self, kind: CauseKind, by: str, ticks: float, batch: int) -> None:
        self.away[kind, by] = self.away.get((kind, by), 0.0) + ticks
        if ticks > self.stood.get(kind, (0.0, NONE))[0]:
            self.stood[kind] = (ticks, batch)

    def sum_absences(self) -> dict[CauseKind, float]:
        sums: dict[CauseKind, float] = {}
        for (kind, _), ticks in self.away.items():
            sums[kind] = sums.get(kind, 0.0) + ticks
        return sums


def find_causes(
    columns: Columns, packets: NDArray[np.integer], baseline: Baseline, absences: Rows | None = None
) -> Rows:
    """Finds what made each packet late.

    Args:
        columns: of one drain, or of several by `columns.concatenate`: earlier batches must be included.
        packets: indices in columns.packets.
        baseline: the baseline of the session.
        absences: when the threads did not run, dtype ABSENCE; None: not recorded.

    Returns:
        array of dtype CAUSE, in the order of `packets`.
    """
    causes = np.zeros(len(packets), CAUSE)
    causes["kind"] = CauseKind.UNKNOWN
    for name in _INDEXES:
        causes[name] = NONE
    if not len(packets) or not baseline.is_known:
        return causes
    held = find_held(columns)
    absences = no_absences() if absences is None else absences
    away = Absences(add_held(absences[absences["kind"] != AbsenceKind.STEAL], held))
    judge = _Judge(columns, baseline, away, StealTime(absences))
    for row, packet in zip(causes, packets, strict=True):
        judge.judge(int(packet), row)
    return causes


class _Judge:
    def __init__(self, columns: Columns, baseline: Baseline, away: Absences, steal: StealTime) -> None:
        self._columns = columns
        self._baseline = baseline
        self._away = away
        self._starts = life_start_ticks(columns)
        self._timelines = make_timelines(columns, baseline, away, steal)
        self._excess = BatchExcess(columns, baseline, away)
        self._waits: dict[tuple[int, int, int], _Charges] = {}
        self._flows: dict[tuple[int, int], tuple[int, float]] = {}
        self._handovers, _ = place_handovers(columns)
        self._positions = np.zeros(len(columns.batches), np.int64)
        for timeline in self._timelines.values():
            self._positions[timeline.rows] = np.arange(len(timeline.rows))

    def judge(self, packet: int, cause: np.void) -> None:
        """Fills in the packet's row, which is initialized to unknown."""
        columns, baseline = self._columns, self._baseline
        row = columns.packets[packet]
        own, done, start = int(row["batch"]), int(row["done_ticks"]), int(self._starts[packet])
        late = done - start - baseline.latency_ticks
        if row["disposition"] == UNKNOWN or own >= len(columns.batches) or late <= 0:
            return
        stages = self._find_stages(packet, start, done)
        self._judge_stage(cause, packet, late, stages[0])
        for stage in stages[1:]:  # the batch that delayed it most counts
            other = np.zeros(1, CAUSE)
            self._judge_stage(other[0], packet, late, stage)
            if other["excess_ticks"][0] > cause["excess_ticks"]:
                for name in other.dtype.names or ():
                    cause[name] = other[name][0]

    def _find_stages(self, packet: int, start: int, done: int) -> list[_Stage]:
        low, high = np.searchsorted(self._handovers["packet"], [packet, packet + 1])
        rows = [int(self._columns.packets["batch"][packet]), *self._handovers["batch"][low:high].tolist()]
        batches = self._columns.batches[rows]
        begins, ends = batches["start_ticks"].tolist(), batches["end_ticks"].tolist()
        since = [start, *(min(end, begin) for end, begin in zip(ends[:-1], begins[1:], strict=True))]
        return [_Stage(*stage) for stage in zip(rows, since, begins, [*since[1:], done], strict=True)]

    def _judge_stage(self, cause: np.void, packet: int, late: int, stage: _Stage) -> None:
        """Fills in the row with the excess that this batch, or the wait for it, explains."""
        for name in _INDEXES:
            cause[name] = NONE
        batch = self._columns.batches[stage.batch]
        timeline = self._timelines[int(batch["thread"])]
        period = timeline.period(int(self._positions[stage.batch]), stage.since)
        cause["saturated"] = period.is_saturated
        charges = self._wait_charges(timeline, period, stage.since, stage.begin).copy()
        self._charge_own(charges, stage.batch, stage.begin, stage.until)
        burst = self._burst_ticks(timeline, period, stage.since, stage.begin)
        batching = self._batching_ticks(batch, stage.until)
        self._decide(cause, charges, packet, late, stage.until - stage.since, period, timeline, burst, batching)
        if cause["kind"] == CauseKind.BARRIER:
            since = min(int(timeline.start[period.first]), stage.since)
            hold = find_longest(self._columns.holds, since, stage.until)
            cause["hold"] = NONE if hold < 0 else hold

    def _wait_charges(self, timeline: Timeline, period: Period, start: int, begin: int) -> _Charges:
        """Returns the charges for what the packet waited for; cached, as packets of one batch mostly share them."""
        since = int(timeline.start[period.first]) if period.first < period.own else start
        since = min(since, start)
        key = (int(timeline.rows[period.own]), period.first, since)
        if key in self._waits:
            return self._waits[key]
        charges = self._waits[key] = _Charges()
        self._charge_absences(charges, timeline, period, since, begin)
        before = slice(period.first, period.own)
        outside = timeline.stolen[before] + timeline.aftermath[before]
        over = timeline.over[before] - timeline.preempted[before] - outside
        worth = np.flatnonzero(over > WORTH_SHARE * (begin - since))
        worth = worth[np.argsort(-over[worth], kind="stable")][:BATCHES_EXAMINED]
        for position in worth:
            row = int(timeline.rows[period.first + position])
            gap = float(timeline.gap_over[period.first + position])
            excess = [*self._excess.of(row), *([(NONE, gap, NONE)] if gap else [])]
            _charge_functions(charges, excess, float(outside[position]), row)
        for kind, parts in ((CauseKind.HOST, timeline.stolen), (CauseKind.INTERRUPT, timeline.aftermath)):
            for position in (period.first + np.flatnonzero(parts[before])).tolist():
                charges.charge_absence(kind, "", float(parts[position]), int(timeline.rows[position]))
        return charges

    def _charge_absences(self, charges: _Charges, timeline: Timeline, period: Period, since: int, begin: int) -> None:
        thread = int(self._columns.batches["thread"][timeline.rows[period.own]])
        rows = self._away.rows(thread, since, begin)
        out = rows["out_ticks"].astype(np.int64).clip(since, begin)
        positions = np.searchsorted(timeline.start, out, side="right") - 1
        positions += out >= timeline.end[positions]  # between two batches: the later one was delayed
        self._charge_rows(charges, rows, (since, begin), timeline.rows[positions.clip(period.first, period.own)])

    def _charge_rows(
        self, charges: _Charges, rows: Rows, interval: tuple[int, int], batches: NDArray[np.integer]
    ) -> None:
        """Charges what the thread was preempted for in an interval, each row to a batch."""
        ticks = np.diff(np.stack((rows["out_ticks"], rows["in_ticks"])).astype(np.int64).clip(*interval), axis=0)[0]
        preempted = (rows["flags"] & AbsenceFlag.PREEMPTED) != 0
        rows, ticks, batches = rows[preempted], ticks[preempted], batches[preempted]
        if not len(rows):
            return
        # One key of what the CPU did in each batch.
        keys = np.zeros(len(rows), [("batch", "<i8"), ("kind", "<u4"), ("code", "<u4"), ("held", "?")])
        keys["batch"], keys["kind"], keys["code"] = batches, rows["kind"], rows["code"]
        keys["held"] = (rows["flags"] & AbsenceFlag.HELD) != 0
        found, first, where = np.unique(keys, return_index=True, return_inverse=True)
        for key, at, total in zip(found, first, np.bincount(where, ticks), strict=True):
            kind = CauseKind.BARRIER if key["held"] else _CAUSES[AbsenceKind(int(key["kind"]))]
            by = "" if key["held"] else name_absence(rows[at])
            charges.charge_absence(kind, by, float(total), int(key["batch"]))

    def _find_flow(self, timeline: Timeline, period: Period, packet: int) -> tuple[int, float]:
        rows = timeline.rows[period.first : period.own + 1]
        key = (int(rows[0]), int(rows[-1]))
        if key not in self._flows:  # packets of one batch belong to about the same burst
            self._flows[key] = find_flow(self._columns, rows, packet)
        return self._flows[key]

    def _charge_own(self, charges: _Charges, own: int, begin: int, done: int) -> None:
        thread = int(self._columns.batches["thread"][own])
        rows = self._away.rows(thread, begin, done)
        self._charge_rows(charges, rows, (begin, done), np.full(len(rows), own))
        excess, timeline, position = self._excess.of(own, done), self._timelines[thread], self._positions[own]
        left = sum(ticks for _, ticks, _ in excess)
        interrupts = self._away.interrupts(thread, begin, done)
        aftermath = min(float(timeline.aftermath[position]), float((interrupts[:, 1] - interrupts[:, 0]).sum()))
        for kind, ticks in ((CauseKind.HOST, float(timeline.stolen[position])), (CauseKind.INTERRUPT, aftermath)):
            ticks = min(ticks, left)
            left -= ticks
            if ticks:
                charges.charge_absence(kind, "", ticks, own)
        _charge_functions(charges, excess, sum(ticks for _, ticks, _ in excess) - left, own)

    def _burst_ticks(self, timeline: Timeline, period: Period, start: int, begin: int) -> int:
        if period.first == period.own:
            return 0
        ahead = int(timeline.usual[period.first : period.own].sum())
        arrived = max(start - int(timeline.start[period.first]), 0)
        return min(max(ahead - arrived, 0), max(begin - start, 0))

    def _batching_ticks(self, batch: np.void, done: int) -> int:
        baseline = self._baseline
        if batch["size"] < LARGE_BATCH * max(baseline.batch_size, 1):
            return 0
        usual = int(baseline.batch_ticks(np.array([batch["size"]]))[0])
        return min(usual, done - int(batch["start_ticks"])) - baseline.own_ticks

    def _decide(
        self,
        cause: np.void,
        charges: _Charges,
        packet: int,
        late: int,
        longest: int,
        period: Period,
        timeline: Timeline,
        burst: int,
        batching: int,
    ) -> None:
        own = int(timeline.rows[period.own])
        function = max(charges.total, key=lambda id: charges.total[id], default=NONE)
        away = charges.sum_absences()
        stood_still = max(away, key=lambda kind: away[kind], default=CauseKind.PREEMPTION)
        found: list[tuple[float, CauseKind]] = [
            (sum(away.values()), stood_still),
            (charges.total.get(function, 0.0), CauseKind.QUEUE),
            (burst, CauseKind.BURST),
            (batching, CauseKind.BATCHING),
        ]
        ticks, kind = max(found, key=lambda candidate: candidate[0])
        ticks = min(ticks, longest)  # nothing can have delayed it for longer than it was there
        if ticks < SUBSTANTIAL_SHARE * late:
            return
        batch, call = own, NONE
        if kind in STOOD_STILL:
            ticks, (_, batch) = min(away[kind], longest), charges.stood[kind]
            named = {by: ticks for (of, by), ticks in charges.away.items() if of == kind and by}
            cause["by"] = _cut(max(named, key=lambda by: named[by], default=""))
        elif kind == CauseKind.QUEUE:
            _, batch, call = charges.part[function]
            kind = CauseKind.OWN if batch == own else CauseKind.QUEUE
        elif kind == CauseKind.BURST:
            cause["flow_packet"], cause["flow_share"] = self._find_flow(timeline, period, packet)
        is_function = kind in (CauseKind.OWN, CauseKind.QUEUE)
        cause["kind"], cause["batch"], cause["call"] = kind, batch, call
        cause["function"] = function if is_function else NONE
        cause["batch_id"] = self._columns.batches["id"][batch]
        cause["excess_ticks"] = min(round(ticks), late)
        cause["share"] = min(ticks / late, 1.0)


def _charge_functions(charges: _Charges, excess: list[tuple[int, float, int]], outside: float, batch: int) -> None:
    """Charges the excess of a batch's functions without what has other causes, which is taken off the largest first."""
    for function, ticks, call in sorted(excess, key=lambda one: -one[1]):
        taken = min(outside, ticks)
        outside -= taken
        if ticks > taken:
            charges.charge(function, ticks - taken, batch, call)


def _cut(text: str) -> bytes:
    """Returns UTF-8 that fits into CAUSE, whole characters only."""
    return text.encode()[: lib.NFP_TAIL_BY_BYTES - 1].decode("utf-8", "ignore").encode()
