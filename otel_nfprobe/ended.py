# SPDX-License-Identifier: Apache-2.0
"""Which entries of the thread table belong to threads that have ended. Reads only. Called by drain.py.

A target that makes threads all the time would use up the table; rings of ended threads are given to new ones.
"""

from __future__ import annotations

import time
from pathlib import Path

from otel_nfprobe.namespaces import namespace_ids
from otel_nfprobe.session import THREAD_COUNT, Session

PROC = Path("/proc")
LOOK_S = 1.0
CROWDED_LOOK_S = 0.02  # while many entries are in use
CROWDED_ENTRIES = THREAD_COUNT // 8
KEPT_ENTRIES = THREAD_COUNT // 2  # so many entries may be kept for the counters of ended packet threads


class EndedThreads:
    """Looks for ended threads, now and then."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._looked_at = 0.0
        self._is_nested: bool | None = None

    def find(self) -> list[int]:
        """Thread table entries of threads that have ended; nothing when it is not time to look."""
        now, used = time.monotonic(), len(self._session.thread_indexes())
        if now < self._looked_at + (CROWDED_LOOK_S if used > CROWDED_ENTRIES else LOOK_S):
            return []
        self._looked_at = now
        claims = self._session.thread_claims()  # before the list: who claims now is in it
        try:
            living = self._living()
        except OSError:
            return []
        newest = {tid: start for _, tid, start, _ in sorted(claims, key=lambda claim: claim[2])}
        many = len(claims) > KEPT_ENTRIES
        return [
            index
            for index, tid, start, has_counters in claims
            if (tid not in living or start != newest[tid]) and (many or not has_counters)
        ]

    def _living(self) -> set[int]:
        """Thread ids as the target sees them."""
        tasks = PROC / str(self._session.pid) / "task"
        if self._is_nested is None:
            self._is_nested = len(namespace_ids(tasks.parent)) > 1
        if not self._is_nested:
            return {int(task.name) for task in tasks.iterdir()}
        living = set()
        for task in tasks.iterdir():
            try:
                living.add(namespace_ids(task)[-1])
            except OSError:
                continue  # ended meanwhile
        return living
