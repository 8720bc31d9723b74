# SPDX-License-Identifier: Apache-2.0
"""Converts times of CLOCK_MONOTONIC_RAW, used in the kernel's perf records, to ticks.

The rate of that clock relative to the timestamp counter is constant.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock, sample_pair

PAIR_S = 0.1  # interval of comparing the clocks: a rate error of 10 parts per million amounts to 1 us


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
        """Returns the ticks of times less than a few seconds ago."""
        if time.monotonic() >= self._paired_at + PAIR_S:
            self._paired_at = time.monotonic()
            self._pair = _pair_clocks(self._clock.ticks_per_second)
        ticks, paired_ns = self._pair
        elapsed_ns = raw_ns.astype(np.int64) - paired_ns
        elapsed = np.rint(elapsed_ns * (self._clock.ticks_per_second / 1e9)).astype(np.int64)
        found: NDArray[np.uint64] = (ticks + elapsed).astype(np.uint64)
        return found

    def duration_ticks(self, raw_ns: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Returns durations in ticks."""
        found: NDArray[np.uint64] = np.rint(raw_ns * (self._clock.ticks_per_second / 1e9)).astype(np.uint64)
        return found


def _pair_clocks(ticks_per_second: float) -> tuple[int, int]:
    """Returns ticks and CLOCK_MONOTONIC_RAW ns of one moment, through CLOCK_REALTIME, to some 100 ns."""
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
