# SPDX-License-Identifier: Apache-2.0
"""Bounds of the timestamps of drained records: the monitor's own counter, at the start of the session and now.

Records outside are replaced by LOST records before they are recorded, so that a replay sees the same.
"""

from __future__ import annotations

from typing import Any

from otel_nfprobe._core import lib

SKEW_TICKS = 1 << 26  # maximum skew between the counters of a machine's processors: 20 ms
BEFORE_TICKS = 1 << 32  # a call may have been entered before the session was opened: one second


class StampBounds:
    """The valid range of timestamps. Follows the monitor's own counter when it steps back, as after a migration."""

    def __init__(self) -> None:
        self._last_ticks = int(lib.nfp_ticks_now())
        self._earliest_ticks = max(0, self._last_ticks - BEFORE_TICKS)

    def apply(self, records: Any, count: int) -> int:
        """Replaces records with impossible timestamps. Returns their number.

        Args:
            records: a cffi array of struct nfp_record, drained before this call.
            count: number of its records.
        """
        now_ticks = int(lib.nfp_ticks_now())
        if now_ticks + SKEW_TICKS < self._last_ticks:
            self._earliest_ticks = 0  # the start of the restarted counter is unknown
        self._last_ticks = now_ticks
        return int(lib.nfp_stamps_bound(records, count, self._earliest_ticks, now_ticks + SKEW_TICKS))
