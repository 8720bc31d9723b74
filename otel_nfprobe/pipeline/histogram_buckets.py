# SPDX-License-Identifier: Apache-2.0
"""Histogram buckets: a distribution of statistics.h as arrays of buckets, from which histogram points are made.

The C core counts in 32 linear buckets per power of two. Each is added entirely to one bucket of a point (metrics.py):
that costs one step per bucket and none per call, and bucket counts never decrease between exports. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.pipeline.statistics import Distribution, Statistics

_SUB_BITS = 5  # of statistics.c

Attributes = Mapping[str, str | int]


@dataclass(frozen=True)
class Span:
    """The time range of a point, Unix ns."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Counted:
    """One distribution, or the sum of several.

    Attributes:
        count: of values; total, least and largest: of the values, in ticks or packets.
        uppers: the largest value of each non-empty bucket, ascending.
        counts: of each of these buckets.
    """

    count: int
    total: int
    least: int
    largest: int
    uppers: NDArray[np.uint64]
    counts: NDArray[np.uint64]

    def since(self, before: Counted | None) -> Counted:
        """Returns the values since `before`. Least and largest are exact only if new, otherwise to a bucket's width."""
        if before is None or not before.count:
            return self
        counts = self.counts.copy()
        counts[np.searchsorted(self.uppers, before.uppers)] -= before.counts
        uppers, counts = self.uppers[counts > 0], counts[counts > 0]
        least = largest = 0
        if len(uppers):
            least, largest = max(self.least, int(lowers_of(uppers[:1])[0])), min(self.largest, int(uppers[-1]))
        return Counted(self.count - before.count, self.total - before.total, least, largest, uppers, counts)


def read_counted(statistics: Statistics, distribution: Distribution, functions: Sequence[int] = (0,)) -> Counted:
    """Returns a distribution of the statistics; functions with the same name are merged."""
    summaries = [statistics.summary(distribution, function) for function in functions]
    parts = [statistics.histogram(distribution, function) for function in functions]
    summaries = [summary for summary in summaries if summary["count"]]
    buckets = np.concatenate(parts)
    uppers, places = np.unique(buckets[:, 0], return_inverse=True)
    counts = np.zeros(len(uppers), np.uint64)
    np.add.at(counts, places, buckets[:, 1])
    return Counted(
        sum(summary["count"] for summary in summaries),
        sum(summary["total"] for summary in summaries),
        min((summary["min"] for summary in summaries), default=0),
        max((summary["max"] for summary in summaries), default=0),
        uppers,
        counts,
    )


def lowers_of(uppers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the smallest value of each bucket, given its largest."""
    # A bucket of values with n bits, n > 5, is 2^(n - 6) wide; its largest value ends in ones.
    bits = np.minimum(np.frexp(uppers.astype(np.float64))[1], 64).astype(np.int64)
    bits -= (np.uint64(1) << np.maximum(bits - 1, 0).astype(np.uint64)) > uppers  # rounding up reached a power of two
    shift = np.clip(bits - _SUB_BITS - 1, 0, 63).astype(np.uint64)
    lowers: NDArray[np.uint64] = uppers >> shift << shift
    return lowers
