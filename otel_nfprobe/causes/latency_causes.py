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

Each charge has an owner: a function, or a kind of what ran instead of the thread, a burst, batching. The charges of the
wait are scaled to no more than the wait, those of the batch to no more than the packet's time in it, both together to
no more than the excess (split.py). The largest are the *parts*, the rest is unexplained. The largest part is the cause;
where more is unexplained than each part has, the cause is unknown. A function is charged over all batches of the
period; the batch in which it took longest is the culprit:

* own: the packet's own batch; queue: an earlier one;
* preemption, interrupt, host: the batch that stood still longest; the function that ran then is not blamed;
* fault, wait: a function's excess in which the thread had page faults, slept in a system call or waited for another
  thread (blocked.py);
* barrier: the same, where another thread of the target held this one (holds.py);
* firmware: what is unexplained, or was outside of all probed functions, while system management interrupts were counted
  on the thread's CPU (firmware.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE, UNKNOWN, Columns, Rows, life_start_ticks, place_handovers
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.causes.blocked import Blocked, find_blocked, find_blocked_outside
from otel_nfprobe.causes.burst import find_flow
from otel_nfprobe.causes.excess import BatchExcess
from otel_nfprobe.causes.firmware import FirmwareTime
from otel_nfprobe.causes.holds import find_longest, tell_apart
from otel_nfprobe.causes.period import Period, Timeline, make_timelines
from otel_nfprobe.causes.split import PART, PARTS_MAX, Charge, Charges, Owner, fill_parts, fit
from otel_nfprobe.pipeline.absences import (
    AbsenceFlag,
    AbsenceKind,
    Absences,
    StealTime,
    name_absence,
    name_firmware,
)

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
    FIRMWARE = lib.NFP_TAIL_FIRMWARE


STOOD_STILL = (CauseKind.PREEMPTION, CauseKind.BARRIER, CauseKind.INTERRUPT, CauseKind.HOST, CauseKind.FIRMWARE)
"""Causes outside of the thread: the batch did not run meanwhile, and no function is blamed."""


_CAUSES = {
    AbsenceKind.SWITCH: CauseKind.PREEMPTION,
    AbsenceKind.VECTOR: CauseKind.INTERRUPT,
    AbsenceKind.IRQ: CauseKind.INTERRUPT,
    AbsenceKind.SOFTIRQ: CauseKind.INTERRUPT,
    AbsenceKind.NMI: CauseKind.INTERRUPT,
    AbsenceKind.STEAL: CauseKind.HOST,
}

CAUSE = np.dtype(
    [
        ("kind", "u1"),
        ("saturated", "u1"),
        ("function", "<u4"),
        ("late_ticks", "<u8"),
        ("excess_ticks", "<u8"),
        ("rest_ticks", "<u8"),
        ("batch_id", "<u8"),
        ("batch", "<u4"),
        ("call", "<u4"),
        ("share", "<f8"),
        ("flow_packet", "<u4"),
        ("flow_share", "<f4"),
        ("hold", "<u4"),
        ("by", f"S{lib.NFP_TAIL_BY_BYTES}"),
        ("parts", PART, PARTS_MAX),
    ]
)
"""kind: CauseKind. function, call (index in calls): the culprit, or NONE. batch, batch_id: the culprit's, for batching
and bursts the packet's own; NONE and 0 when unknown. late_ticks: the packet's excess. excess_ticks: what the cause
explains of it, share: the same as a share. parts: of the excess, the largest first, unused ones with kind 0; with
rest_ticks, what is unexplained, their sum is late_ticks. flow_packet: for a burst, a packet of the flow that
contributed most, or NONE; flow_share: that flow's share. hold: for a barrier, the index in holds of the longest one, or
NONE. saturated: no poll before the packet had left its queue empty. by: what the CPU did instead of the thread for most
of the time (UTF-8).
"""
_INDEXES = ("function", "batch", "call", "flow_packet", "hold")


class _Stage(NamedTuple):
    # One of the batches that a packet was in, by row. In ticks: since when the packet waited for it, its begin, and its
    # end, where the wait for the next one begins.

    batch: int
    since: int
    begin: int
    until: int


