# SPDX-License-Identifier: Apache-2.0
"""The cost of the two programs of a measured kernel function, measured on nfprobe's own process.

Its system call getppid does almost nothing, in a function of its own.
"""

from __future__ import annotations

import os
import time
from itertools import repeat
from typing import NamedTuple

import numpy as np

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.kernel.kernelprobe import TRACEPOINTS, KernelProbe, find_whose

FUNCTION = "__x64_sys_getppid"
CALLS = 5000
ROUNDS = 7
RING_BYTES = 1 << 20  # holds a whole round


class KernelCost(NamedTuple):
    """Cost of one measured call, in ns: between the two clock readings, and in total."""

    inside_ns: float
    whole_ns: float


def measure_cost(strategy: str) -> KernelCost | None:
    """Returns the cost of a strategy (kernelprobe.py), measured in some 50 ms; None if it cannot be measured.

    The body of getppid counts as cost: it takes a few ns and cannot be separated.
    """
    bare_ns = min(_call_ns() for _ in range(ROUNDS))
    try:
        probe = KernelProbe(FUNCTION, find_whose(os.getpid()), RING_BYTES, strategy == TRACEPOINTS)
    except NfprobeError:
        return None
    try:
        probed_ns, inside_ns = float("inf"), float("inf")
        for _ in range(ROUNDS):
            probed_ns = min(probed_ns, _call_ns())
            calls = probe.take()
            if len(calls):
                inside_ns = min(inside_ns, float(np.median(calls["duration_ns"])))
    finally:
        probe.close()
    if inside_ns == float("inf"):
        return None
    return KernelCost(inside_ns, max(inside_ns, probed_ns - bare_ns))


def _call_ns() -> float:
    """Returns the CPU time of one call, including the loop."""
    call = os.getppid
    start = time.thread_time_ns()
    for _ in repeat(None, CALLS):
        call()
    return (time.thread_time_ns() - start) / CALLS
