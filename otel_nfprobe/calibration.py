# SPDX-License-Identifier: Apache-2.0
"""Calibration: the cost of one probed call on this CPU."""

from __future__ import annotations

from functools import lru_cache

from otel_nfprobe._core import lib


@lru_cache(maxsize=1)
def ticks_per_call() -> float:
    """Ticks that an entry and an exit probe add to a call, measured now with the real trampoline.

    Zero where the monitor may not make memory executable: then the cost is not known.
    """
    return max(0.0, float(lib.nfp_calibrate_call()))
