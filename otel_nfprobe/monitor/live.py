# SPDX-License-Identifier: Apache-2.0
"""What a session sees, second by second: `nfprobe top`. Columns and snapshots in, one object a second out.

Times of functions are those of the last second, as are rates; a packet is late if it is as slow as the slowest 1 % of
the second before, and its cause is found as in a report (causes.py), half a second after it was done: then everything
that kept its thread from running is known.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, Columns, Rows, latency_ticks
from otel_nfprobe.causes.baseline import BatchSample
from otel_nfprobe.causes.causes import LateCauses
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.causes.lateness import LatenessStatistics
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.monitor.snapshot import SessionSnapshot
from otel_nfprobe.pipeline.absences import no_absences
from otel_nfprobe.pipeline.flow import describe_flow
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from otel_nfprobe.probes.calibration import costs_by_id
from otel_nfprobe.shm.session import THREAD_COUNT
from otel_nfprobe.shm.threadcounts import ThreadCounts

JUDGED_AFTER_S, LEARN_S = 0.5, 0.25
LATE_QUANTILE = 0.99  # of a second: by default only packets beyond the 99.9th percentile are identified
HELD_COLUMNS_MAX = 4096  # that wait to be judged
HELD_CALLS_MAX = 4_000_000
ABSENCES_KEPT = 20_000
LATE_MAX = 20  # packets of one look


@dataclass
class _Held:
    at_s: float
    columns: Columns


class LiveView:
    """Looks on at one session; made when it has begun.

    Args:
        monitor: of the session.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._statistics, self._sample = self._begin_statistics(), BatchSample()
        self._lateness, self._lateness_before = LatenessStatistics(), LatenessStatistics()
        self._held: deque[_Held] = deque()
        self._held_calls = 0
        self._absences: deque[Rows] = deque()
        self._judge = LateCauses(1 << 62, self._sample.baseline(), no_absences())
        self._late: list[dict[str, Any]] = []
        self._late_count = 0
        self._late_ticks, self._learn_at_s = 0, 0.0
        self._busy_ticks = np.zeros(THREAD_COUNT)
        self._before = monitor.snapshot()
        self._ns_per_tick = 1e9 / self._before.ticks_per_second
        monitor.drain.observer = self

    def add(self, columns: Columns) -> None:
        """Takes drained columns; called by the drain."""
        for part in (self._statistics, self._lateness, self._sample):
            part.add(columns)
        ticks = (
            (columns.batches["end_ticks"] - columns.batches["start_ticks"]).astype(np.int64).clip(0).astype(np.float64)
        )
        self._busy_ticks += np.bincount(columns.batches["thread"], ticks, THREAD_COUNT)[:THREAD_COUNT]
        if len(columns.calls) or len(columns.packets):
            self._held.append(_Held(time.monotonic(), columns))
            self._held_calls += len(columns.calls)
        if self._held and self._is_due() and time.monotonic() >= self._learn_at_s:
            self._learn()
        while self._held and self._is_due():
            self._find_late(self._held.popleft().columns)

    def _is_due(self) -> bool:
        is_old = self._held[0].at_s < time.monotonic() - JUDGED_AFTER_S
        return is_old or len(self._held) > HELD_COLUMNS_MAX or self._held_calls > HELD_CALLS_MAX

    def add_absences(self, rows: Rows) -> None:
        """Takes absences; called by the drain."""
        self._absences.append(rows)
        while sum(map(len, self._absences)) > ABSENCES_KEPT and len(self._absences) > 1:
            self._absences.popleft()

    def take(self) -> dict[str, Any]:
        """Returns what happened since the last look; call from the draining thread."""
        now, before = self._monitor.snapshot(), self._before
        self._before = now
        elapsed_s = max(now.elapsed_s - before.elapsed_s, 1e-3)
        functions, self._statistics = self._statistics.functions(), self._begin_statistics()
        self._lateness_before, self._lateness = self._lateness, LatenessStatistics()
        late, self._late = self._late, []
        late_count, self._late_count = self._late_count, 0
        busy_ticks, self._busy_ticks = self._busy_ticks, np.zeros(THREAD_COUNT)
        threads = self._describe_threads(now, before, elapsed_s, busy_ticks)
        target = self._monitor.attachment.target
        cost_ticks = now.template_ticks + now.code_ticks - before.template_ticks - before.code_ticks
        return {
            "pid": target.pid,
            "name": target.name,
            "elapsed_s": round(now.elapsed_s, 3),
            "threads": threads,
            "functions": self._describe_functions(functions, threads, elapsed_s),
            "late": {"over_ns": self._ns(self._late_ticks), "packets": late_count, "slowest": late},
            "lost": now.lost_records - before.lost_records,
            "cost": {
                "share_of_core": round(max(cost_ticks, 0.0) / (elapsed_s * now.ticks_per_second), 5),
                "probes": now.placed,
            },
        }

    def _begin_statistics(self) -> Statistics:
        statistics, attachment = Statistics(), self._monitor.attachment
        statistics.set_costs(costs_by_id(attachment.probes, attachment.costs))
        return statistics

    def _learn(self) -> None:
        """Judges packets by the last second, and batches by all that the session has seen so far."""
        self._learn_at_s = time.monotonic() + LEARN_S
        self._late_ticks = _find_late_ticks(self._lateness_before) or _find_late_ticks(self._lateness)
        absences = np.concatenate([no_absences(), *self._absences])
        self._judge.learn(max(self._late_ticks, 1), self._sample.baseline(), absences)

    def _find_late(self, columns: Columns) -> None:
        self._held_calls -= len(columns.calls)
        both, packets, causes = self._judge.find(columns)
        self._late_count += len(packets)
        if not len(packets):
            return
        latency = latency_ticks(both)[packets]
        for row in np.argsort(latency)[::-1][:LATE_MAX].tolist():
            self._late.append(self._describe_late(both, int(packets[row]), int(latency[row]), causes[row]))
        self._late = sorted(self._late, key=lambda one: -int(one["latency_ns"]))[:LATE_MAX]

    def _describe_late(self, columns: Columns, row: int, ticks: int, cause: np.void) -> dict[str, Any]:
        packet, function = columns.packets[row], int(cause["function"])
        names = self._monitor.attachment.names_by_id()
        unix_ns = self._monitor.drain.clock.convert(np.array([packet["done_ticks"]], np.uint64))
        return {
            "id": f"{int(packet['id']):016x}",
            "flow": describe_flow(packet, columns.topic(int(packet["digest"]))),
            "done_unix_ns": int(unix_ns[0]),
            "latency_ns": self._ns(ticks),
            "cause": CauseKind(int(cause["kind"])).name.lower(),
            "function": names[function] if function != NONE and function < len(names) else None,
            "by": cause["by"].decode("utf-8", "replace") or None,
            "excess_ns": self._ns(int(cause["excess_ticks"])),
        }

    def _describe_threads(
        self, now: SessionSnapshot, before: SessionSnapshot, elapsed_s: float, busy_ticks: NDArray[np.float64]
    ) -> list[dict[str, Any]]:
        earlier = {(thread.index, thread.start_ticks): thread for thread in before.threads}
        nothing = ThreadCounts(*(0,) * 14, (0, 0, 0))
        found = []
        for thread in now.threads:
            then = earlier.get((thread.index, thread.start_ticks), replace(nothing, index=thread.index))
            # The target may write any counts, also smaller ones than before.
            batches, packets = max(thread.batches - then.batches, 0), max(thread.received - then.received, 0)
            polls = thread.empty_polls - then.empty_polls
            if not thread.tid or not (batches or polls or thread.transmitted - then.transmitted):
                continue
            busy_s, polled_s = (
                ticks * self._ns_per_tick / 1e9
                for ticks in (float(busy_ticks[thread.index]), max(thread.empty_ticks - then.empty_ticks, 0))
            )
            found.append(
                {
                    "tid": thread.tid,
                    "name": now.thread_names.get(thread.tid, ""),
                    "packets_per_s": round(packets / elapsed_s, 1),
                    "batches_per_s": round(batches / elapsed_s, 1),
                    "batch_size": round(packets / batches, 2) if batches else None,
                    "busy_share": round(min(busy_s / elapsed_s, 1.0), 4),
                    "poll_share": round(min(polled_s / elapsed_s, 1.0), 4),
                    "lost": sum(thread.lost) - sum(then.lost),
                }
            )
        return sorted(found, key=lambda thread: -float(thread["packets_per_s"]))

    def _describe_functions(self, rows: Rows, threads: list[dict[str, Any]], elapsed_s: float) -> list[dict[str, Any]]:
        names = self._monitor.attachment.names_by_id()
        busy_s = elapsed_s * sum(one["busy_share"] for one in threads)
        found = []
        for row in rows:
            function, self_ns = int(row["function"]), int(row["self_ticks"]) * self._ns_per_tick
            found.append(
                {
                    "id": function,
                    "name": (names[function] if function < len(names) else "") or f"function {function}",
                    "calls_per_s": round(int(row["count"]) / elapsed_s, 1),
                    **{f"{name}_ns": self._ns(int(row[f"{name}_ticks"])) for name in ("p50", "p99", "max")},
                    "self_share": round(min(self_ns / 1e9 / busy_s, 1.0), 4) if busy_s else None,
                }
            )
        return sorted(found, key=lambda one: -(one["self_share"] or 0.0))

    def _ns(self, ticks: int) -> int:
        return round(ticks * self._ns_per_tick)


def _find_late_ticks(statistics: LatenessStatistics) -> int:
    """Returns the least latency that counts with the slowest 1 %: where the threshold's bucket begins."""
    ticks = statistics.find_late_ticks(LATE_QUANTILE)
    below = [value for value, _ in statistics.histogram(Distribution.PACKET_TICKS) if value < ticks]
    return int(below[-1]) + 1 if below else ticks
