# SPDX-License-Identifier: Apache-2.0
"""Drop causes: what filled the queue that dropped packets. Pure: drops, columns and the baseline in, rows out.

A queue drops packets while it is full. It fills while the thread that reads it takes fewer than arrive, since the last
poll that left it empty. That is the queuing period of a late packet (period.py), which a packet that was dropped would
have had; so of the periods that overlap with the two readings of the counter the longest is examined. Its time is

    usual time of the batches that ran in it + excess of functions + what kept the thread from running

and each nanosecond counts once. The largest part is the cause if it is at least half of the period; if it is the usual
time, more packets arrived than the thread usually works off (a burst, or too much traffic). A thread that did not run
between two batches, and then found more packets than a poll asks for, was stopped or slept; one that was woken by the
first packet waited for it. Who reads a queue is said by its row, or known
because one thread only receives packets; otherwise, and where nothing explains half, the cause is unknown.

Consecutive rows of a queue with the same culprit are one: so many packets, within these bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE, BatchFlag, Columns, Rows
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.causes.burst import find_flow
from otel_nfprobe.causes.excess import BatchExcess
from otel_nfprobe.causes.holds import tell_apart
from otel_nfprobe.causes.period import Timeline, make_timelines
from otel_nfprobe.causes.receivers import find_receiver
from otel_nfprobe.causes.split import cut_name
from otel_nfprobe.linux.queue_counters import QueueKind
from otel_nfprobe.pipeline.absences import (
    AbsenceFlag,
    AbsenceKind,
    Absences,
    StealTime,
    name_absence,
)
from otel_nfprobe.pipeline.queue_drops import DropFlag

SUBSTANTIAL_SHARE = 0.5
BATCHES_EXAMINED = 64  # per period: those with the largest excess
SPANS_EXAMINED = 4  # of the periods between two readings, and of the gaps: the longest
LOOKED_BACK = 4096  # batches of a period: one that is longer has no begin


class DropCauseKind(IntEnum):
    UNKNOWN = 0
    FUNCTION = 1
    PREEMPTION = 2
    INTERRUPT = 3
    HOST = 4
    BARRIER = 5
    ABSENT = 6  # the thread did not run between two batches: stopped, asleep, or woken and without a processor
    BURST = 7
    RECEIVER = 8  # who reads the queue that was sent into took less than usual


class Why(IntEnum):
    """Why a cause is unknown."""

    KNOWN = 0
    NO_READER = 1  # who reads the queue is not known
    SEVERAL_READERS = 2
    NO_BATCHES = 3  # nothing is known of what the thread did then
    NOTHING_HALF = 4


DROP_CAUSE = np.dtype(
    [
        ("kind", "u1"),
        ("why", "u1"),
        ("function", "<u4"),
        ("thread", "<u4"),
        ("batch", "<u4"),
        ("call", "<u4"),
        ("batch_id", "<u8"),
        ("start_ticks", "<u8"),
        ("stall_ticks", "<u8"),
        ("share", "<f8"),
        ("flow_packet", "<u4"),
        ("flow_share", "<f4"),
        ("by", f"S{lib.NFP_TAIL_BY_BYTES}"),
    ]
)
"""kind: DropCauseKind; why: Why. function, batch, call: the culprit, IDs or indexes in the columns, or NONE. batch_id:
of its batch, or 0. thread: who reads the queue, or NONE. start_ticks: begin of the longest stall by this cause;
stall_ticks: how long the cause kept the thread from reading, in all of the period. share: of the period's time.
flow_packet: of a burst, a packet of the flow that has most, or NONE. by: what the CPU did instead, UTF-8.
"""
_INDEXES = ("function", "thread", "batch", "call", "flow_packet")
_KINDS = {
    AbsenceKind.SWITCH: DropCauseKind.PREEMPTION,
    AbsenceKind.VECTOR: DropCauseKind.INTERRUPT,
    AbsenceKind.IRQ: DropCauseKind.INTERRUPT,
    AbsenceKind.SOFTIRQ: DropCauseKind.INTERRUPT,
    AbsenceKind.NMI: DropCauseKind.INTERRUPT,
    AbsenceKind.STEAL: DropCauseKind.HOST,
}


def no_drop_causes() -> Rows:
    """An empty array of causes."""
    return np.empty(0, DROP_CAUSE)


def find_drop_causes(columns: Columns, drops: Rows, baseline: Baseline, absences: Rows | None = None) -> Rows:
    """Finds what filled the queue of each row.

    Args:
        columns: all batches that overlap with the rows, and those of their queuing periods.
        drops: dtype QUEUE_DROP.
        baseline: of the session.
        absences: when the threads did not run, dtype ABSENCE; None: not recorded.

    Returns:
        array of dtype DROP_CAUSE, in the order of `drops`.
    """
    causes = np.zeros(len(drops), DROP_CAUSE)
    causes["why"] = Why.NO_BATCHES
    for name in _INDEXES:
        causes[name] = NONE
    if not len(drops):
        return causes
    judge = _Judge(columns, baseline, *tell_apart(absences, columns))
    for row, drop in zip(causes, drops, strict=True):
        judge.judge(drop, row)
    return causes


class _Span(NamedTuple):
    # One time in which the queue was not read empty: positions [first, last] in a timeline, and its ticks.
    first: int
    last: int
    start: int
    end: int

    @property
    def ticks(self) -> int:
        return self.end - self.start


@dataclass
class _Parts:
    # What a span consists of, in ticks. Of each cause the total, and its longest part with its start, batch and call.
    total: dict[tuple[DropCauseKind, int], float] = field(default_factory=dict)
    longest: dict[tuple[DropCauseKind, int], tuple[float, int, int, int]] = field(default_factory=dict)
    by: dict[tuple[DropCauseKind, str], float] = field(default_factory=dict)

    def add(
        self, kind: DropCauseKind, ticks: float, start: int, batch: int, function: int = NONE, call: int = NONE
    ) -> None:
        if ticks <= 0:
            return
        key = kind, function
        self.total[key] = self.total.get(key, 0.0) + ticks
        if ticks > self.longest.get(key, (0.0, 0, 0, 0))[0]:
            self.longest[key] = (ticks, start, batch, call)

    def add_by(self, kind: DropCauseKind, name: str, ticks: float) -> None:
        if name:
            self.by[kind, name] = self.by.get((kind, name), 0.0) + ticks


class _Judge:
    def __init__(self, columns: Columns, baseline: Baseline, away: Absences, steal: StealTime) -> None:
        self._columns = columns
        self._baseline = baseline
        self._away = away
        self._timelines = make_timelines(columns, baseline, away, steal)
        self._excess = BatchExcess(columns, baseline, away)
        self._readers = [thread for thread in self._timelines if self._receives(thread)]
        self._firsts: dict[int, NDArray[np.intp]] = {}
        self._parts: dict[tuple[int, _Span], _Parts] = {}

    def _receives(self, thread: int) -> bool:
        rows = self._timelines[thread].rows
        return bool(((self._columns.batches["flags"][rows] & BatchFlag.TAKEN_OVER) == 0).any())

    def judge(self, drop: np.void, cause: np.void) -> None:
        thread = self._find_reader(drop, cause)
        if thread == NONE:
            return
        cause["thread"] = thread
        if drop["kind"] == QueueKind.TRANSMIT and self._blame_receiver(drop, cause, thread):
            return
        timeline = self._timelines.get(thread)
        if timeline is None or not self._baseline.is_known:
            return
        span = self._find_span(timeline, thread, int(drop["since_ticks"]), int(drop["until_ticks"]))
        if span is not None and span.ticks > 0:
            self._decide(cause, timeline, span, self._find_parts(timeline, thread, span))

    def _find_reader(self, drop: np.void, cause: np.void) -> int:
        if drop["thread"] != NONE:
            return int(drop["thread"])
        if drop["flags"] & DropFlag.SHARED:
            cause["why"] = Why.SEVERAL_READERS
        elif len(self._readers) == 1:
            return self._readers[0]
        elif self._readers:
            cause["why"] = Why.NO_READER
        return NONE

    # ---- when the queue was not empty -------------------------------------------------------------------------------

    def _find_span(self, timeline: Timeline, thread: int, since: int, until: int) -> _Span | None:
        """Returns the longest time without an empty queue that overlaps with the two readings."""
        first = max(int(np.searchsorted(timeline.start, since, side="right")) - 1, 0)
        last = int(np.searchsorted(timeline.start, until, side="right"))
        positions = np.arange(first, last)
        lengths = timeline.until[first:last].clip(None, until) - timeline.start[self._find_firsts(thread)[first:last]]
        found: list[_Span] = []
        for at in positions[np.argsort(-lengths, kind="stable")[:SPANS_EXAMINED]].tolist():
            begin = self._find_begin(timeline, at)
            found.append(_Span(begin, at, int(timeline.start[begin]), min(int(timeline.until[at]), until)))
        gaps = timeline.until - timeline.end
        gaps[:-1] = timeline.start[1:] - timeline.end[:-1]
        idle = positions[timeline.is_idle[first:last]]
        for at in idle[np.argsort(-gaps[idle], kind="stable")[:SPANS_EXAMINED]].tolist():
            found += self._find_gap(timeline, thread, at, since, until)
        found = [span for span in found if span.end > since and span.start < until]
        return max(found, key=lambda span: span.ticks, default=None)

    def _find_firsts(self, thread: int) -> NDArray[np.intp]:
        """Returns for each batch of a thread the position of the first one since a poll left the queue empty."""
        if thread not in self._firsts:
            timeline = self._timelines[thread]
            begins = (self._columns.batches["flags"][timeline.rows] & BatchFlag.FULL) == 0
            begins[1:] |= timeline.is_idle[:-1]
            places = np.arange(len(begins))
            self._firsts[thread] = np.maximum.accumulate(np.where(begins, places, 0))
        return self._firsts[thread]

    def _find_begin(self, timeline: Timeline, at: int) -> int:
        """Returns the position of the first batch since the queue was last empty."""
        following = at + 1
        own = following if following < len(timeline.rows) and not timeline.is_idle[at] else at
        period = timeline.period(own, int(timeline.start[at]))
        begin = max(min(period.first, at), at - LOOKED_BACK)
        slept = begin + np.flatnonzero(timeline.is_idle[begin:at])
        woken = slept[~self._is_full(timeline, slept + 1)]
        return int(woken[-1]) + 1 if len(woken) else begin

    def _is_full(self, timeline: Timeline, positions: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Returns whether these polls found more than they asked for: a thread that the first packet woke does not."""
        batches = self._columns.batches[timeline.rows[positions]]
        full: NDArray[np.bool_] = ((batches["flags"] & BatchFlag.FULL) != 0) & (batches["requested"] > 1)
        return full

    def _find_gap(self, timeline: Timeline, thread: int, at: int, since: int, until: int) -> list[_Span]:
        """Returns the longest time after the batch in which the thread did not run, if packets were dropped then."""
        if at + 1 >= len(timeline.rows) or not self._is_full(timeline, np.array([at + 1]))[0]:
            return []
        end, following = int(timeline.end[at]), int(timeline.start[at + 1])
        rows = self._away.rows(thread, max(end, since), min(following, until))
        if not len(rows):
            return []
        longest = rows[np.argmax((rows["in_ticks"] - rows["out_ticks"]).astype(np.int64))]
        return [_Span(at, NONE, max(int(longest["out_ticks"]), end), min(int(longest["in_ticks"]), following))]

    # ---- what its time was spent on ---------------------------------------------------------------------------------

    def _find_parts(self, timeline: Timeline, thread: int, span: _Span) -> _Parts:
        key = thread, span
        if key not in self._parts:  # consecutive readings mostly share their span
            parts = self._parts[key] = _Parts()
            self._add_absences(parts, timeline, thread, span)
            if span.last != NONE:
                self._add_batches(parts, timeline, span)
        return self._parts[key]

    def _add_absences(self, parts: _Parts, timeline: Timeline, thread: int, span: _Span) -> None:
        for row in self._away.rows(thread, span.start, span.end):
            start, end = max(int(row["out_ticks"]), span.start), min(int(row["in_ticks"]), span.end)
            at = max(int(np.searchsorted(timeline.start, start, side="right")) - 1, 0)
            kind = self._kind_of(row, is_between=start >= timeline.end[at])
            if kind is None:
                continue
            parts.add(kind, end - start, start, int(timeline.rows[at]))
            if kind != DropCauseKind.HOST:
                parts.add_by(kind, name_absence(row), end - start)

    def _kind_of(self, row: np.void, is_between: bool) -> DropCauseKind | None:
        """Returns which cause an absence is; None: time of the function in which the thread waited."""
        if row["flags"] & AbsenceFlag.HELD:
            return DropCauseKind.BARRIER
        number = int(row["kind"])
        kind = next((cause for absence, cause in _KINDS.items() if absence == number), None)
        if kind == DropCauseKind.PREEMPTION and not row["flags"] & AbsenceFlag.PREEMPTED:
            return DropCauseKind.ABSENT if is_between else None
        return kind

    def _add_batches(self, parts: _Parts, timeline: Timeline, span: _Span) -> None:
        inside = slice(span.first, span.last + 1)
        over = (timeline.over - timeline.preempted)[inside]
        worth = np.flatnonzero(over > 0)
        worth = worth[np.argsort(-over[worth], kind="stable")][:BATCHES_EXAMINED]
        for position in (span.first + worth).tolist():
            row, stolen = int(timeline.rows[position]), int(timeline.stolen[position])
            start, aftermath = int(timeline.start[position]), int(timeline.aftermath[position])
            parts.add(DropCauseKind.HOST, stolen, start, row)
            parts.add(DropCauseKind.INTERRUPT, aftermath, start, row)
            outside = float(stolen + aftermath)
            until = span.end if span.end < timeline.end[position] else None
            excess = self._excess.of(row, until)
            gap = float(timeline.gap_over[position])
            for function, ticks, call in [*excess, *([(NONE, gap, NONE)] if gap else [])]:
                taken = min(outside, ticks)
                outside -= taken
                parts.add(DropCauseKind.FUNCTION, ticks - taken, self._start_of(call, start), row, function, call)

    def _start_of(self, call: int, otherwise: int) -> int:
        return int(self._columns.calls["start_ticks"][call]) if call < len(self._columns.calls) else otherwise

    # ---- the cause --------------------------------------------------------------------------------------------------

    def _decide(self, cause: np.void, timeline: Timeline, span: _Span, parts: _Parts) -> None:
        cause["why"] = Why.NOTHING_HALF
        if span.ticks <= 0:
            return
        key = max(parts.total, key=lambda key: parts.total[key], default=None)
        ticks = min(parts.total[key], span.ticks) if key is not None else 0.0
        usual = 0.0
        if span.last != NONE:
            usual = float(min(int(timeline.usual[span.first : span.last + 1].sum()), span.ticks))
        if key is not None and ticks >= SUBSTANTIAL_SHARE * span.ticks:
            self._blame(cause, parts, key, ticks)
            cause["share"] = ticks / span.ticks
        elif usual >= SUBSTANTIAL_SHARE * span.ticks:
            self._blame_burst(cause, timeline, span, usual)

    def _blame(self, cause: np.void, parts: _Parts, key: tuple[DropCauseKind, int], ticks: float) -> None:
        kind, function = key
        _, start, batch, call = parts.longest[key]
        cause["kind"], cause["why"], cause["function"] = kind, Why.KNOWN, function
        cause["batch"], cause["call"], cause["start_ticks"] = batch, call, start
        cause["batch_id"] = self._columns.batches["id"][batch]
        cause["stall_ticks"] = round(ticks)
        named = {name: spent for (of, name), spent in parts.by.items() if of == kind}
        cause["by"] = cut_name(max(named, key=lambda name: named[name], default=""))

    def _blame_receiver(self, drop: np.void, cause: np.void, thread: int) -> bool:
        """Returns whether it was who reads the queue, and not what the sender did before."""
        since, until = int(drop["since_ticks"]), int(drop["until_ticks"])
        receiver = find_receiver(self._columns, thread, int(drop["number"]), since, until)
        packets = int(drop["packets"])
        if receiver is None or receiver.packets < SUBSTANTIAL_SHARE * packets:
            return False
        cause["kind"], cause["why"] = DropCauseKind.RECEIVER, Why.KNOWN
        cause["start_ticks"], cause["stall_ticks"] = since, until - since
        cause["share"] = min(receiver.packets / packets, 1.0)
        cause["call"], batch = receiver.call, int(self._columns.calls["batch"][receiver.call])
        if batch < len(self._columns.batches):
            cause["batch"], cause["batch_id"] = batch, self._columns.batches["id"][batch]
        cause["by"] = cut_name(f"the receiver took {receiver.taken:,} packets")
        return True

    def _blame_burst(self, cause: np.void, timeline: Timeline, span: _Span, usual: float) -> None:
        rows = timeline.rows[span.first : span.last + 1]
        cause["kind"], cause["why"] = DropCauseKind.BURST, Why.KNOWN
        cause["batch"], cause["batch_id"] = rows[0], self._columns.batches["id"][rows[0]]
        cause["start_ticks"], cause["stall_ticks"] = span.start, span.ticks
        cause["share"] = usual / span.ticks
        last = self._columns.batches[rows[-1]]
        if last["packets"]:
            newest = int(last["first_packet"]) + int(last["packets"]) - 1
            cause["flow_packet"], cause["flow_share"] = find_flow(self._columns, rows, newest)


