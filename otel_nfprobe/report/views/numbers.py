# SPDX-License-Identifier: Apache-2.0
"""Numbers as text for display: durations, sizes, counts, shares."""

from __future__ import annotations

import math

import numpy as np

from otel_nfprobe.pipeline.histogram_buckets import lowers_of
from otel_nfprobe.pipeline.statistics import SIZES_EXACT


def format_duration(duration_ns: float) -> str:
    """Formats a duration with three significant digits, in the largest unit in which it is at least one: `12.3 us`."""
    if not math.isfinite(duration_ns):
        return "-"
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        # Chosen after rounding, so that 999.96 us is printed as 1.00 ms and not as 1000 us.
        if abs(duration_ns) >= unit_ns * 0.9995:
            return f"{_three_digits(duration_ns / unit_ns)} {unit}"
    return f"{duration_ns:.0f} ns"


def format_count(count: int) -> str:
    """Formats a count: `1,234,567`."""
    return f"{count:,}"


def format_size(size: int) -> str:
    """Formats a size of `size_histogram`: `256`, or the range of its bucket: `9216..9471`."""
    return str(size) if size < SIZES_EXACT else f"{int(lowers_of(np.array([size], np.uint64))[0])}..{size}"


def _three_digits(number: float) -> str:
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{digits}f}"
