# SPDX-License-Identifier: Apache-2.0
"""Times of CLOCK_MONOTONIC_RAW, which the kernel's perf records carry, as ticks.

The rate of that clock against the time stamp counter is constant.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock, sample_pair

PAIR_S = 0.1  # how often the clocks are compared: a rate that is off by 10 parts per million makes 1 us of it


class RawClock:
    """Converts CLOCK_MONOTONIC_RAW to ticks.

    Args:
        clock: of the session; for its rate.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pair = (0, 0)
        self._paired_at = 0.0

    def ticks(self, raw_ns: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Ticks of moments that lie less than some seconds back."""
        if time.monotonic() >= self._paired_at + PAIR_S:
            self._paired_at = time.monotonic()
            self._pair = _pair_clocks(self._clock.ticks_per_second)
        ticks, paired_ns = self._pair
        elapsed_ns = raw_ns.astype(np.int64) - paired_ns
        elapsed = np.rint(elapsed_ns * (self._clock.ticks_per_second / 1e9)).astype(np.int64)
        found: NDArray[np.uint64] = (ticks + elapsed).astype(np.uint64)
        return found


def _pair_clocks(ticks_per_second: float) -> tuple[int, int]:
    """Ticks and CLOCK_MONOTONIC_RAW ns of one moment, by way of CLOCK_REALTIME, to some 100 ns."""
    best: tuple[int, int, int] | None = None
    for _ in range(8):
        before = time.time_ns()
        raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        width = time.time_ns() - before
        if best is None or width < best[0]:
            best = (width, before + width // 2, raw_ns)
    assert best is not None
    pair = sample_pair()
    ticks = pair.ticks - round((pair.unix_ns - best[1]) * ticks_per_second / 1e9)
    return ticks, best[2]
