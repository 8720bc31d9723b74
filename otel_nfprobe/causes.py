# SPDX-License-Identifier: Apache-2.0
"""Causes of all late packets of a recording, counted by kind and function. Columns in, rows for a table out.

Called by report.py, take by take; what a packet waited for is in its take or in the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from otel_nfprobe.columns import NONE, UNKNOWN, BatchFlag, Columns, PacketFlag, Rows, concatenate, latency_ticks
from otel_nfprobe.flowfilter import FlowFilter
from otel_nfprobe.statistics import Distribution, Statistics
from otel_nfprobe.tail import CAUSE, CauseKind, find_causes
from otel_nfprobe.typical import Typical

JUDGED_MAX = 100_000  # packets; of more, the first ones


@dataclass(frozen=True)
class CauseCount:
    """How many late packets have one cause; function is an id, or NONE."""

    kind: CauseKind
    function: int
    packets: int
    excess_ticks: int
    most_ticks: int


class StampedLatencies:
    """The largest latencies of packets that have a stamp of their own and were identified because they are slow.

    Where not all packets are identified, the distribution of all of them has the others with the bound that polls give:
    it can lie above every latency that is known better, and then no packet would be late.
    """

    def __init__(self) -> None:
        self._largest = np.empty(0, np.uint64)

    def add(self, columns: Columns) -> None:
        """Looks at one take."""
        packets = columns.packets
        rows = np.flatnonzero((packets["flags"] & PacketFlag.ARRIVAL_KNOWN) & (packets["disposition"] != UNKNOWN))
        rows = rows[packets["batch"][rows] < len(columns.batches)]
        of_batch = columns.batches["flags"][packets["batch"][rows]]
        rows = rows[(of_batch & (BatchFlag.CHOSEN | BatchFlag.DRAWN)) == BatchFlag.CHOSEN]
        if len(rows):
            latency = latency_ticks(columns)[rows]
            self._largest = np.concatenate((self._largest, latency[latency > 0]))
            if len(self._largest) > JUDGED_MAX:
                self._largest = np.partition(self._largest, -JUDGED_MAX)[-JUDGED_MAX:]

    def find_late_ticks(self, statistics: Statistics, quantile: float) -> int:
        """From which latency on a packet is late: later than this share of all packets that `statistics` knows."""
        late_ticks = statistics.quantile(Distribution.PACKET_TICKS, quantile)
        packets = sum(int(count) for _, count in statistics.histogram(Distribution.PACKET_TICKS))
        rank = min(math.ceil((1 - quantile) * packets), JUDGED_MAX)
        if not 0 < rank <= len(self._largest):
            return late_ticks
        return min(late_ticks, int(np.partition(self._largest, -rank)[-rank]))


class CauseTally:
    """Counts the causes of all packets that were at least this late.

    Args:
        threshold_ticks: latency from which on a packet counts as late.
        typical: what is usual in the recording.
        switches: of the whole recording, dtype SWITCH.
        flow: only packets of these flows are counted; None: all.
    """

    def __init__(self, threshold_ticks: int, typical: Typical, switches: Rows, flow: FlowFilter | None = None) -> None:
        self.judged = 0
        self._flow = flow
        self._threshold = threshold_ticks
        self._typical = typical
        self._switches = switches
        self._before = Columns()
        self._found: list[Rows] = []

    def add(self, columns: Columns) -> None:
        """Looks at one take."""
        latency = np.where(columns.packets["disposition"] == UNKNOWN, 0, latency_ticks(columns))
        late = np.flatnonzero((latency >= self._threshold) & (latency > 0))
        if self._flow is not None:
            late = late[self._flow.match(columns.packets[late])]
        late = late[: JUDGED_MAX - self.judged]
        if len(late):
            both = concatenate([self._before, columns])
            packets = late + len(self._before.packets)
            self._found.append(find_causes(both, packets, self._typical, self._switches))
            self.judged += len(late)
        self._before = columns

    def counts(self) -> list[CauseCount]:
        """One entry per kind and function, the most frequent first."""
        found = np.concatenate(self._found) if self._found else np.empty(0, CAUSE)
        keys = found["kind"].astype(np.int64) << 32 | found["function"]
        counts = []
        for key in np.unique(keys):
            rows = found[keys == key]["excess_ticks"]
            kind, function = CauseKind(int(key) >> 32), int(key) & NONE
            counts.append(CauseCount(kind, function, len(rows), int(rows.sum()), int(rows.max())))
        return sorted(counts, key=lambda count: (-count.packets, count.kind, count.function))

    def describe(self, name: Callable[[int], str], ns_per_tick: float) -> list[dict[str, Any]]:
        """The same as `packets.causes` of a report; `name` gives a function's name by its id."""
        return [
            {
                "kind": count.kind.name.lower(),
                "function": name(count.function) if count.function != NONE else None,
                "packets": count.packets,
                "share": round(count.packets / self.judged, 4),
                "mean_excess_ns": round(count.excess_ticks / count.packets * ns_per_tick),
                "max_excess_ns": round(count.most_ticks * ns_per_tick),
            }
            for count in self.counts()
        ]
