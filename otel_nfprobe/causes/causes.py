# SPDX-License-Identifier: Apache-2.0
"""Causes of all late packets of a recording, counted by kind and function. Columns in, rows for a table out.

Columns are added drain by drain; what a packet waited for is in the same drain or the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import NONE, UNKNOWN, Columns, Rows, concatenate, latency_ticks
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.causes.latency_causes import CAUSE, CauseKind, find_causes
from otel_nfprobe.pipeline.flowfilter import FlowFilter

JUDGED_MAX = 100_000  # packets; later ones are not judged


@dataclass(frozen=True)
class CauseCount:
    """Number of late packets with one cause; function is an ID, or NONE."""

    kind: CauseKind
    function: int
    packets: int
    excess_ticks: int
    most_ticks: int


class CauseTally:
    """Counts the causes of all packets at or above a latency threshold.

    Args:
        threshold_ticks: packets with at least this latency are late.
        baseline: the baseline of the recording.
        switches: of the whole recording, dtype SWITCH.
        flow: counts only packets of these flows; None: all.
    """

    def __init__(
        self, threshold_ticks: int, baseline: Baseline, switches: Rows, flow: FlowFilter | None = None
    ) -> None:
        self.judged = 0
        self._flow = flow
        self._threshold = threshold_ticks
        self._baseline = baseline
        self._switches = switches
        self._before = Columns()
        self._found: list[Rows] = []

    def add(self, columns: Columns) -> None:
        """Adds the late packets of these columns."""
        latency = np.where(columns.packets["disposition"] == UNKNOWN, 0, latency_ticks(columns))
        late = np.flatnonzero((latency >= self._threshold) & (latency > 0))
        if self._flow is not None:
            late = late[self._flow.match(columns.packets[late])]
        late = late[: JUDGED_MAX - self.judged]
        if len(late):
            both = concatenate([self._before, columns])
            packets = late + len(self._before.packets)
            self._found.append(find_causes(both, packets, self._baseline, self._switches))
            self.judged += len(late)
        self._before = columns

    def counts(self) -> list[CauseCount]:
        """Returns one entry per kind and function, the most frequent first."""
        found = np.concatenate(self._found) if self._found else np.empty(0, CAUSE)
        keys = found["kind"].astype(np.int64) << 32 | found["function"]
        counts = []
        for key in np.unique(keys):
            rows = found[keys == key]["excess_ticks"]
            kind, function = CauseKind(int(key) >> 32), int(key) & NONE
            counts.append(CauseCount(kind, function, len(rows), int(rows.sum()), int(rows.max())))
        return sorted(counts, key=lambda count: (-count.packets, count.kind, count.function))

    def describe(self, name: Callable[[int], str], ns_per_tick: float) -> list[dict[str, Any]]:
        """Returns the counts as `packets.causes` of a report; `name` maps a function ID to its name."""
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
