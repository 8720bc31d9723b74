# SPDX-License-Identifier: Apache-2.0
"""The slowest packets of a recording: found in one replay, their surroundings gathered in the next.

Packets of one batch share its fate, so at most one of each batch is kept: the slowest. Their surroundings are
all batches of their thread from their arrival until they were done, and for as long before: there
latency_causes.py finds the culprit, and a timeline shows them. Arrays in, arrays out; called by report.py.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from otel_nfprobe.base.columns import NONE, UNKNOWN, Columns, Rows, concatenate, latency_ticks, life_start_ticks
from otel_nfprobe.base.holdrows import join_holds
from otel_nfprobe.pipeline.flowfilter import FlowFilter

HOLDS_MAX = 10_000  # around all of the slowest packets
BATCHES_MAX = 20_000  # of all surroundings together; more are not looked at


@dataclass(frozen=True)
class SlowPacket:
    """One slow packet, by batch id and position in its burst; its life in ticks."""

    latency_ticks: int
    batch_id: int
    index: int
    thread: int
    start_ticks: int
    batch_start_ticks: int
    done_ticks: int


class SlowestPackets:
    """Keeps the `count` slowest packets of all columns that are added, of the flows of `flow` if it is given."""

    def __init__(self, count: int, flow: FlowFilter | None = None) -> None:
        self._count = count
        self._flow = flow
        self._heap: list[tuple[int, int, SlowPacket]] = []

    def add(self, columns: Columns) -> None:
        """Looks at one take."""
        packets, batches = columns.packets, columns.batches
        if not len(packets) or not self._count:
            return
        latency = np.where(packets["disposition"] == UNKNOWN, 0, latency_ticks(columns))
        best = self._heap[0][0] if len(self._heap) == self._count else 0
        order = np.flatnonzero(latency > best)
        if self._flow is not None:
            order = order[self._flow.match(packets[order])]
        # The slowest first, and of equal ones the earliest; the first of each batch is the one that is kept.
        order = order[np.lexsort((order, -latency[order].astype(np.int64)))]
        _, first = np.unique(packets["batch"][order], return_index=True)
        starts = life_start_ticks(columns)
        for row in order[np.sort(first)][: self._count]:
            packet = packets[row]
            batch = batches[packet["batch"]]
            slow = SlowPacket(
                int(latency[row]),
                int(batch["id"]),
                int(packet["index"]),
                int(batch["thread"]),
                int(starts[row]),
                int(batch["start_ticks"]),
                int(packet["done_ticks"]),
            )
            self._push(slow)

    def slowest(self) -> list[SlowPacket]:
        """The packets kept, the slowest first."""
        return [slow for _, _, slow in sorted(self._heap, reverse=True)]

    def _push(self, slow: SlowPacket) -> None:
        entry = (slow.latency_ticks, -slow.batch_id, slow)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)


class Surroundings:
    """Gathers, from a second replay, the batches that ran during the lives of slow packets."""

    def __init__(self, slowest: list[SlowPacket]) -> None:
        self._slowest = slowest
        self._parts: list[Columns] = []
        self._holds = join_holds([])

    def add(self, columns: Columns) -> None:
        """Looks at one take."""
        batches = columns.batches
        self._add_holds(columns.holds)
        wanted = np.zeros(len(batches), bool)
        for slow in self._slowest:
            # As long before as it lived: its queue may have been longer than usual when it came.
            since = max(2 * slow.start_ticks - slow.done_ticks, 0)
            wanted |= (
                (batches["thread"] == slow.thread)
                & (batches["end_ticks"] > since)
                & (batches["start_ticks"] <= slow.done_ticks)
            ) | (batches["id"] == slow.batch_id)
        for batch in np.flatnonzero(wanted)[: BATCHES_MAX - len(self._parts)]:
            self._parts.append(_cut_batch(columns, int(batch)))

    def columns(self) -> Columns:
        """All of them, with the packets described in these batches."""
        return replace(concatenate(self._parts), holds=self._holds)

    def _add_holds(self, holds: Rows) -> None:
        near = np.zeros(len(holds), bool)
        for slow in self._slowest if len(holds) else ():
            near |= (holds["end_ticks"] > slow.start_ticks) & (holds["start_ticks"] <= slow.done_ticks)
        if near.any():
            self._holds = join_holds([self._holds, holds[near]])[-HOLDS_MAX:]


def find_packet(columns: Columns, slow: SlowPacket) -> int:
    """Index of a slow packet in gathered columns, or -1."""
    if not len(columns.packets):
        return -1
    ids = columns.batches["id"][columns.packets["batch"]]
    rows = np.flatnonzero((ids == slow.batch_id) & (columns.packets["index"] == slow.index))
    return int(rows[0]) if len(rows) else -1


def _cut_batch(columns: Columns, batch: int) -> Columns:
    row = columns.batches[batch : batch + 1].copy()
    calls = columns.calls[_span(row, "first_call", "calls")].copy()
    packets = columns.packets[_span(row, "first_packet", "packets")].copy()
    inside = (calls["parent"] >= row["first_call"]) & (calls["parent"] < row["first_call"] + row["calls"])
    calls["parent"] = np.where(inside, calls["parent"] - row["first_call"], NONE)
    calls["batch"] = packets["batch"] = 0
    row["first_call"] = row["first_packet"] = 0
    topics = columns.topics[np.isin(columns.topics["digest"], packets["digest"])]
    return Columns(calls, row, packets, topics)


def _span(row: Rows, first: str, count: str) -> slice:
    return slice(int(row[first][0]), int(row[first][0]) + int(row[count][0]))