@dataclass(frozen=True)
class _Delay:
    # What a packet's time at one stage is charged to, and where its wait for it began.

    stage: _Stage
    timeline: Timeline
    period: Period
    charges: Charges


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
    judge = _Judge(columns, baseline, *tell_apart(absences, columns), FirmwareTime(absences))
    for row, packet in zip(causes, packets, strict=True):
        judge.judge(int(packet), row)
    return causes


class _Judge:
    def __init__(
        self, columns: Columns, baseline: Baseline, away: Absences, steal: StealTime, firmware: FirmwareTime
    ) -> None:
        self._columns = columns
        self._baseline = baseline
        self._firmware = firmware
        self._away = away
        self._starts = life_start_ticks(columns)
        self._timelines = make_timelines(columns, baseline, away, steal)
        self._excess = BatchExcess(columns, baseline, away)
        self._waits: dict[tuple[int, int, int], Charges] = {}
        self._usual_wait = max(baseline.latency_ticks - baseline.own_ticks, 0)
        self._own: dict[tuple[int, int, int], Charges] = {}
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
        delays = [self._find_delay(stage) for stage in self._find_stages(packet, start, done)]
        charges = delays[0].charges
        if len(delays) > 1:  # one after the other: the packet was at one stage at a time
            charges = Charges()
            for delay in delays:
                charges.join(delay.charges, 1.0)
        if self._firmware:
            self._charge_firmware(charges, late, delays)
        self._decide(cause, packet, late, charges, delays)

    def _find_stages(self, packet: int, start: int, done: int) -> list[_Stage]:
        low, high = np.searchsorted(self._handovers["packet"], [packet, packet + 1])
        rows = [int(self._columns.packets["batch"][packet]), *self._handovers["batch"][low:high].tolist()]
        batches = self._columns.batches[rows]
        begins, ends = batches["start_ticks"].tolist(), batches["end_ticks"].tolist()
        since = [start, *(min(end, begin) for end, begin in zip(ends[:-1], begins[1:], strict=True))]
        return [_Stage(*stage) for stage in zip(rows, since, begins, [*since[1:], done], strict=True)]

    def _find_delay(self, stage: _Stage) -> _Delay:
        """Charges the time from when the packet waited for this batch until it left it, no more than there was."""
        batch = self._columns.batches[stage.batch]
        timeline = self._timelines[int(batch["thread"])]
        period = timeline.period(int(self._positions[stage.batch]), stage.since)
        charges, inside = Charges(), Charges()
        before = self._wait_charges(timeline, period, stage.since, stage.begin)
        burst = self._burst_ticks(timeline, period, stage.since, stage.begin)
        factor = fit(before.total + burst, stage.begin - stage.since)
        charges.join(before, factor)
        charges.add(Owner(CauseKind.BURST), burst * factor, stage.batch)
        inside.join(self._own_charges(stage.batch, stage.begin, stage.until), 1.0)
        inside.add(Owner(CauseKind.BATCHING), self._batching_ticks(batch, stage.until), stage.batch)
        charges.join(inside, fit(inside.total, stage.until - stage.begin))
        return _Delay(stage, timeline, period, charges)

    def _wait_charges(self, timeline: Timeline, period: Period, start: int, begin: int) -> Charges:
        """Returns the charges for what the packet waited for; cached, as packets of one batch mostly share them."""
        since = int(timeline.start[period.first]) if period.first < period.own else start
        since = min(since, start)
        key = (int(timeline.rows[period.own]), period.first, since)
        if key in self._waits:
            return self._waits[key]
        charges = self._waits[key] = Charges()
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
            _charge_functions(charges, excess, float(outside[position]), row, self._blocked(row))
        for kind, parts in ((CauseKind.HOST, timeline.stolen), (CauseKind.INTERRUPT, timeline.aftermath)):
            for position in (period.first + np.flatnonzero(parts[before])).tolist():
                charges.add(Owner(kind), float(parts[position]), int(timeline.rows[position]))
        self._charge_gap(charges, timeline, period, start)
        return charges

    def _charge_gap(self, charges: Charges, timeline: Timeline, period: Period, start: int) -> None:
        """Charges what kept the thread, which had no batch, from a packet that had come: its next batch was delayed."""
        delayed, until = int(timeline.rows[period.first]), int(timeline.start[period.first])
        charges.add(Owner(CauseKind.HOST), float(timeline.stolen_before(period.first, start)), delayed)
        if start < until:
            thread = int(self._columns.batches["thread"][delayed])
            for name, ticks in find_blocked_outside(self._away, thread, start, until).items():
                charges.add(Owner(CauseKind.FAULT, NONE), ticks, delayed, name=name)

    def _charge_absences(self, charges: Charges, timeline: Timeline, period: Period, since: int, begin: int) -> None:
        thread = int(self._columns.batches["thread"][timeline.rows[period.own]])
        rows = self._away.rows(thread, since, begin)
        out = rows["out_ticks"].astype(np.int64).clip(since, begin)
        positions = np.searchsorted(timeline.start, out, side="right") - 1
        positions += out >= timeline.end[positions]  # between two batches: the later one was delayed
        self._charge_rows(charges, rows, (since, begin), timeline.rows[positions.clip(period.first, period.own)])

    def _charge_rows(
        self, charges: Charges, rows: Rows, interval: tuple[int, int], batches: NDArray[np.integer]
    ) -> None:
        """Charges what the thread was preempted for in an interval, each row to a batch."""
        if not len(rows):
            return
        ticks = np.diff(np.stack((rows["out_ticks"], rows["in_ticks"])).astype(np.int64).clip(*interval), axis=0)[0]
        preempted = (rows["flags"] & AbsenceFlag.PREEMPTED) != 0
        rows, ticks, batches = rows[preempted], ticks[preempted], batches[preempted]
        if not len(rows):
            return
        # One key of what the CPU did in each batch, whose name is that of the longest row.
        order = np.argsort(-ticks, kind="stable")
        rows, ticks, batches = rows[order], ticks[order], batches[order]
        keys = np.zeros(len(rows), [("batch", "<i8"), ("kind", "<u4"), ("code", "<u4"), ("held", "?")])
        keys["batch"], keys["kind"], keys["code"] = batches, rows["kind"], rows["code"]
        keys["held"] = (rows["flags"] & AbsenceFlag.HELD) != 0
        found, first, where = np.unique(keys, return_index=True, return_inverse=True)
        for key, at, total in zip(found, first, np.bincount(where, ticks), strict=True):
            kind = CauseKind.BARRIER if key["held"] else _CAUSES[AbsenceKind(int(key["kind"]))]
            by = "" if key["held"] or kind == CauseKind.HOST else name_absence(rows[at])
            charges.add(Owner(kind), float(total), int(key["batch"]), name=by)

    def _charge_firmware(self, charges: Charges, late: int, delays: list[_Delay]) -> None:
        """Charges what nothing else explains, if the CPU had system management interrupts meanwhile."""
        count = 0
        for delay in delays:
            thread = int(self._columns.batches["thread"][delay.stage.batch])
            since = min(int(delay.timeline.start[delay.period.first]), delay.stage.since)
            count += self._firmware.count(thread, since, delay.stage.until)
        if not count:
            return
        unexplained = max(late - charges.total, 0.0)
        outside = charges.by_owner.pop(Owner(CauseKind.OWN), Charge())
        batch = outside.batch if outside.ticks > 0 else delays[-1].stage.batch
        charges.add(Owner(CauseKind.FIRMWARE), outside.ticks + unexplained, batch, name=name_firmware(count))

    def _find_flow(self, timeline: Timeline, period: Period, packet: int) -> tuple[int, float]:
        rows = timeline.rows[period.first : period.own + 1]
        key = (int(rows[0]), int(rows[-1]))
        if key not in self._flows:  # packets of one batch belong to about the same burst
            self._flows[key] = find_flow(self._columns, rows, packet)
        return self._flows[key]

    def _own_charges(self, own: int, begin: int, done: int) -> Charges:
        """Returns the charges for the time in a batch; cached, as packets are mostly handed on together."""
        key = (own, begin, done)
        if key in self._own:
            return self._own[key]
        charges = self._own[key] = Charges()
        thread = int(self._columns.batches["thread"][own])
        rows = self._away.rows(thread, begin, done)
        self._charge_rows(charges, rows, (begin, done), np.full(len(rows), own))
        excess, timeline, position = self._excess.of(own, done), self._timelines[thread], self._positions[own]
        left = sum(ticks for _, ticks, _ in excess)
        aftermath = float(timeline.aftermath[position])
        if aftermath:
            interrupts = self._away.interrupts(thread, begin, done)
            aftermath = min(aftermath, float((interrupts[:, 1] - interrupts[:, 0]).sum()))
        for kind, ticks in ((CauseKind.HOST, float(timeline.stolen[position])), (CauseKind.INTERRUPT, aftermath)):
            ticks = min(ticks, left)
            left -= ticks
            charges.add(Owner(kind), ticks, own)
        _charge_functions(charges, excess, sum(ticks for _, ticks, _ in excess) - left, own, self._blocked(own, done))
        return charges

    def _blocked(self, batch: int, until: int | None = None) -> Blocked:
        end = int(self._columns.batches["end_ticks"][batch])
        return find_blocked(self._columns, self._away, batch, end if until is None else min(until, end))

    def _burst_ticks(self, timeline: Timeline, period: Period, start: int, begin: int) -> int:
        if period.first == period.own:
            return 0
        ahead = int(timeline.usual[period.first : period.own].sum())
        arrived = max(start - int(timeline.start[period.first]), 0)
        return max(min(ahead - arrived, begin - start) - self._usual_wait, 0)

    def _batching_ticks(self, batch: np.void, done: int) -> int:
        baseline = self._baseline
        if batch["size"] < LARGE_BATCH * max(baseline.batch_size, 1):
            return 0
        usual = int(baseline.batch_ticks(np.array([batch["size"]]))[0])
        return min(usual, done - int(batch["start_ticks"])) - baseline.own_ticks

    def _decide(self, cause: np.void, packet: int, late: int, charges: Charges, delays: list[_Delay]) -> None:
        """Fills in the parts, and with the largest one the cause."""
        stages = {delay.stage.batch for delay in delays}
        largest = charges.largest(late)
        parts = [(_name_kind(owner, charge, stages), charge) for owner, charge in largest]
        explained = fill_parts(cause["parts"], parts, self._columns.batches["id"])
        cause["late_ticks"], cause["rest_ticks"] = late, late - explained
        owner = largest[0][0] if parts and cause["parts"]["ticks"][0] > cause["rest_ticks"] else None
        delay = max(delays, key=lambda delay: delay.charges.of(owner) if owner else delay.charges.total)
        cause["saturated"] = delay.period.is_saturated
        if owner is None:
            return
        part = cause["parts"][0]
        for name in ("kind", "function", "batch", "batch_id", "call", "by"):
            cause[name] = part[name]
        cause["excess_ticks"], cause["share"] = part["ticks"], part["ticks"] / late
        if owner.kind == CauseKind.BURST:
            cause["flow_packet"], cause["flow_share"] = self._find_flow(delay.timeline, delay.period, packet)
        elif owner.kind == CauseKind.BARRIER:
            since = min(int(delay.timeline.start[delay.period.first]), delay.stage.since)
            hold = find_longest(self._columns.holds, since, delay.stage.until)
            cause["hold"] = NONE if hold < 0 else hold


def _name_kind(owner: Owner, charge: Charge, stages: set[int]) -> Owner:
    """Of a function: whether it was slow in a batch of the packet, or in an earlier one."""
    if owner.kind == CauseKind.OWN and charge.batch not in stages:
        return Owner(CauseKind.QUEUE, owner.function)
    return owner


def _charge_functions(
    charges: Charges, excess: list[tuple[int, float, int]], outside: float, batch: int, blocked: Blocked
) -> None:
    """Charges the excess of a batch's functions without what has other causes, which is taken off the largest first."""
    for function, ticks, call in sorted(excess, key=lambda one: -one[1]):
        taken = min(outside, ticks)
        outside -= taken
        left = ticks - taken
        for (kind, name), lasted in blocked.get(function, {}).items():
            part = min(lasted, left)
            left -= part
            charges.add(Owner(kind, function), part, batch, call, name)
        charges.add(Owner(CauseKind.OWN, function), left, batch, call)
