# SPDX-License-Identifier: Apache-2.0
"""Detail: when the inner functions of a batch are timed. The target decides per batch (native/probe/detail.c).

The monitor writes the rule into the target, and the drain moves its threshold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, BatchFlag, CallFlag, Columns, age_start_ticks
from otel_nfprobe.pipeline.sampling import QuantileTracker
from otel_nfprobe.shm.session import GATE_AUTO, Session

ALWAYS, AUTO = "always", "auto"
ONE_IN = 64  # one in so many batches is detailed, to provide a baseline
UPDATE_S = 0.02  # how often the threshold is written


@dataclass(frozen=True)
class Detail:
    """The rule of `--detail auto`.

    Attributes:
        slow_ns: batches after one of at least this age are detailed; None: no age threshold.
        slowest: batches after one of this slowest share are detailed; None: not requested.
        one_in: one in so many batches is detailed regardless.
    """

    slow_ns: int | None = None
    slowest: float | None = None
    one_in: int = ONE_IN


def choose_detail(session: Session, detail: Detail | None, clock: Clock) -> int:
    """Writes to the target when to time inner functions, before recording is enabled. Returns gate bits to open as
    well.
    """
    if detail is None:
        return 0
    session.header.detail_slow_ticks = clock.find_ticks(detail.slow_ns) if detail.slow_ns else 0
    session.header.detail_one_in = detail.one_in
    return GATE_AUTO


class SlowBatches:
    """Moves the age threshold of slow batches with the quantile of all batches.

    Args:
        session: whose rule has been chosen.
        share: the slowest share of all batches.
    """

    def __init__(self, session: Session, share: float) -> None:
        self._header = session.header
        self._given_ticks = int(self._header.detail_slow_ticks)  # 0: none
        self._ages = QuantileTracker(share)
        self._due_at = 0.0

    def add(self, columns: Columns) -> None:
        """Counts the batches of these columns; writes the threshold when due."""
        self._ages.add(find_ages(columns))
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + UPDATE_S
        known = [ticks for ticks in (self._given_ticks, self._ages.find_threshold()) if ticks]
        self._header.detail_slow_ticks = min(known, default=0)


def follow_slow_batches(session: Session, detail: Detail | None) -> SlowBatches | None:
    """Returns the object that moves the threshold; None: it is fixed."""
    return SlowBatches(session, detail.slowest) if detail is not None and detail.slowest else None


def find_ages(columns: Columns) -> NDArray[np.int64]:
    """Returns for each transmitted or dropped batch the ticks from its earliest arrival to the end of its last transmit
    or drop call.
    """
    calls, batches = columns.calls, columns.batches
    calls = calls[((calls["flags"] & (CallFlag.TRANSMIT | CallFlag.DROP)) != 0) & (calls["batch"] != NONE)]
    ends = np.zeros(len(batches), np.uint64)
    np.maximum.at(ends, calls["batch"], calls["end_ticks"])
    ages = ends.astype(np.int64) - age_start_ticks(batches).astype(np.int64)
    found: NDArray[np.int64] = ages[(ends != 0) & (ages > 0) & ((batches["flags"] & BatchFlag.PRIOR) == 0)]
    return found
