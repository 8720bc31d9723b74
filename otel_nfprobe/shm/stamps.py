# SPDX-License-Identifier: Apache-2.0
"""Bounds for the time stamps of drained records: the monitor's own counter, when the session began and now.

What lies outside becomes a LOST record before it is recorded, so that a replay sees the same.
"""

from __future__ import annotations

from typing import Any

from otel_nfprobe._core import lib

SKEW_TICKS = 1 << 26  # counters of a machine's processors differ by less: 20 ms
BEFORE_TICKS = 1 << 32  # a call may have been entered before the session was opened: a second


class StampBounds:
    """Which stamps can be. Follows the monitor's own counter when it steps back, as after a migration."""

    def __init__(self) -> None:
        self._last_ticks = int(lib.nfp_ticks_now())
        self._earliest_ticks = max(0, self._last_ticks - BEFORE_TICKS)

    def apply(self, records: Any, count: int) -> int:
        """Replaces the records that are stamped with a moment that cannot be. Returns how many.

        Args:
            records: a cffi array of struct nfp_record, drained before this call.
            count: of its records.
        """
        now_ticks = int(lib.nfp_ticks_now())
        if now_ticks + SKEW_TICKS < self._last_ticks:
            self._earliest_ticks = 0  # where the counter has begun anew is not known
        self._last_ticks = now_ticks
        return int(lib.nfp_stamps_bound(records, count, self._earliest_ticks, now_ticks + SKEW_TICKS))
