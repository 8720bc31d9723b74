# SPDX-License-Identifier: Apache-2.0
"""Late capture: controls which packets the target identifies (docs/late-capture.md).

The target decides when it transmits or drops a packet, by two words of its thread (native/probe/late.c): the age
threshold, and the share of batches sampled. The monitor moves the threshold with the quantile of all packets, known
from the transmit and drop calls. Updated with each drain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Columns
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.pipeline.sampling import FADE_S, QuantileTracker, find_population
from otel_nfprobe.shm.session import GATE_LATE, GATE_PACKETS, LATE_NEVER, SAMPLE_ALL, Session

ALL, SLOW, NONE = "all", "slow", "none"
PACKET_GATES = {ALL: GATE_PACKETS, SLOW: GATE_LATE, NONE: 0}
UPDATE_S = 0.02  # interval of writing thresholds
COPIED_MAX = 192  # bytes of a packet: NFP_LATE_COPY_BYTES (native/probe/late.h)
MARGIN = 2.0  # identifies this multiple of the requested share: the quantile moves before packets are selected
HANDED_OVER_MIN, HANDED_OVER_SHARE = 1000, 0.1  # thresholds for a notice: packets, and share of those received
DEFAULT_SHARE = 0.001  # default share, both of the slowest and of the random sample


@dataclass(frozen=True)
class CapturePolicy:
    """Which packets the user requested.

    Attributes:
        slower_than_ns: those with a higher age; None: not requested.
        slowest: the slowest share of all; None: not requested.
        sample: random share of all batches.
    """

    slower_than_ns: int | None = None
    slowest: float | None = None
    sample: float = 0.0

    @classmethod
    def choose(cls, slower_than_ns: int | None, slowest: float | None, sample: float | None) -> CapturePolicy:
        """Returns the requested policy; by default, the slowest thousandth and a random thousandth."""
        if slower_than_ns is None and slowest is None and sample is None:
            return cls(None, DEFAULT_SHARE, DEFAULT_SHARE)
        return cls(slower_than_ns, slowest, sample or 0.0)


class LateCapture:
    """Keeps the control words of one session's threads up to date.

    Args:
        session: recording not yet enabled.
        policy: which packets to identify.
        clock: of the session.
    """

    def __init__(self, session: Session, policy: CapturePolicy, clock: Clock) -> None:
        self._session = session
        self._share = policy.slowest
        self._sample = round(policy.sample * SAMPLE_ALL)
        self._fixed = LATE_NEVER if policy.slower_than_ns is None else clock.find_ticks(policy.slower_than_ns)
        self._all: QuantileTracker | None = QuantileTracker(policy.slowest) if policy.slowest else None
        self._of_thread: dict[int, QuantileTracker] = {}
        self._told_bytes: dict[int, int] = {}  # by entry of the thread table
        self._told_handed_over = False
        self._due_at = 0.0
        self._fades_at = time.monotonic() + FADE_S
        session.choose_packets(self._fixed, self._sample)

    def add(self, columns: Columns) -> None:
        """Counts the packets of these columns; writes thresholds when due."""
        population = find_population(columns) if self._all is not None else None
        if population is None or self._all is None:
            return
        self._all.add(population.latency_ticks, population.weights)
        for thread in distinct(population.thread).tolist():
            rows = population.thread == thread
            tracker = self._of_thread.setdefault(thread, QuantileTracker(self._all.share))
            tracker.add(population.latency_ticks[rows], population.weights[rows])
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + UPDATE_S
            self._fade(self._all)
            self._write(self._all)

    def _fade(self, of_all: QuantileTracker) -> None:
        if time.monotonic() < self._fades_at:
            return
        self._fades_at = time.monotonic() + FADE_S
        for tracker in (of_all, *self._of_thread.values()):
            tracker.fade()

    def _write(self, of_all: QuantileTracker) -> None:
        # The slowest share of all packets is exported; of each thread, its own slowest share is recorded as well.
        edge = of_all.find_threshold(MARGIN)
        self._session.choose_packets(self._lowest(edge), self._sample)
        for thread, tracker in self._of_thread.items():
            self._session.choose_packets(self._lowest(edge, tracker.find_threshold(MARGIN)), self._sample, thread)

    def _lowest(self, *edges: int | None) -> int:
        return min(self._fixed, *(edge for edge in edges if edge is not None), LATE_NEVER)

    def find_copying(self) -> Iterator[str]:
        """Yields a sentence for each thread whose packets do not stay as they are, again where more bytes do not."""
        copied = {index: min(size, COPIED_MAX) for index, size in self._session.threads.copying().items()}
        more = {index for index, size in copied.items() if size > self._told_bytes.get(index, 0)}
        if not more:
            return
        self._told_bytes |= {index: copied[index] for index in more}
        tids = {count.index: count.tid for count in self._session.threads.counts()}
        for count in self._session.threads.late_counts():
            if count.index in more:
                yield (
                    f"Packets change before the transmit calls of thread {tids.get(count.index, 0)} end"
                    f" ({count.differing} of {count.checked} checked): the first {copied[count.index]} bytes of each"
                    " are copied before each call from now on."
                )

    def find_handed_over(self) -> Iterator[str]:
        """Yields a sentence, once, if packets received by one thread are transmitted or dropped by another."""
        if self._told_handed_over:
            return
        of_thread, handed_on = self._session.threads.packet_balance()
        surplus, received = of_thread - handed_on, int(of_thread.sum())
        moved = int(min(surplus.clip(min=0).sum(), -surplus.clip(max=0).sum()))
        if moved < max(HANDED_OVER_MIN, HANDED_OVER_SHARE * received):
            return
        self._told_handed_over = True
        yield (
            f"{moved} of {received} packets were received by one thread and transmitted or dropped by another:"
            f" --packets slow does not identify those."
            f" To identify them: nfprobe attach {self._session.pid} --packets all"
        )
