# SPDX-License-Identifier: Apache-2.0
"""Latency causes: what made a packet late. Pure: columns, switches and the baseline in, one row per packet out.

A packet's life runs from its arrival (the entry of its receive call when the arrival is unknown) to the end of the call
that transmitted or dropped it. Its excess is its latency minus the median. Its wait is examined over its queuing period
(period.py): with the usual durations of batches of their sizes, the wait is exactly

    (usual time of what ran before it - time from the period's begin to its arrival) + excess of what ran before it

The first term is a *burst*: more packets arrived than are usually processed in that time. The second is charged to the
batches; within each of them to preemption, for the time in which the thread was kept from running, and to functions for
their excess.
The packet's own batch is examined in the same way; the additional usual time of a larger batch is *batching*.

The largest of these is the cause if it explains at least half of the excess; otherwise the cause is unknown. A function
is charged over all batches of the period; the batch in which it took longest is the culprit:

* own: the packet's own batch; queue: an earlier one;
* preemption: the batch that stood still longest; the function that ran then is not blamed;
* barrier: the same, where another thread of the target caused most of that time (holds.py).
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
from otel_nfprobe.pipeline.context_switches import Absences, no_switches

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
    ]
)
"""kind: CauseKind. function, call (index in calls): the culprit, or NONE. batch, batch_id: the culprit's, for batching
and bursts the packet's own; NONE and 0 when unknown. excess_ticks: the excess that the cause explains. share: of the
packet's excess, at most 1. flow_packet: for a burst, a packet of the flow that contributed most, or NONE; flow_share:
that flow's share. hold: for a barrier, the index in holds of the longest one, or NONE. saturated: no poll before the
packet had left its queue empty.
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
    preempted: float = 0.0
    stood: tuple[int, int] = (0, NONE)  # longest time in one batch, and the batch

    def copy(self) -> _Charges:
        return _Charges(dict(self.total), dict(self.part), self.preempted, self.stood)

    def charge(self, function: int, ticks: float, batch: int, call: int) -> None:
        self.total[function] = self.total.get(function, 0.0) + ticks
        if ticks > self.part.get(function, (0.0, 0, 0))[0]:
            self.part[function] = (ticks, batch, call)

    def charge_preemption(self, ticks: int, batch: int) -> None:
        self.preempted += ticks
        if ticks > self.stood[0]:
            self.stood = (ticks, batch)


def find_causes(
    columns: Columns, packets: NDArray[np.integer], baseline: Baseline, switches: Rows | None = None
) -> Rows:
    """Finds what made each packet late.

    Args:
        columns: of one drain, or of several by `columns.concatenate`: earlier batches must be included.
        packets: indices in columns.packets.
        baseline: the baseline of the session.
        switches: when the threads did not run, dtype SWITCH; None: not recorded.

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
    away = Absences(add_held(no_switches() if switches is None else switches, held))
    judge = _Judge(columns, baseline, away, Absences(held))
    for row, packet in zip(causes, packets, strict=True):
        judge.judge(int(packet), row)
    return causes


class _Judge:
    def __init__(self, columns: Columns, baseline: Baseline, away: Absences, held: Absences) -> None:
        self._columns = columns
        self._baseline = baseline
        self._away = away
        self._held = held
        self._starts = life_start_ticks(columns)
        self._timelines = make_timelines(columns, baseline, away)
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
        if cause["kind"] == CauseKind.PREEMPTION:
            since = min(int(timeline.start[period.first]), stage.since)
            self._find_hold(cause, charges.preempted, int(batch["thread"]), since, stage.until)

    def _find_hold(self, cause: np.void, preempted: float, thread: int, since: int, until: int) -> None:
        """Changes the cause to barrier where another thread, not the scheduler, kept the thread from running."""
        spans = self._held.during(thread, since, until)
        if 2 * int((spans[:, 1] - spans[:, 0]).sum()) >= preempted:
            hold = find_longest(self._columns.holds, since, until)
            cause["kind"], cause["hold"] = CauseKind.BARRIER, NONE if hold < 0 else hold

    def _wait_charges(self, timeline: Timeline, period: Period, start: int, begin: int) -> _Charges:
        """Returns the charges for what the packet waited for; cached, as packets of one batch mostly share them."""
        since = int(timeline.start[period.first]) if period.first < period.own else start
        since = min(since, start)
        key = (int(timeline.rows[period.own]), period.first, since)
        if key in self._waits:
            return self._waits[key]
        charges = self._waits[key] = _Charges()
        self._charge_preemptions(charges, timeline, period, since, begin)
        before = slice(period.first, period.own)
        over = timeline.over[before] - timeline.preempted[before]
        worth = np.flatnonzero(over > WORTH_SHARE * (begin - since))
        worth = worth[np.argsort(-over[worth], kind="stable")][:BATCHES_EXAMINED]
        for position in worth:
            row = int(timeline.rows[period.first + position])
            for function, ticks, call in self._excess.of(row):
                charges.charge(function, ticks, row, call)
            gap = float(timeline.gap_over[period.first + position])
            if gap:
                charges.charge(NONE, gap, row, NONE)
        return charges

    def _charge_preemptions(
        self, charges: _Charges, timeline: Timeline, period: Period, since: int, begin: int
    ) -> None:
        thread = int(self._columns.batches["thread"][timeline.rows[period.own]])
        spans = self._away.during(thread, since, begin)
        if not len(spans):
            return
        positions = np.searchsorted(timeline.start, spans[:, 0], side="right") - 1
        positions += spans[:, 0] >= timeline.end[positions]  # between two batches: the later one was delayed
        positions = positions.clip(period.first, period.own)
        stood = np.bincount(positions - period.first, spans[:, 1] - spans[:, 0])
        charges.preempted = int(stood.sum())
        longest = int(np.argmax(stood))
        charges.stood = (int(stood[longest]), int(timeline.rows[period.first + longest]))

    def _find_flow(self, timeline: Timeline, period: Period, packet: int) -> tuple[int, float]:
        rows = timeline.rows[period.first : period.own + 1]
        key = (int(rows[0]), int(rows[-1]))
        if key not in self._flows:  # packets of one batch belong to about the same burst
            self._flows[key] = find_flow(self._columns, rows, packet)
        return self._flows[key]

    def _charge_own(self, charges: _Charges, own: int, begin: int, done: int) -> None:
        spans = self._away.during(int(self._columns.batches["thread"][own]), begin, done)
        if len(spans):
            charges.charge_preemption(int((spans[:, 1] - spans[:, 0]).sum()), own)
        for function, ticks, call in self._excess.of(own, done):
            charges.charge(function, ticks, own, call)

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
        found: list[tuple[float, CauseKind]] = [
            (charges.preempted, CauseKind.PREEMPTION),
            (charges.total.get(function, 0.0), CauseKind.QUEUE),
            (burst, CauseKind.BURST),
            (batching, CauseKind.BATCHING),
        ]
        ticks, kind = max(found, key=lambda candidate: candidate[0])
        ticks = min(ticks, longest)  # nothing can have delayed it for longer than it was there
        if ticks < SUBSTANTIAL_SHARE * late:
            return
        batch, call = own, NONE
        if kind == CauseKind.PREEMPTION:
            batch = charges.stood[1]
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
