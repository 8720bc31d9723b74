# SPDX-License-Identifier: Apache-2.0
"""Causes of all late packets of a recording, and to whom their time belongs. Columns in, rows for a table out.

Columns are added drain by drain; what a packet waited for is in the same drain or the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, UNKNOWN, Columns, Rows, concatenate, counted_latency_ticks
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.causes.latency_causes import CAUSE, CauseKind, find_causes
from otel_nfprobe.pipeline.flowfilter import FlowFilter

JUDGED_MAX = 100_000  # packets; later ones are not judged
TOTAL_SHARE_MIN = 0.01  # of the time of all: an owner with less that never has the largest part is not listed


@dataclass
class CauseCount:
    """Late packets of which one owner, a kind and a function (ID, or NONE), has the largest part, or another part.

    Attributes:
        packets: of which it has the largest part; excess_ticks: these parts, most_ticks: the largest one.
        total_ticks: its parts of all packets; of UNKNOWN what is unexplained.
    """

    kind: CauseKind
    function: int
    packets: int = 0
    excess_ticks: int = 0
    most_ticks: int = 0
    total_ticks: int = 0


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

    def learn(self, threshold_ticks: int, baseline: Baseline, absences: Rows) -> None:
        """Judges from now on by these, of a session that goes on."""
        self._threshold, self._baseline, self._absences, self.judged = threshold_ticks, baseline, absences, 0

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
    """Counts the causes of all packets that `late` judges, and whose the time is that they were late."""

    def __init__(self, late: LateCauses) -> None:
        self._late = late
        self._counts: dict[int, CauseCount] = {}

    @property
    def judged(self) -> int:
        """Number of packets whose causes were counted."""
        return self._late.judged

    def add(self, columns: Columns) -> None:
        """Adds the late packets of these columns."""
        found = self._late.find(columns)[2]
        keys = _make_keys(found)
        for key in distinct(keys):
            count, excess = self._count(key), found["excess_ticks"][keys == key]
            count.packets += len(excess)
            count.excess_ticks += int(excess.sum())
            count.most_ticks = max(count.most_ticks, int(excess.max()))
        parts = found["parts"][found["parts"]["kind"] != 0]
        keys = _make_keys(parts)
        for key in distinct(keys):
            self._count(key).total_ticks += int(parts["ticks"][keys == key].sum())
        if len(found):
            self._count(CauseKind.UNKNOWN << 32 | NONE).total_ticks += int(found["rest_ticks"].sum())

    def counts(self) -> list[CauseCount]:
        """Returns one entry per kind and function, the most frequent first; small parts of other packets have none."""
        counts = list(self._counts.values())
        least = max(TOTAL_SHARE_MIN * sum(count.total_ticks for count in counts), 1)
        counts = [count for count in counts if count.packets or count.total_ticks >= least]
        return sorted(counts, key=lambda count: (-count.packets, -count.total_ticks, count.kind, count.function))

    def describe(self, name: Callable[[int], str], ns_per_tick: float) -> list[dict[str, Any]]:
        """Returns the counts as `packets.causes` of a report; `name` maps a function ID to its name."""
        return [
            {
                "kind": count.kind.name.lower(),
                "function": name(count.function) if count.function != NONE else None,
                "packets": count.packets,
                "share": round(count.packets / self.judged, 4),
                "mean_excess_ns": round(count.excess_ticks / max(count.packets, 1) * ns_per_tick),
                "max_excess_ns": round(count.most_ticks * ns_per_tick),
                "total_ns": round(count.total_ticks * ns_per_tick),
            }
            for count in self.counts()
        ]

    def _count(self, key: int) -> CauseCount:
        key = int(key)
        return self._counts.setdefault(key, CauseCount(CauseKind(key >> 32), key & NONE))


def _make_keys(rows: Rows) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = rows["kind"].astype(np.int64) << 32 | rows["function"]
    return keys
