# SPDX-License-Identifier: Apache-2.0
"""Exponential: a distribution as an OpenTelemetry exponential histogram point.

Each bucket of the C core is counted entirely in the exponential bucket that contains its middle. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import Buckets as ExponentialBuckets
from opentelemetry.sdk.metrics.export import ExponentialHistogramDataPoint

from otel_nfprobe.pipeline.histogram_buckets import Attributes, Counted, Span, lowers_of

SCALE_MAX = 5  # 32 buckets per power of two, as many as the C core has
BUCKETS_MAX = 160  # per point, as in the SDK's own aggregation


def make_exponential(
    counted: Counted, seconds_per_tick: float, attributes: Attributes, span: Span, exemplars: Sequence[Exemplar]
) -> ExponentialHistogramDataPoint:
    """Returns the point of a distribution of ticks, in seconds."""
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
    """Returns the scale, the index of the first bucket and all counts, from the first to the last non-empty bucket."""
    if not len(uppers):
        return SCALE_MAX, 0, []
    middles = (lowers_of(uppers).astype(np.float64) + uppers.astype(np.float64)) / 2
    # Bucket i contains values above base^i, up to base^(i + 1), where base is 2^(2^-scale).
    indices = np.ceil(np.log2(middles * seconds_per_tick) * 2**SCALE_MAX).astype(np.int64) - 1
    scale = SCALE_MAX
    while indices[-1] - indices[0] >= BUCKETS_MAX:
        indices >>= 1
        scale -= 1
    spread = np.zeros(int(indices[-1] - indices[0]) + 1, np.uint64)
    np.add.at(spread, indices - indices[0], counts)
    return scale, int(indices[0]), spread.tolist()
