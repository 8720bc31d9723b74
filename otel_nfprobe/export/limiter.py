# SPDX-License-Identifier: Apache-2.0
"""Limiter: which of the selected packets become traces when their number is limited, and how many did not.

Two limits apply in turn: --max-traces-per-second, counted in the packets' own time so that an export of a recording
drops the same ones; and what the monitor can currently send. The order is the same for both: the fair sample is dropped
first, then the late packets that were least late. The rest of the sample is still fair: it has a lower probability,
which the trace state gives. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from otel_nfprobe.pipeline.sampling import REASON_SAMPLE, REASON_SLOW, REASON_SLOWEST, format_threshold

SAMPLE_OVER_LIMIT, SLOW_OVER_LIMIT = "sample over limit", "slow over limit"
SAMPLE_WHILE_BEHIND, SLOW_WHILE_BEHIND = "sample while behind", "slow while behind"
BEHIND_PER_S = 1000.0  # late packets that become traces while the drain itself is behind

_LATE = REASON_SLOW | REASON_SLOWEST
_NEVER = 1 << 56


class Chosen(NamedTuple):
    """The result of applying a limit.

    Attributes:
        kept: of each packet, whether it becomes a trace.
        threshold: of the sample's probability from now on; 0: unchanged.
    """

    kept: npt.NDArray[np.bool_]
    threshold: int = 0


def choose(
    reasons: npt.NDArray[np.uint8],
    latency_ticks: npt.NDArray[np.int64],
    randomness: npt.NDArray[np.uint64],
    allowed: int,
) -> Chosen:
    """Selects at most `allowed` of these packets: late ones first, of them the slowest.

    Args:
        reasons: REASON_* bits of each.
        latency_ticks: of each.
        randomness: low 56 bits of each one's trace id.
    """
    kept = np.ones(len(reasons), np.bool_)
    if len(reasons) <= allowed:
        return Chosen(kept)
    late = (reasons & _LATE) != 0
    slow = np.flatnonzero(late)
    if len(slow) >= allowed:
        kept[~late] = False
        kept[slow[np.argsort(-latency_ticks[slow], kind="stable")[allowed:]]] = False
        return Chosen(kept, _NEVER)
    highest = np.sort(randomness[~late])[::-1]
    threshold = int(highest[allowed - len(slow)]) + 1
    kept[~late & (randomness < np.uint64(threshold))] = False
    return Chosen(kept, threshold)


class Quota:
    """A token bucket that holds one second's worth of tokens, in the packets' own time.

    Args:
        per_s: traces per second; fractions accumulate.
        ticks_per_second: of the session's clock.
    """

    def __init__(self, per_s: float, ticks_per_second: float) -> None:
        self._per_tick = per_s / ticks_per_second
        self._most = max(1.0, per_s)
        self._tokens = self._most
        self._last_ticks: int | None = None

    def count_allowed(self, now_ticks: int) -> int:
        """Returns how many traces may be written now."""
        if self._last_ticks is None:
            self._last_ticks = now_ticks
        passed = max(0, now_ticks - self._last_ticks)
        self._last_ticks += passed
        self._tokens = min(self._most, self._tokens + passed * self._per_tick)
        return max(0, int(self._tokens))

    def take(self, traces: int) -> None:
        """Removes tokens for written traces; an excess is subtracted later."""
        self._tokens -= traces


class Limiter:
    """Applies both limits.

    Args:
        per_s: traces per second; None: as many as are selected.
        ticks_per_second: of the session's clock.
        is_consistent: the sample is decided by the trace ID alone, so its probability can be stated.

    Attributes:
        dropped: traces that were selected and not written, by reason.
        room: traces for which there is room now; None: unlimited.
        is_behind: the drain cannot keep up.
    """

    def __init__(self, per_s: float | None, ticks_per_second: float, is_consistent: bool = False) -> None:
        self.dropped: Counter[str] = Counter()
        self.room: int | None = None
        self.is_behind = False
        self._is_consistent = is_consistent
        self._quota = None if per_s is None else Quota(per_s, ticks_per_second)
        self._behind = Quota(BEHIND_PER_S, ticks_per_second)
        self._threshold = 0

    @property
    def is_needed(self) -> bool:
        """Returns whether `admit` can drop anything."""
        return self._quota is not None or self.room is not None or self.is_behind

    @property
    def trace_state(self) -> str:
        """Returns the trace state of the packets admitted last; empty: the session's applies."""
        if not self._is_consistent or not 0 < self._threshold < _NEVER:
            return ""
        return format_threshold(self._threshold)

    def admit(
        self,
        reasons: npt.NDArray[np.uint8],
        latency_ticks: npt.NDArray[np.int64],
        randomness: npt.NDArray[np.uint64],
        now_ticks: int,
    ) -> npt.NDArray[np.uint8]:
        """Returns the remaining reasons of each packet: 0 if it is not written.

        Args:
            reasons: REASON_* bits of each.
            latency_ticks: of each.
            randomness: low 56 bits of each one's trace id.
            now_ticks: when the newest of them completed.
        """
        remaining: npt.NDArray[np.uint8] = reasons.copy()
        self._threshold = 0
        if self._quota is not None:
            allowed = self._quota.count_allowed(now_ticks)
            self._apply(remaining, latency_ticks, randomness, allowed, (SAMPLE_OVER_LIMIT, SLOW_OVER_LIMIT))
        allowed = len(reasons) if self.room is None else self.room
        if self.is_behind:
            late = int(np.count_nonzero(remaining & _LATE))
            allowed = min(allowed, late, self._behind.count_allowed(now_ticks))
        self._apply(remaining, latency_ticks, randomness, allowed, (SAMPLE_WHILE_BEHIND, SLOW_WHILE_BEHIND))
        self.take(int(np.count_nonzero(remaining)))
        return remaining

    def take(self, traces: int) -> None:
        """Accounts for written traces, including those that are only link targets."""
        if self._quota is not None:
            self._quota.take(traces)
        if self.is_behind:
            self._behind.take(traces)

    def _apply(
        self,
        remaining: npt.NDArray[np.uint8],
        latency_ticks: npt.NDArray[np.int64],
        randomness: npt.NDArray[np.uint64],
        allowed: int,
        words: tuple[str, str],
    ) -> None:
        rows = np.flatnonzero(remaining)
        chosen = choose(remaining[rows], latency_ticks[rows], randomness[rows], allowed)
        gone = rows[~chosen.kept]
        slow = int(np.count_nonzero(remaining[gone] & _LATE))
        for word, count in zip(words, (len(gone) - slow, slow), strict=True):
            if count:
                self.dropped[word] += count
        remaining[gone] = 0
        if chosen.threshold:
            # A late packet outside the smaller sample must not count as part of the sample.
            remaining[randomness < np.uint64(chosen.threshold)] &= np.uint8(0xFF ^ REASON_SAMPLE)
            self._threshold = chosen.threshold
