# SPDX-License-Identifier: Apache-2.0
"""Thread reaper: finds thread table entries of ended threads. Reads only.

A target that constantly creates threads would exhaust the table, so rings of ended threads are reused. Two threads with
one ring would destroy each other's records; therefore a thread counts as ended only when the kernel says so of this
very thread, twice: at once, and again after its ring was drained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from otel_nfprobe.shm.session import THREAD_COUNT, Session
from otel_nfprobe.shm.threadtable import Claims

LOOK_S = 1.0
CROWDED_ENTRIES = THREAD_COUNT // 8  # with more in use, checks often enough for NEW_PER_S new threads
NEW_PER_S = 10000
KEPT_ENTRIES = THREAD_COUNT // 2  # maximum of entries kept for the counters of ended packet threads


class EndedThreads:
    """Finds ended threads at intervals."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._looked_at = 0.0
        self._claims: Claims | None = None

    def find(self) -> list[int]:
        """Returns thread table entries of ended threads; empty when the interval has not elapsed."""
        now = time.monotonic()
        if now < self._looked_at + _find_pause_s(self._session.used_entries()):
            return []
        self._looked_at = now
        claims = self._claims = self._session.threads.claims()
        gone = claims.are_outdated() | self._session.threads.ids.surely_gone(claims.tid)
        if len(claims.index) <= KEPT_ENTRIES:
            gone &= ~claims.has_counters
        return [int(index) for index in claims.index[gone]]

    def confirm(self, found: Sequence[int]) -> list[int]:
        """Returns which of these entries, from the last `find`, are unchanged and whose threads are still gone when
        checked again.
        """
        before = self._claims
        if before is None or not found:
            return []
        now = self._session.threads.claims()
        was_found = np.zeros(THREAD_COUNT, np.bool_)
        was_found[found] = True
        asked = np.flatnonzero(was_found[now.index] & now.were_in(before))
        gone = now.are_outdated()[asked] | self._session.threads.ids.surely_gone(now.tid[asked])
        return [int(index) for index in now.index[asked[gone]]]


def _find_pause_s(used: int) -> float:
    return LOOK_S if used <= CROWDED_ENTRIES else (THREAD_COUNT - used) / NEW_PER_S
