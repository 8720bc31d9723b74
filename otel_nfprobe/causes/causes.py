# SPDX-License-Identifier: Apache-2.0
"""Causes of all late packets of a recording, counted by kind and function. Columns in, rows for a table out.

Columns are added drain by drain; what a packet waited for is in the same drain or the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, UNKNOWN, Columns, Rows, concatenate, counted_latency_ticks
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


class LateCauses:
    """Finds the causes of all packets at or above a latency threshold, drain by drain.

    Args:
        threshold_ticks: packets with at least this latency are late.
        baseline: the baseline of the recording.
        absences: of the whole recording, dtype ABSENCE.
        flow: judges only packets of these flows; None: all.
    """

    def __init__(
        self, threshold_ticks: int, baseline: Baseline, absences: Rows, flow: FlowFilter | None = None
    ) -> None:
        self.judged = 0
        self._flow = flow
        self._threshold = threshold_ticks
        self._baseline = baseline
        self._absences = absences
        self._before = Columns()

    def find(self, columns: Columns) -> tuple[Columns, NDArray[np.intp], Rows]:
        """Returns the late packets of these columns: rows of packets in the returned columns, and their causes."""
        latency = np.where(columns.packets["disposition"] == UNKNOWN, 0, counted_latency_ticks(columns))
        late = np.flatnonzero((latency >= self._threshold) & (latency > 0))
        if self._flow is not None:
            late = late[self._flow.match(columns.packets[late])]
        late = late[: JUDGED_MAX - self.judged]
        self.judged += len(late)
        before, self._before = self._before, columns
        if not len(late):
            return columns, late, np.empty(0, CAUSE)
        both, packets = concatenate([before, columns]), late + len(before.packets)
        return both, packets, find_causes(both, packets, self._baseline, self._absences)


class CauseTally:
    """Counts the causes of all packets that `late` judges."""

    def __init__(self, late: LateCauses) -> None:
        self._late = late
        self._found = [np.empty(0, CAUSE)]

    @property
    def judged(self) -> int:
        """Number of packets whose causes were counted."""
        return self._late.judged

    def add(self, columns: Columns) -> None:
        """Adds the late packets of these columns."""
        self._found.append(self._late.find(columns)[2])

    def counts(self) -> list[CauseCount]:
        """Returns one entry per kind and function, the most frequent first."""
        found = np.concatenate(self._found)
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
