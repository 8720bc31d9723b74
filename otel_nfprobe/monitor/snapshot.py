# SPDX-License-Identifier: Apache-2.0
"""Snapshot: the state of a session at one moment. The summary, metrics and the progress line read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import RECEIVE, NumberingAdapter
from otel_nfprobe.base.columns import RECORD
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.drain import Drain
from otel_nfprobe.pipeline.pipeline import PipelineCounts
from otel_nfprobe.probes.calibration import Cost, ticks_per_call
from otel_nfprobe.shm.session import LOST_CLASSES
from otel_nfprobe.shm.threadcounts import LateCounts, ThreadCounts

CACHE_LINE_BYTES = 64
IN_CONTEXT = 2  # times as much as calibrated: bare trampolines in dpdk-testpmd (bench_testpmd)
LINE_TICKS = 50  # at most, of a line that the second cache or the last one still has
TIMED_EVERY: int = lib.NFP_TIMED_EVERY


@dataclass(frozen=True)
class SessionSnapshot:
    """One session at one moment.

    Attributes:
        elapsed_s: since recording was enabled; for a finished session, its duration.
        ticks_per_second: of its clock.
        counts: of the pipeline.
        threads: counts of the target's threads.
        thread_names: comm by thread ID.
        late: counts of late capture; None without it.
        lost: records by class, including torn and mistimed ones.
        placed: armed probes.
        costs: of a probed call, by strategy.
        records: read so far.
        counts_calls: batches and packets are derived from calls: the threads have not counted them.
        may_generate: the network function can send packets that it has not received, and each one was checked.
    """

    elapsed_s: float
    ticks_per_second: float
    counts: PipelineCounts
    threads: tuple[ThreadCounts, ...]
    thread_names: Mapping[int, str]
    late: tuple[LateCounts, ...] | None
    lost: Mapping[str, int]
    placed: int
    costs: Mapping[str, Cost]
    records: int
    counts_calls: bool
    may_generate: bool

    @classmethod
    def take(cls, attachment: Attachment, drain: Drain, elapsed_s: float) -> SessionSnapshot:
        """Returns the current state; call from the draining thread."""
        session, choice, counts = attachment.session, attachment.choice, drain.pipeline.counts()
        threads = tuple(session.threads.counts())
        by_class = np.array([*(thread.lost for thread in threads), session.unregistered()]).sum(axis=0).tolist()
        lost = {**dict(zip(LOST_CLASSES, by_class, strict=True)), "torn": session.torn, "mistimed": counts.mistimed}
        return cls(
            elapsed_s=elapsed_s,
            ticks_per_second=drain.clock.ticks_per_second,
            counts=counts,
            threads=threads,
            thread_names=drain.thread_names,
            late=None if drain.late is None else tuple(session.threads.late_counts()),
            lost=lost,
            placed=len(attachment.follower.placed),
            costs=attachment.costs,
            records=drain.records,
            counts_calls=not any(role.role == RECEIVE for role in choice.roles),
            may_generate=isinstance(choice.adapter, NumberingAdapter) and not any(lost.values()),
        )

    @property
    def lost_records(self) -> int:
        """Records that are missing: ring full, no ring yet, damaged or with an impossible time."""
        return sum(self.lost.values())

    @property
    def elapsed_ticks(self) -> float:
        """Elapsed ticks, at least 1."""
        return max(1.0, self.elapsed_s * self.ticks_per_second)

    @property
    def template_ticks(self) -> float:
        """What the probes' templates took, as calibrated: of calls, and of receive calls that returned packets."""
        receives = 0 if self.counts_calls else sum(thread.batches for thread in self.threads)
        return (self.counts.calls + receives) * ticks_per_call(self.costs)

    @property
    def code_ticks(self) -> float:
        """What the probes' C code took, capture included, by the calls of it that the threads timed themselves.

        The target can write any number: of each thread at most the session's time.
        """
        return sum(min(thread.timed_ticks * TIMED_EVERY, self.elapsed_ticks) for thread in self.threads)

    @property
    def share_of_core(self) -> float:
        """What the probes executed in the target, as a share of one core."""
        return (self.template_ticks + self.code_ticks) / self.elapsed_ticks

    @property
    def share_of_core_max(self) -> float:
        """The same and what else they can have cost: time stamps keep the target's own instructions from running ahead,
        which an empty function, as calibrated, does not feel; and for each cache line of records the target may have to
        read one of its own again.
        """
        lines = self.records * RECORD.itemsize / CACHE_LINE_BYTES
        more_ticks = (IN_CONTEXT - 1) * self.template_ticks + lines * LINE_TICKS
        return self.share_of_core + more_ticks / self.elapsed_ticks

    def received(self) -> tuple[int, int]:
        """Returns the batches and packets received so far."""
        if self.counts_calls:
            return self.counts.batches, self.counts.received
        return sum(count.batches for count in self.threads), sum(count.received for count in self.threads)

    def packets(self) -> dict[str, int]:
        """Returns packets received, and by disposition. The threads' counters are exact even when records are lost."""
        counts, threads = self.counts, self.threads
        if self.counts_calls:
            received, transmitted, dropped, punted = counts.received, counts.transmitted, counts.dropped, counts.punted
        else:
            received = sum(count.received for count in threads)
            transmitted = sum(count.transmitted for count in threads)
            dropped = sum(count.dropped for count in threads) + counts.freed
            punted = sum(count.punted for count in threads)
        generated = counts.generated if self.may_generate else 0
        unknown = max(0, received + generated - transmitted - dropped - punted - counts.absorbed)
        found = {"received": received, "transmitted": transmitted, "dropped": dropped, "unknown": unknown}
        rare = {"punted": punted, "absorbed": counts.absorbed, "generated": generated}
        return {**found, **{name: count for name, count in rare.items() if count}}
