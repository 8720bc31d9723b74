# SPDX-License-Identifier: Apache-2.0
"""Sampling: which packets become spans: a fair sample, those above a threshold, and the slowest share.

Pure: arrays in, arrays out. The fair sample is consistent: it depends on the trace ID alone, so every monitor and
Collector that follows OpenTelemetry's probability sampling keeps the same traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE, BatchFlag, CallFlag, Columns, Rows, age_start_ticks, counted_latency_ticks

if TYPE_CHECKING:
    from otel_nfprobe.pipeline.flowfilter import FlowFilter

REASON_SAMPLE: int = lib.NFP_REASON_SAMPLE
REASON_SLOW: int = lib.NFP_REASON_SLOW
REASON_SLOWEST: int = lib.NFP_REASON_SLOWEST
REASON_CULPRIT: int = lib.NFP_REASON_CULPRIT

_RANDOM_BITS = 56
RANDOMNESS = np.uint64((1 << _RANDOM_BITS) - 1)  # these bits of a trace id's second word
_THRESHOLD_DIGITS = 14
# Hexadecimal digits kept after the leading f's: the probability is off by less than one part in 500,000.
_PRECISION_DIGITS = 5
# Buckets per octave of a latency: 0.5 to 0.8 % wide each.
_STEP_BITS = 7
_STEPS = 1 << _STEP_BITS
_FADED_VALUES = 50  # above the quantile: with fewer its error exceeds a tenth
# How often the weight of old values is halved. Otherwise one bad second, such as that of the attach itself, would hide
# for a long time what is late after it.
FADE_S = 1.0


def find_threshold(probability: float) -> int:
    """Returns the rejection threshold of a probability > 0: keep a packet if its randomness is not below it.

    Rounded to the digits of the trace state, so that both always agree.
    """
    threshold = (1 << _RANDOM_BITS) - round(probability * (1 << _RANDOM_BITS))
    digits = f"{threshold:014x}"
    kept = min(_THRESHOLD_DIGITS, len(digits) - len(digits.lstrip("f")) + _PRECISION_DIGITS)
    unit = 1 << 4 * (_THRESHOLD_DIGITS - kept)
    return min((threshold + unit // 2) // unit * unit, (1 << _RANDOM_BITS) - 1)


def format_trace_state(probability: float) -> str:
    """Returns the trace state of packets drawn with this probability: `ot=th:fd70a4` for 1 %; empty for 0 and 1."""
    if not 0 < probability < 1:
        return ""
    return format_threshold(find_threshold(probability))


def format_threshold(threshold: int) -> str:
    """Returns the trace state of packets whose randomness is not below this threshold."""
    digits = f"{threshold:014x}".rstrip("0")
    return f"ot=th:{digits or '0'}"


class QuantileTracker:
    """An online quantile: a histogram with 128 buckets per octave, halved whenever it holds `window` values.

    Args:
        share: of largest values, 0 to 1.
        window: number of values after which older ones have half the weight.
    """

    def __init__(self, share: float, window: int = 1_000_000) -> None:
        self.share = share
        self._window = window
        self._counts = np.zeros((64 - _STEP_BITS) * _STEPS)

    def add(self, values: npt.NDArray[np.int64], weights: npt.NDArray[np.int64] | None = None) -> None:
        """Adds values >= 0, once each or with weights."""
        if not len(values):
            return
        self._counts += np.bincount(_find_buckets(values), weights, minlength=len(self._counts))
        total = self._counts.sum()
        if total > self._window:
            self._counts *= 0.5 * self._window / total

    def fade(self) -> None:
        """Halves the weight of all values so far, if enough remain to find the share."""
        if self.share * self._counts.sum() >= 2 * _FADED_VALUES:
            self._counts *= 0.5

    def find_threshold(self, margin: float = 1.0) -> int | None:
        """Returns the lowest bucket edge with at most `share` times `margin` of the values, or one, at or above it.

        If too many values share the top bucket, that is the edge above it: only what exceeds all values so far is at or
        above it. None: there are no values.
        """
        at_or_above = np.cumsum(self._counts[::-1])[::-1]
        allowed = max(1.0, self.share * margin * float(at_or_above[0]))
        fitting = np.flatnonzero(at_or_above <= allowed)
        if not at_or_above[0]:
            return None
        return _find_edge(int(fitting[0]) if len(fitting) else len(self._counts))


@dataclass(frozen=True)
class Population:
    """All packets of drained columns in which not every packet is identified.

    Attributes:
        latency_ticks: at the end of the calls that handed them on.
        own_ticks: likewise, from the start of their batch; for packets taken over, from their receipt.
        weights: number of packets each row represents.
        thread, batch: of each.
        chosen: for each identified packet, whether it belongs to one of these batches.
        drawn: whether the batch was drawn for the sample.
    """

    latency_ticks: npt.NDArray[np.int64]
    own_ticks: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]
    thread: npt.NDArray[np.uint32]
    batch: npt.NDArray[np.uint32]
    chosen: npt.NDArray[np.bool_]
    drawn: npt.NDArray[np.bool_]


def find_population(columns: Columns) -> Population | None:
    """Returns None if all packets are identified, or none."""
    flags = columns.batches["flags"]
    if not len(flags) or not (flags & BatchFlag.CHOSEN).any():
        return None
    calls = columns.calls
    handing = (calls["flags"] & (CallFlag.TRANSMIT | CallFlag.DROP)) != 0
    handing &= ((calls["flags"] & CallFlag.VALUE) != 0) & (calls["batch"] != NONE)
    calls = calls[handing]
    calls = calls[(flags[calls["batch"]] & BatchFlag.CHOSEN) != 0]
    batches = columns.batches[calls["batch"]]
    start = age_start_ticks(batches)
    end = calls["end_ticks"].astype(np.int64)
    taken_over = (batches["flags"] & BatchFlag.TAKEN_OVER) != 0
    latency = end - start.astype(np.int64)
    own = end - np.where(taken_over, start, batches["start_ticks"]).astype(np.int64)
    weights = (calls["value"] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    kept = (latency > 0) & (weights > 0)
    kept &= ((batches["flags"] & BatchFlag.PRIOR) == 0) | (latency == own)
    of_batch = flags[columns.packets["batch"]]
    return Population(
        latency[kept],
        own[kept],
        weights[kept],
        calls["thread"][kept],
        calls["batch"][kept],
        (of_batch & BatchFlag.CHOSEN) != 0,
        (of_batch & BatchFlag.DRAWN) != 0,
    )


class Sampler:
    """Selects packets.

    Args:
        probability: of the fair sample; 0 draws none, 1 all.
        slower_than_ticks: selects latencies above it.
        slowest_share: selects about this share of the packets, the slowest.
        flow: keep only selected packets of these flows.
    """

    def __init__(
        self,
        probability: float = 0.0,
        slower_than_ticks: int | None = None,
        slowest_share: float | None = None,
        flow: FlowFilter | None = None,
    ) -> None:
        self.flow = flow
        self.probability = probability
        self.slower_than_ticks = slower_than_ticks
        self.tracker = QuantileTracker(slowest_share) if slowest_share else None
        self._threshold = find_threshold(probability) if 0 < probability < 1 else 0

    @property
    def needs_randomness(self) -> bool:
        """Returns whether `select` reads its second argument."""
        return 0 < self.probability < 1

    def select(
        self,
        latency_ticks: npt.NDArray[np.int64],
        randomness: npt.NDArray[np.uint64] | None = None,
        population: Population | None = None,
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """Returns the indices of the selected packets, and the REASON_* bits of each.

        Args:
            latency_ticks: of each packet; 0 if unknown: then only the sample can select it.
            randomness: low 56 bits of each packet's trace ID; needed if `needs_randomness`.
            population: given if not every packet is identified: the sample is what was drawn.
        """
        reasons = np.zeros(len(latency_ticks), dtype=np.uint8)
        if self.probability >= 1:
            reasons |= REASON_SAMPLE
        elif self.needs_randomness:
            assert randomness is not None
            drawn = randomness >= self._threshold
            if population is not None:
                drawn = np.where(population.chosen, population.drawn, drawn)
            reasons[drawn] |= REASON_SAMPLE
        if self.slower_than_ticks is not None:
            reasons[latency_ticks > self.slower_than_ticks] |= REASON_SLOW
        if self.tracker is not None:
            # Add these packets first: a short recording has a slowest share, too.
            counted = latency_ticks > 0
            if population is not None:
                counted &= ~population.chosen
                self.tracker.add(population.latency_ticks, population.weights)
            self.tracker.add(latency_ticks[counted])
            edge = self.tracker.find_threshold()
            if edge is not None:
                reasons[(latency_ticks >= edge) & (latency_ticks > 0)] |= REASON_SLOWEST
        selected = np.flatnonzero(reasons).astype(np.uint32)
        return selected, reasons[selected]

    def restrict(
        self, packets: Rows, selected: npt.NDArray[np.uint32], reasons: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """Keeps the selected packets of the wanted flows."""
        if self.flow is None:
            return selected, reasons
        kept = self.flow.match(packets[selected])
        return selected[kept], reasons[kept]


def find_latency_ticks(packets: Rows, batches: Rows) -> npt.NDArray[np.int64]:
    """Returns the latency of each packet as in `columns.counted_latency_ticks`: 0 if unknown."""
    return counted_latency_ticks(Columns(batches=batches, packets=packets)).astype(np.int64)


# Values below 128 have a bucket each; above, the seven bits after the leading one select one of 128 per octave.
def _find_buckets(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    _, exponents = np.frexp(values.astype(np.float64))
    shift = np.maximum(exponents.astype(np.int64) - 1 - _STEP_BITS, 0)
    return np.where(values < _STEPS, values, (shift + 1) * _STEPS + (values >> shift) - _STEPS)


def _find_edge(bucket: int) -> int:
    if bucket < _STEPS:
        return bucket
    shift, low = bucket // _STEPS - 1, bucket % _STEPS
    return (_STEPS + low) << shift
