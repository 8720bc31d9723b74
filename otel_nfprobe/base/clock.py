# SPDX-License-Identifier: Apache-2.0
"""The clock: converts ticks of the timestamp counter to Unix ns, by anchors that never change once appended.

A live session calls `start` once and `advance` about once a second; the encoder and a recording use the anchors. Each
anchor continues the conversion of the previous one, so converted time neither jumps nor runs backwards; its rate is
chosen to halve the error by the next one.

When CLOCK_REALTIME is set (a step of more than 10 ms), the session stays on its original timeline: a step inside a
packet's latency would be worse than a wrong date. `stepped_ns` is the difference between the two.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.errors import UsageError

ANCHOR = np.dtype([("ticks", "<u8"), ("unix_ns", "<u8"), ("ns_per_tick_q32", "<u8")])
STEP_NS = 10_000_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_START_PAIRS = 50
_START_INTERVAL_S = 0.001
_WINDOW_PAIRS = 16
_SLEW_NS_MIN = 2_000_000_000
# A change of rate of 500 parts per million is what adjtime(3) uses: no duration suffers visibly.
_SLEW_RATE_MAX = 500e-6
# Timestamp counters run at 100 MHz to 10 GHz; a rate outside that range means a damaged recording.
_TICKS_MAX = 2.0**62  # a damaged recording may contain any timestamp
_Q32_MAX = 1 << 40


class ClockPair(NamedTuple):
    """One reading of both clocks: ticks, Unix ns, and the largest possible distance between the two readings in
    ticks.
    """

    ticks: int
    unix_ns: int
    uncertainty_ticks: int


def sample_pair() -> ClockPair:
    """Reads the timestamp counter and CLOCK_REALTIME together."""
    pair = ffi.new("struct nfp_clock_pair *")
    lib.nfp_clock_sample(pair)
    return ClockPair(pair.ticks, pair.unix_ns, pair.uncertainty_ticks)


def read_boot_id() -> str:
    """Returns the ID of the running kernel's boot; empty if it cannot be read. Ticks of one boot are of one clock."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Clock:
    """Converts ticks to Unix ns.

    Attributes:
        anchors: array of dtype ANCHOR, at least one, ordered by ticks. Grows by `advance`; entries never change.
        error_ns: the largest observed difference between a pair and the conversion, including the pair's own
            uncertainty, on the session's original timeline.
        stepped_ns: how far CLOCK_REALTIME was set away from that timeline (positive: forward).
    """

    def __init__(self, anchors: npt.NDArray[np.void], error_ns: int, stepped_ns: int = 0) -> None:
        self.anchors = anchors
        self.error_ns = error_ns
        self.stepped_ns = stepped_ns
        self._pairs: deque[ClockPair] = deque(maxlen=_WINDOW_PAIRS)

    @classmethod
    def start(cls) -> Clock:
        """Samples pairs for about 50 ms and creates the first anchor."""
        pairs = [sample_pair()]
        for _ in range(_START_PAIRS):
            time.sleep(_START_INTERVAL_S)
            pairs.append(sample_pair())
        return cls.from_pairs(pairs)

    @classmethod
    def from_pairs(cls, pairs: list[ClockPair]) -> Clock:
        """Creates the first anchor from at least two pairs, ordered by ticks."""
        third = max(1, len(pairs) // 3)
        first = min(pairs[:third], key=lambda pair: pair.uncertainty_ticks)
        last = min(pairs[-third:], key=lambda pair: pair.uncertainty_ticks)
        q32 = _find_q32(first, last)
        # The anchor is placed at the very first pair, so that no later tick precedes it.
        unix_ns = first.unix_ns - ((first.ticks - pairs[0].ticks) * q32 >> 32)
        clock = cls(np.array([(pairs[0].ticks, unix_ns, q32)], dtype=ANCHOR), 0)
        clock._pairs.append(first)
        for pair in (first, last):
            clock._note_error(pair, clock._residual_ns(pair))
        return clock

    @classmethod
    def from_anchors(cls, anchors: npt.NDArray[np.void], error_ns: int) -> Clock:
        """Creates the clock of a recording.

        Args:
            anchors: array of dtype ANCHOR.
            error_ns: as recorded by the session.

        Raises:
            UsageError: there are no anchors, they are not in order, or a rate is impossible.
        """
        anchors = np.ascontiguousarray(anchors, dtype=ANCHOR)
        ticks, rates = anchors["ticks"], anchors["ns_per_tick_q32"]
        ordered = bool(np.all(ticks[1:] > ticks[:-1]))
        if not len(anchors) or not ordered or not np.all((rates > 0) & (rates < _Q32_MAX)):
            raise UsageError("The recording's clock anchors are damaged, so its times cannot be converted.")
        return cls(anchors, error_ns)

    @property
    def ticks_per_second(self) -> float:
        """Rate of the timestamp counter at the newest anchor."""
        return 1e9 * 2**32 / float(self.anchors["ns_per_tick_q32"][-1])

    def convert(self, ticks: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Returns the Unix ns of each tick value; same shape."""
        values = np.ascontiguousarray(ticks, dtype=np.uint64)
        unix_ns = np.empty_like(values)
        lib.nfp_clock_convert(
            ffi.from_buffer("struct nfp_anchor[]", self.anchors),
            len(self.anchors),
            ffi.cast("uint64_t *", values.ctypes.data),
            values.size,
            ffi.cast("uint64_t *", unix_ns.ctypes.data),
        )
        return unix_ns

    def convert_back(self, unix_ns: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Returns the ticks of each Unix time in ns, accurate to one tick per hour of distance from its anchor; same
        shape.
        """
        values = np.asarray(unix_ns, dtype=np.uint64)
        found = np.searchsorted(self.anchors["unix_ns"], values, side="right")
        anchors = self.anchors[np.maximum(found, 1) - 1]
        elapsed_ns = (values - anchors["unix_ns"]).astype(np.int64)
        elapsed_ticks = np.rint(elapsed_ns * (2.0**32 / anchors["ns_per_tick_q32"])).clip(-_TICKS_MAX, _TICKS_MAX)
        return np.asarray(anchors["ticks"] + elapsed_ticks.astype(np.int64).astype(np.uint64), dtype=np.uint64)

    def find_ticks(self, duration_ns: float) -> int:
        """Returns the ticks of a duration at the newest rate."""
        return round(duration_ns * self.ticks_per_second / 1e9)

    def advance(self, pair: ClockPair | None = None) -> None:
        """Appends an anchor for the current time. No later tick may have been converted already.

        Args:
            pair: the reading to use instead of a fresh one; ignored if older than the newest anchor.
        """
        pair = pair or sample_pair()
        anchor_ticks = int(self.anchors["ticks"][-1])
        if pair.ticks <= anchor_ticks:
            return
        residual_ns = self._residual_ns(pair)
        if abs(residual_ns) > STEP_NS:
            self.stepped_ns += residual_ns
            residual_ns = 0
        pair = pair._replace(unix_ns=pair.unix_ns - self.stepped_ns)
        self._note_error(pair, residual_ns)
        q32 = _find_q32(self._pairs[0], pair) if self._pairs else int(self.anchors["ns_per_tick_q32"][-1])
        self._pairs.append(pair)
        # Slew over twice the interval; otherwise a late call would overshoot and the error would grow with each call.
        interval_ns = (pair.ticks - anchor_ticks) * q32 >> 32
        slew = residual_ns / max(_SLEW_NS_MIN, 2 * interval_ns)
        slew = min(_SLEW_RATE_MAX, max(-_SLEW_RATE_MAX, slew))
        anchor = np.array([(pair.ticks, self._convert_one(pair.ticks), round(q32 * (1 + slew)))], dtype=ANCHOR)
        self.anchors = np.concatenate([self.anchors, anchor])

    def _convert_one(self, ticks: int) -> int:
        return int(self.convert([ticks])[0])

    def _residual_ns(self, pair: ClockPair) -> int:
        return pair.unix_ns - self.stepped_ns - self._convert_one(pair.ticks)

    def _note_error(self, pair: ClockPair, residual_ns: int) -> None:
        uncertainty_ns = int(pair.uncertainty_ticks * 1e9 / self.ticks_per_second) + 1
        self.error_ns = max(self.error_ns, abs(residual_ns) + uncertainty_ns)


def _find_q32(first: ClockPair, last: ClockPair) -> int:
    return ((last.unix_ns - first.unix_ns) << 32) // (last.ticks - first.ticks)
