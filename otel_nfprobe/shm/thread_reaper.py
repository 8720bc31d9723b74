# SPDX-License-Identifier: Apache-2.0
"""Which entries of the thread table belong to threads that have ended. Reads only.

A target that makes threads all the time would use up the table; rings of ended threads are given to new ones. Two
threads with one ring would destroy each other's records, so a thread counts as ended only when the kernel says so of
this very thread, two times: now, and once more when its ring was drained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from otel_nfprobe.shm.session import THREAD_COUNT, Session
from otel_nfprobe.shm.threadtable import Claims

LOOK_S = 1.0
CROWDED_ENTRIES = THREAD_COUNT // 8  # more of them in use: it looks in time for so many new threads to find a free one
NEW_PER_S = 10000
KEPT_ENTRIES = THREAD_COUNT // 2  # so many entries may be kept for the counters of ended packet threads


class EndedThreads:
    """Looks for ended threads, now and then."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._looked_at = 0.0
        self._claims: Claims | None = None

    def find(self) -> list[int]:
        """Thread table entries of threads that have ended; nothing when it is not time to look."""
        now = time.monotonic()
        if now < self._looked_at + _find_pause_s(self._session.used_entries()):
            return []
        self._looked_at = now
        claims = self._claims = self._session.thread_claims()
        gone = claims.are_outdated() | self._session.surely_gone(claims.tid)
        if len(claims.index) <= KEPT_ENTRIES:
            gone &= ~claims.has_counters
        return [int(index) for index in claims.index[gone]]

    def confirm(self, found: Sequence[int]) -> list[int]:
        """Which of these, which `find` has just given, are gone when it is asked again, their entries as they were."""
        before = self._claims
        if before is None or not found:
            return []
        now = self._session.thread_claims()
        was_found = np.zeros(THREAD_COUNT, np.bool_)
        was_found[found] = True
        asked = np.flatnonzero(was_found[now.index] & now.were_in(before))
        gone = now.are_outdated()[asked] | self._session.surely_gone(now.tid[asked])
        return [int(index) for index in now.index[asked[gone]]]


def _find_pause_s(used: int) -> float:
    return LOOK_S if used <= CROWDED_ENTRIES else (THREAD_COUNT - used) / NEW_PER_S
