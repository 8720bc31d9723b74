# SPDX-License-Identifier: Apache-2.0
"""Tail causes: which call made a packet late. Pure: columns and medians in, one row per packet out.

A packet's life runs from its arrival (the entry of its receive call when nobody stamped it) to the end of
the call that transmitted or dropped it. Its excess is what its latency has over the median latency. The call
whose own time exceeds its function's median most, within that life, is the culprit, when that explains at
least half of the packet's excess:

* own: the culprit is in the packet's batch, and began before the packet was done;
* queue: it is in an earlier batch of the same thread, which the packet waited for;
* batching: there is no such call, but the packet's batch has at least twice the median size, and its own time
  (from receive to done) exceeds the median own time by at least half of the packet's excess;
* unknown: none of these, or the packet was not late.

The loop runs over the packets asked for, the slow ones; arrays are looked at within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.columns import NONE, UNKNOWN, Columns, Rows, life_start_ticks
from otel_nfprobe.statistics import Distribution, Statistics

SUBSTANTIAL_SHARE = 0.5
LARGE_BATCH = 2


class CauseKind(IntEnum):
    UNKNOWN = 0
    OWN = 1
    QUEUE = 2
    BATCHING = 3


CAUSE = np.dtype(
    [
        ("kind", "u1"),
        ("function", "<u4"),
        ("excess_ticks", "<u8"),
        ("batch_id", "<u8"),
        ("batch", "<u4"),
        ("call", "<u4"),
        ("share", "<f8"),
    ]
)
"""kind: CauseKind. function, call (index in calls): the culprit, or NONE. batch, batch_id: the culprit's, or
for batching the packet's own; NONE and 0 when unknown. excess_ticks: over the median. share: of the packet's
excess, at most 1."""


@dataclass(frozen=True)
class Typical:
    """What is usual in this session: medians, in ticks and packets.

    self_ticks has one number per function id; a function that it does not know counts as having median 0.
    """

    self_ticks: NDArray[np.uint64]
    latency_ticks: int
    own_ticks: int
    batch_size: int

    @classmethod
    def of(cls, statistics: Statistics) -> Typical:
        return cls(
            statistics.self_medians(),
            statistics.quantile(Distribution.PACKET_TICKS, 0.5),
            statistics.quantile(Distribution.PACKET_OWN_TICKS, 0.5),
            statistics.quantile(Distribution.BATCH_SIZE, 0.5),
        )


def find_causes(columns: Columns, packets: NDArray[np.integer], typical: Typical) -> Rows:
    """Say for each of the packets which call made it late.

    Args:
        columns: one take, or several by `columns.concatenate`: the earlier batches must be in it.
        packets: indices in columns.packets.
        typical: medians of the session.

    Returns:
        array of dtype CAUSE, in the order of `packets`.
    """
    causes = np.zeros(len(packets), CAUSE)
    causes["function"] = causes["batch"] = causes["call"] = NONE
    if not len(packets):
        return causes
    starts = life_start_ticks(columns)
    excess = _call_excess(columns, typical.self_ticks)
    order = _Order(columns)
    for row, packet in zip(causes, packets, strict=True):
        _judge(columns, int(packet), int(starts[packet]), excess, order, typical, row)
    return causes


class _Order:
    """The batches of each thread by time, as indices of columns.batches."""

    def __init__(self, columns: Columns) -> None:
        batches = columns.batches
        order = np.lexsort((batches["start_ticks"], batches["thread"]))
        threads, first = np.unique(batches["thread"][order], return_index=True)
        parts = np.split(order, first[1:])
        self._by_thread = dict(zip(threads.tolist(), parts, strict=True))
        self._starts = {thread: batches["start_ticks"][part] for thread, part in self._by_thread.items()}
        self._ends = {thread: batches["end_ticks"][part] for thread, part in self._by_thread.items()}

    def earlier(self, thread: int, since_ticks: int, until_ticks: int) -> NDArray[np.intp]:
        last = int(np.searchsorted(self._starts[thread], np.uint64(until_ticks), side="left"))
        running = self._ends[thread][:last] > np.uint64(since_ticks)
        first = int(np.argmax(running)) if running.any() else last
        between: NDArray[np.intp] = self._by_thread[thread][first:last]
        return between


def _call_excess(columns: Columns, medians: NDArray[np.uint64]) -> NDArray[np.int64]:
    """What each call's own time has over the median of its function, in ticks; never below 0."""
    function = columns.calls["function"]
    known = function < len(medians)
    median = np.zeros(len(function), np.int64)
    median[known] = medians[function[known]].astype(np.int64)
    excess: NDArray[np.int64] = np.maximum(columns.calls["self_ticks"].astype(np.int64) - median, 0)
    return excess


def _culprit(
    columns: Columns, batch: int, excess: NDArray[np.int64], since_ticks: int, until_ticks: int
) -> tuple[int, int]:
    """The batch's call with the largest excess within [since, until], and that excess; (0, NONE) if none."""
    row = columns.batches[batch]
    first, end = int(row["first_call"]), int(row["first_call"]) + int(row["calls"])
    calls = columns.calls[first:end]
    if not len(calls):
        return 0, NONE
    start = np.maximum(calls["start_ticks"], np.uint64(since_ticks)).astype(np.int64)
    stop = np.minimum(calls["end_ticks"], np.uint64(until_ticks)).astype(np.int64)
    inside = np.minimum(excess[first:end], np.maximum(stop - start, 0))
    index = int(np.argmax(inside))
    return int(inside[index]), first + index if inside[index] else NONE


def _judge(
    columns: Columns,
    packet: int,
    start_ticks: int,
    excess: NDArray[np.int64],
    order: _Order,
    typical: Typical,
    cause: np.void,
) -> None:
    row = columns.packets[packet]
    own, done = int(row["batch"]), int(row["done_ticks"])
    late = done - start_ticks - typical.latency_ticks
    if row["disposition"] == UNKNOWN or own >= len(columns.batches) or late <= 0:
        return
    batch = columns.batches[own]
    begin = int(batch["start_ticks"])
    found = (*_culprit(columns, own, excess, begin, done), own, CauseKind.OWN)
    for earlier in order.earlier(int(batch["thread"]), start_ticks, begin):
        other = (*_culprit(columns, int(earlier), excess, start_ticks, begin), int(earlier), CauseKind.QUEUE)
        found = max(found, other, key=lambda candidate: candidate[0])
    if found[0] >= SUBSTANTIAL_SHARE * late:
        _state(columns, cause, found[3], found[1], found[2], found[0], late)
        return
    over = done - begin - typical.own_ticks
    large = int(batch["size"]) >= LARGE_BATCH * max(typical.batch_size, 1)
    if large and over >= SUBSTANTIAL_SHARE * late:
        _state(columns, cause, CauseKind.BATCHING, NONE, own, over, late)


def _state(
    columns: Columns, cause: np.void, kind: CauseKind, call: int, batch: int, excess_ticks: int, late: int
) -> None:
    cause["kind"] = kind
    cause["call"] = call
    cause["function"] = columns.calls["function"][call] if call != NONE else NONE
    cause["batch"] = batch
    cause["batch_id"] = columns.batches["id"][batch]
    cause["excess_ticks"] = excess_ticks
    cause["share"] = min(excess_ticks / late, 1.0)
