# SPDX-License-Identifier: Apache-2.0
"""Explicit: a distribution as an OpenTelemetry histogram point with fixed bounds, "classic" buckets in Prometheus.

Bounds of durations fall inside buckets of the C core, which are 3 % wide: a value up to 3 % above a bound counts as
equal to it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import HistogramDataPoint

from otel_nfprobe.pipeline.histogram_buckets import Attributes, Counted, Span, lowers_of
from otel_nfprobe.pipeline.statistics import SIZES_EXACT

# Sizes below SIZES_EXACT are counted individually; above, powers of two are lower edges of the C core's buckets.
SIZE_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# From a short function to a thread blocked for a second; three per power of ten.
DURATION_BOUNDS_S = tuple(float(f"{digit}e{power}") for power in range(-8, 1) for digit in (1, 2, 5))[:-2]


def make_durations(
    counted: Counted, seconds_per_tick: float, attributes: Attributes, span: Span, exemplars: Sequence[Exemplar]
) -> HistogramDataPoint:
    """Returns the point of a distribution of ticks, in seconds."""
    edges = lowers_of(counted.uppers).astype(np.float64) * seconds_per_tick
    return HistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.end_ns,
        count=counted.count,
        sum=counted.total * seconds_per_tick,
        bucket_counts=_place(edges, DURATION_BOUNDS_S, counted),
        explicit_bounds=DURATION_BOUNDS_S,
        min=counted.least * seconds_per_tick,
        max=counted.largest * seconds_per_tick,
        exemplars=list(exemplars),
    )


def make_sizes(counted: Counted, span: Span) -> HistogramDataPoint:
    """Returns the point of a distribution of packets per batch."""
    sizes = np.where(counted.uppers < SIZES_EXACT, counted.uppers, lowers_of(counted.uppers))
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.end_ns,
        count=counted.count,
        sum=counted.total,
        bucket_counts=_place(sizes.astype(np.float64), SIZE_BOUNDS, counted),
        explicit_bounds=SIZE_BOUNDS,
        min=counted.least,
        max=counted.largest,
    )


def _place(edges: NDArray[np.float64], bounds: Sequence[float], counted: Counted) -> list[int]:
    """Returns the counts of a point's buckets; `edges` are the lower edges of the buckets in `counted`."""
    counts = np.zeros(len(bounds) + 1, np.uint64)
    np.add.at(counts, np.searchsorted(np.array(bounds, np.float64), edges), counted.counts)
    buckets: list[int] = counts.tolist()
    return buckets
