# SPDX-License-Identifier: Apache-2.0
"""Durations: every call of one function, as exact counts of each duration. Pure.

The first calls of each thread are its warm-up (caches, branch predictors, the first pages of its ring) and are
excluded: at most WARM_UP_CALLS of them, and never more than a tenth of the thread's calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

WARM_UP_CALLS = 64
WARM_UP_PART = 10
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
DISTINCT_MAX = 1 << 18  # above it the precision of durations is halved, repeatedly

Ticks = NDArray[np.int64]


@dataclass
class Durations:
    """Counts of durations.

    Attributes:
        step_ticks: precision of durations; 1 unless there are very many different ones.
        resolution_ticks: the largest step that divides all differences between measured times.
    """

    step_ticks: int = 1
    resolution_ticks: int = 0
    _values: Ticks = field(default_factory=lambda: np.empty(0, np.int64))
    _counts: Ticks = field(default_factory=lambda: np.empty(0, np.int64))
    _first: dict[int, list[int]] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)

    def add(self, thread: int, raw_ticks: Ticks, cost_ticks: Ticks) -> None:
        """Adds calls of one thread, in their order.

        Args:
            raw_ticks: as measured.
            cost_ticks: of the probes inside.
        """
        if not len(raw_ticks):
            return
        self.resolution_ticks = int(np.gcd(self.resolution_ticks, np.gcd.reduce(raw_ticks)))
        ticks = np.maximum(raw_ticks - cost_ticks, 0)
        held = self._first.setdefault(thread, [])
        self._seen[thread] = self._seen.get(thread, 0) + len(ticks)
        room = WARM_UP_CALLS - len(held)
        held += ticks[:room].tolist()
        self._merge(*np.unique(ticks[room:], return_counts=True))

    def finish(self) -> int:
        """Determines the warm-up. Returns how many calls it excludes."""
        left_out = 0
        for thread, held in self._first.items():
            warm_up = min(len(held), self._seen[thread] // WARM_UP_PART)
            left_out += warm_up
            self._merge(*np.unique(np.array(held[warm_up:], np.int64), return_counts=True))
        self._first, self._seen = {}, {}
        return left_out

    @property
    def count(self) -> int:
        """Returns the number of calls, without the warm-up after `finish`."""
        return int(self._counts.sum())

    @property
    def min_ticks(self) -> int:
        """Returns the shortest call; 0 if there are none."""
        return int(self._values[0]) if len(self._values) else 0

    @property
    def max_ticks(self) -> int:
        """Returns the longest call; 0 if there are none."""
        return int(self._values[-1]) if len(self._values) else 0

    @property
    def mean_ticks(self) -> float:
        """Returns the arithmetic mean; 0 if there are no calls."""
        return float((self._values * self._counts.astype(np.float64)).sum() / self.count) if self.count else 0.0

    def quantile(self, share: float) -> int:
        """Returns the smallest duration that a share of all calls do not exceed, in ticks; 0 if there are no calls."""
        return _quantile(self._values, self._counts, share)

    def median_deviation(self) -> int:
        """Returns the median absolute deviation from the median, in ticks."""
        distances = np.abs(self._values - self.quantile(0.5))
        order = np.argsort(distances, kind="stable")
        return _quantile(distances[order], self._counts[order], 0.5)

    def histogram(self) -> list[tuple[int, int]]:
        """Returns upper edge and number of calls of each non-empty bucket; buckets are 1/16 wide.

        Each duration below 16 ticks has its own bucket.
        """
        shifts = np.maximum(np.floor(np.log2(np.maximum(self._values, 1))).astype(np.int64) - 4, 0)
        upper = (((self._values >> shifts) + 1) << shifts) - 1
        uppers, places = np.unique(upper, return_inverse=True)
        sums = np.bincount(places, self._counts, len(uppers)).astype(np.int64)
        return list(zip(uppers.tolist(), sums.tolist(), strict=True))

    def describe(self, ns: float) -> dict[str, Any]:
        """Returns the fields of `nfprobe stats --json`; `ns`: length of a tick."""
        return {
            "count": self.count,
            "min_ns": round(self.min_ticks * ns, 2),
            "max_ns": round(self.max_ticks * ns, 2),
            "mean_ns": round(self.mean_ticks * ns, 2),
            **{f"{name}_ns": round(self.quantile(share) * ns, 2) for name, share in QUANTILES.items()},
            "mad_ns": round(self.median_deviation() * ns, 2),
            "resolution_ns": round(max(1, self.resolution_ticks, self.step_ticks) * ns, 3),
            "histogram": [[round(upper * ns, 2), count] for upper, count in self.histogram()],
        }

    def bins(self, rows: int) -> list[tuple[int, int]]:
        """Returns lower edge and number of calls of bins of equal width; the last one holds the longest 1 %.

        Args:
            rows: maximum number of bins.
        """
        if not self.count:
            return []
        low, high = self.min_ticks, max(self.quantile(0.99), self.min_ticks + 1)
        width = max(self.step_ticks, self.resolution_ticks, -(-(high - low + 1) // max(1, rows - 1)))
        places = np.minimum((self._values - low) // width, (high - low) // width + 1)
        sums = np.bincount(places, self._counts).astype(np.int64)
        return [(low + index * width, int(count)) for index, count in enumerate(sums)]

    def _merge(self, values: Ticks, counts: Ticks) -> None:
        if not len(values):
            return
        values, places = np.unique(np.concatenate((self._values, values)), return_inverse=True)
        counts = np.bincount(places, np.concatenate((self._counts, counts))).astype(np.int64)
        while len(values) > DISTINCT_MAX:
            self.step_ticks *= 2
            values, places = np.unique(values // self.step_ticks * self.step_ticks, return_inverse=True)
            counts = np.bincount(places, counts).astype(np.int64)
        self._values, self._counts = values, counts


def _quantile(values: Ticks, counts: Ticks, share: float) -> int:
    if not len(values):
        return 0
    below = np.cumsum(counts)
    wanted = max(1, int(np.ceil(share * below[-1])))
    return int(values[np.searchsorted(below, wanted)])
