# SPDX-License-Identifier: Apache-2.0
"""Exponential: distributions of statistics.h as OpenTelemetry histogram points.

The C core counts in 32 linear buckets per power of two. Each of them goes, whole, into the exponential bucket that
holds its middle: that costs one step per bucket and none per call, and no bucket's count ever falls from one export
to the next. Pure. Called by metrics.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import Buckets as ExponentialBuckets
from opentelemetry.sdk.metrics.export import ExponentialHistogramDataPoint, HistogramDataPoint

from otel_nfprobe.statistics import Distribution, Statistics

SCALE_MAX = 5  # 32 buckets per power of two, as many as the C core has
BUCKETS_MAX = 160  # of one point, as the SDK's own aggregation has it
_SUB_BITS = 5  # of statistics.c
# Powers of two are lower edges of the C core's buckets: all sizes to 64, and these above, are counted exactly.
SIZE_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

Attributes = Mapping[str, str | int]


@dataclass(frozen=True)
class Span:
    """The time a point speaks of, Unix ns."""

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
        """What came after `before`. Least and largest are known to the width of a bucket only, unless they are new."""
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
    """A distribution of statistics; of several functions together when their name is the same."""
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
    """The smallest value of each bucket, from its largest."""
    # A bucket of values with n bits, n > 5, is 2^(n - 6) wide; all bits of its largest value below that are ones.
    bits = np.minimum(np.frexp(uppers.astype(np.float64))[1], 64).astype(np.int64)
    bits -= (np.uint64(1) << np.maximum(bits - 1, 0).astype(np.uint64)) > uppers  # it was rounded up to a power of two
    shift = np.clip(bits - _SUB_BITS - 1, 0, 63).astype(np.uint64)
    lowers: NDArray[np.uint64] = uppers >> shift << shift
    return lowers


def make_exponential(
    counted: Counted, seconds_per_tick: float, attributes: Attributes, span: Span, exemplars: Sequence[Exemplar]
) -> ExponentialHistogramDataPoint:
    """The point of a distribution of ticks, in seconds."""
    zeros = counted.uppers == 0
    uppers, counts = counted.uppers[~zeros], counted.counts[~zeros]
    scale, offset, buckets = _spread(uppers, counts, seconds_per_tick)
    return ExponentialHistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.end_ns,
        count=counted.count,
        sum=counted.total * seconds_per_tick,
        scale=scale,
        zero_count=int(counted.counts[zeros].sum()),
        positive=ExponentialBuckets(offset, buckets),
        negative=ExponentialBuckets(0, []),
        flags=0,
        min=counted.least * seconds_per_tick,
        max=counted.largest * seconds_per_tick,
        exemplars=list(exemplars),
    )


def _spread(
    uppers: NDArray[np.uint64], counts: NDArray[np.uint64], seconds_per_tick: float
) -> tuple[int, int, list[int]]:
    """Scale, index of the first bucket and the counts of all, from the first to the last that is not empty."""
    if not len(uppers):
        return SCALE_MAX, 0, []
    middles = (lowers_of(uppers).astype(np.float64) + uppers.astype(np.float64)) / 2
    # Bucket i holds values above base^i, up to base^(i + 1), where base is 2^(2^-scale).
    indices = np.ceil(np.log2(middles * seconds_per_tick) * 2**SCALE_MAX).astype(np.int64) - 1
    scale = SCALE_MAX
    while indices[-1] - indices[0] >= BUCKETS_MAX:
        indices >>= 1
        scale -= 1
    spread = np.zeros(int(indices[-1] - indices[0]) + 1, np.uint64)
    np.add.at(spread, indices - indices[0], counts)
    return scale, int(indices[0]), spread.tolist()


def make_sizes(counted: Counted, span: Span) -> HistogramDataPoint:
    """The point of a distribution of packets per batch, with explicit bounds."""
    places = np.searchsorted(np.array(SIZE_BOUNDS, np.uint64), lowers_of(counted.uppers))
    counts = np.zeros(len(SIZE_BOUNDS) + 1, np.uint64)
    np.add.at(counts, places, counted.counts)
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.end_ns,
        count=counted.count,
        sum=counted.total,
        bucket_counts=counts.tolist(),
        explicit_bounds=SIZE_BOUNDS,
        min=counted.least,
        max=counted.largest,
    )