# ---- together -------------------------------------------------------------------------------------------------------


class DropEvent(NamedTuple):
    """Packets that one cause cost: the first of the drops and causes, by row, and what they sum up to.

    Attributes:
        row: of the first one.
        packets: dropped.
        since_ticks, until_ticks: bounds of when.
        is_least: more may have been dropped.
    """

    row: int
    packets: int
    since_ticks: int
    until_ticks: int
    is_least: bool


def join_drops(drops: Rows, causes: Rows) -> list[DropEvent]:
    """Joins consecutive rows of a queue with the same cause, in the order of time.

    Args:
        drops: dtype QUEUE_DROP; causes: their causes.
    """
    events: dict[tuple[object, ...], DropEvent] = {}
    done: list[DropEvent] = []
    for row in np.argsort(drops["since_ticks"], kind="stable").tolist():
        drop, cause = drops[row], causes[row]
        queue = bytes(drop["name"]), int(drop["number"]), int(drop["kind"])
        key = (*queue, *(int(cause[name]) for name in ("kind", "why", "function", "thread", "batch_id")))
        until, is_least = int(drop["until_ticks"]), bool(drop["flags"] & DropFlag.AT_LEAST)
        last = events.get(key)
        # The reading that ends a row begins the next one; without a culprit only these belong together.
        is_next = last is not None and (int(cause["batch_id"]) != 0 or int(drop["since_ticks"]) <= last.until_ticks)
        if last is not None and is_next:
            events[key] = last._replace(
                packets=last.packets + int(drop["packets"]), until_ticks=until, is_least=last.is_least or is_least
            )
            continue
        if last is not None:
            done.append(last)
        events[key] = DropEvent(row, int(drop["packets"]), int(drop["since_ticks"]), until, is_least)
    return sorted([*done, *events.values()], key=lambda event: (event.since_ticks, event.row))
