# SPDX-License-Identifier: Apache-2.0
"""Baseline: how long each function usually takes for a batch of a given size, from a bounded sample of batches.

Pure: columns in, a model out. A function's time per batch is its base plus its slope times the batch size: a line
fitted through the medians of batches of about equal size. A function that most batches do not call has the median 0, so
every call of it stands out. Two additional rows hold the time outside of probed calls, and that of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, UNKNOWN, BatchFlag, CallFlag, Columns, counted_latency_ticks
from otel_nfprobe.base.distinct import quantile
from otel_nfprobe.pipeline.sampling import find_population

BATCHES_PER_TAKE = 512
BATCHES_KEPT = 8192
BATCHES_NEEDED = 32  # before anything counts as unusual
CLASS_NEEDED = 8  # batches of about equal size for a median that one slow batch cannot move
SIZE_CLASSES = 33
PACKETS_KEPT = 32768
GAPS_KEPT = 8192
FUNCTIONS_MAX = 1 << 18
IDLE_LOOPS, IDLE_POLLS = 3, 2
_REST, _WHOLE = FUNCTIONS_MAX, FUNCTIONS_MAX + 1


@dataclass(frozen=True)
class Baseline:
    """The baseline of a session, in ticks and packets.

    Attributes:
        base_ticks, slope_ticks: by function ID; the last two are the time outside of probed calls and the whole batch.
        latency_ticks: median latency of a packet.
        own_ticks: median time from the start of a packet's batch to the packet's end.
        batch_size: median.
        gap_ticks: between the end of a batch and a poll that follows immediately.
        idle_ticks: a longer gap contained polls that found nothing.
        batches: number of batches sampled from.
    """

    base_ticks: NDArray[np.float64]
    slope_ticks: NDArray[np.float64]
    latency_ticks: int
    own_ticks: int
    batch_size: int
    gap_ticks: int
    idle_ticks: int
    batches: int

    @property
    def is_known(self) -> bool:
        """Whether enough batches were seen for a baseline."""
        return self.batches >= BATCHES_NEEDED

    def function_ticks(self, functions: NDArray[np.integer], size: int) -> NDArray[np.float64]:
        """Returns the usual self time of functions (by ID) in a batch of `size` packets; NONE: outside of probed
        calls.
        """
        ids = functions.astype(np.int64)
        rows = np.where(ids == NONE, len(self.base_ticks) - 2, ids)
        known = (rows < len(self.base_ticks) - 2) | (ids == NONE)
        rows = np.where(known, rows, 0)
        return np.where(known, self.base_ticks[rows] + self.slope_ticks[rows] * size, 0.0)

    def batch_ticks(self, sizes: NDArray[np.integer]) -> NDArray[np.float64]:
        """Returns the usual duration of batches, by their sizes."""
        usual: NDArray[np.float64] = self.base_ticks[-1] + self.slope_ticks[-1] * sizes.astype(np.float64)
        return usual


@dataclass
class _SampledBatches:
    # Sampled batches: sizes, and the times (batch, function, ticks) of the functions that they called.
    sizes: NDArray[np.int64]
    batch: NDArray[np.int64]
    function: NDArray[np.int64]
    ticks: NDArray[np.float64]

    def thin(self) -> _SampledBatches:
        keep = np.arange(len(self.sizes)) % 2 == 0
        number = np.cumsum(keep) - 1
        chosen = keep[self.batch]
        return _SampledBatches(self.sizes[keep], number[self.batch[chosen]], self.function[chosen], self.ticks[chosen])

    def join(self, other: _SampledBatches) -> _SampledBatches:
        return _SampledBatches(
            np.concatenate((self.sizes, other.sizes)),
            np.concatenate((self.batch, other.batch + len(self.sizes))),
            np.concatenate((self.function, other.function)),
            np.concatenate((self.ticks, other.ticks)),
        )


class BatchSample:
    """A sample of all added batches; when full, every second one is dropped, so older batches weigh less."""

    def __init__(self) -> None:
        nothing = np.empty(0, np.int64)
        self._kept = _SampledBatches(nothing, nothing, nothing, np.empty(0))
        self._latencies = self._own = self._gaps = self._full_gaps = self._polls = nothing
        self._seen = 0

    def add(self, columns: Columns) -> None:
        """Adds the batches of these columns."""
        batches = columns.batches
        whole = (batches["flags"] & (BatchFlag.LOSSY | BatchFlag.UNFINISHED)) == 0
        usable = np.flatnonzero(whole & (batches["size"] > 0))
        self._add_packets(columns, usable[:: -(-len(usable) // BATCHES_PER_TAKE) or 1])
        # Where inner functions were not timed their time is unknown, not 0: such batches are no evidence for functions.
        usable = usable[(batches["flags"][usable] & BatchFlag.UNDETAILED) == 0]
        if not len(usable):
            return
        self._seen += len(usable)
        self._add_gaps(columns)
        chosen = usable[:: -(-len(usable) // BATCHES_PER_TAKE)]
        self._kept = self._kept.join(_measure(columns, chosen))
        while len(self._kept.sizes) > BATCHES_KEPT:
            self._kept = self._kept.thin()

    @property
    def batches(self) -> int:
        """Number of usable batches seen."""
        return self._seen

    def baseline(self) -> Baseline:
        """Returns the baseline of the batches added so far."""
        base, slope = _fit(self._kept)
        gap, poll = self._find_gap(), _median(self._polls)
        return Baseline(
            base,
            slope,
            _median(self._latencies),
            _median(self._own),
            _median(self._kept.sizes),
            gap,
            IDLE_LOOPS * gap + IDLE_POLLS * poll,
            self._seen,
        )

    def _find_gap(self) -> int:
        # The next poll follows a full one immediately; without full polls the shortest gaps are those under load.
        if len(self._full_gaps) >= CLASS_NEEDED:
            return _median(self._full_gaps)
        return int(quantile(self._gaps, 0.05)) if len(self._gaps) else 0

    def _add_gaps(self, columns: Columns) -> None:
        batches = columns.batches
        order = np.lexsort((batches["start_ticks"], batches["thread"]))
        rows = batches[order]
        same = rows["thread"][1:] == rows["thread"][:-1]
        gaps = (rows["start_ticks"][1:] - rows["end_ticks"][:-1]).astype(np.int64)
        same &= gaps >= 0
        full = same & ((rows["flags"][:-1] & BatchFlag.FULL) != 0)
        self._gaps = _extend_sample(self._gaps, gaps[same], GAPS_KEPT)
        self._full_gaps = _extend_sample(self._full_gaps, gaps[full], GAPS_KEPT)
        polls = columns.calls[(columns.calls["flags"] & CallFlag.RECEIVE) != 0]
        self._polls = _extend_sample(
            self._polls, (polls["end_ticks"] - polls["start_ticks"]).astype(np.int64), GAPS_KEPT
        )

    def _add_packets(self, columns: Columns, chosen: NDArray[np.intp]) -> None:
        wanted = np.zeros(len(columns.batches), bool)
        wanted[chosen] = True
        # Where only late packets are identified, the usual latency comes from the calls that transmitted all of them.
        population = find_population(columns)
        if population is not None:
            rows = _draw(np.where(wanted[population.batch], population.weights, 0), PACKETS_KEPT // 4)
            latency, own = population.latency_ticks[rows], population.own_ticks[rows]
        else:
            latency, own = _find_latencies(columns, wanted)
        self._latencies = _extend_sample(self._latencies, latency, PACKETS_KEPT)
        self._own = _extend_sample(self._own, own, PACKETS_KEPT)


def _draw(weights: NDArray[np.int64], most: int) -> NDArray[np.intp]:
    """Draws rows, each as often as its weight, or in proportion to it where the weights exceed `most` in total."""
    ends = np.cumsum(weights)
    total = int(ends[-1]) if len(ends) else 0
    places = np.arange(min(total, most)) * (total / max(1, min(total, most)))
    return np.searchsorted(ends, places, side="right")


def _find_latencies(columns: Columns, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the latencies of the packets of these batches, and their times since the start of their batch."""
    packets = columns.packets
    if not len(packets):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    placed = packets["batch"] < len(columns.batches)
    rows = np.flatnonzero(placed & (packets["disposition"] != UNKNOWN) & (packets["done_ticks"] > 0))
    rows = rows[wanted[packets["batch"][rows]]]
    latency = counted_latency_ticks(columns)[rows].astype(np.int64)
    rows, latency = rows[latency > 0], latency[latency > 0]
    start = columns.batches["start_ticks"][packets["batch"][rows]]
    return latency, packets["done_ticks"][rows].astype(np.int64) - start.astype(np.int64)


def _extend_sample(kept: NDArray[np.int64], fresh: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    if len(fresh) > most // 4:
        fresh = fresh[:: -(-4 * len(fresh) // most)]
    joined = np.concatenate((kept, fresh))
    return joined if len(joined) <= most else joined[::2]


def _median(values: NDArray[np.int64]) -> int:
    return int(np.median(values)) if len(values) else 0


def _measure(columns: Columns, chosen: NDArray[np.intp]) -> _SampledBatches:
    """Sums the time of each function in each chosen batch."""
    batches = columns.batches[chosen]
    position = np.full(len(columns.batches) + 1, -1, np.int64)
    position[chosen] = np.arange(len(chosen))
    calls = columns.calls
    owner = position[np.minimum(calls["batch"], len(columns.batches))]
    inside = (owner >= 0) & (calls["function"] < FUNCTIONS_MAX)
    owner, functions = owner[inside], calls["function"][inside].astype(np.int64)
    spent = calls["self_ticks"][inside].astype(np.float64)
    keys, where = np.unique(owner * FUNCTIONS_MAX + functions, return_inverse=True)
    totals = np.bincount(where, spent, len(keys))
    whole = (batches["end_ticks"] - batches["start_ticks"]).astype(np.float64)
    rest = np.maximum(whole - np.bincount(owner, spent, len(chosen)), 0.0)
    numbers = np.arange(len(chosen))
    return _SampledBatches(
        batches["size"].astype(np.int64),
        np.concatenate((keys // FUNCTIONS_MAX, numbers, numbers)),
        np.concatenate((keys % FUNCTIONS_MAX, np.full(len(chosen), _REST), np.full(len(chosen), _WHOLE))),
        np.concatenate((totals, rest, whole)),
    )


def _size_class(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the size class: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8, ...: a burst of 32 is the largest of its
    class.
    """
    _, exponents = np.frexp(np.maximum(sizes - 1, 0).astype(np.float64))
    return exponents.astype(np.int64)


def _fit(kept: _SampledBatches) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns base and slope by function ID, followed by those of the two additional rows."""
    known = kept.function < FUNCTIONS_MAX
    functions = int(kept.function[known].max()) + 1 if known.any() else 0
    rows = np.where(known, kept.function, kept.function - FUNCTIONS_MAX + functions)
    classes = _size_class(kept.sizes)
    counts = np.bincount(classes, minlength=SIZE_CLASSES)[:SIZE_CLASSES]
    sizes = np.bincount(classes, kept.sizes, SIZE_CLASSES)[:SIZE_CLASSES] / np.maximum(counts, 1)
    medians = np.zeros((functions + 2, SIZE_CLASSES))
    # Each function's times in each class, sorted; batches that did not call it count as leading zeros.
    column = classes[kept.batch]
    order = np.lexsort((kept.ticks, rows * SIZE_CLASSES + column))
    keys = (rows * SIZE_CLASSES + column)[order]
    found, first, present = np.unique(keys, return_index=True, return_counts=True)
    total = counts[found % SIZE_CLASSES]
    middle = total // 2 - (total - present)
    value = kept.ticks[order][first + np.maximum(middle, 0)] if len(found) else np.empty(0)
    medians[found // SIZE_CLASSES, found % SIZE_CLASSES] = np.where(middle >= 0, value, 0.0)
    usable = counts >= (CLASS_NEEDED if (counts >= CLASS_NEEDED).any() else 1)
    return _draw_lines(medians[:, usable], sizes[usable], counts[usable].astype(np.float64))


def _draw_lines(
    medians: NDArray[np.float64], sizes: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fits weighted lines through the medians, with neither base nor slope below 0; a single class is taken as
    proportional.
    """
    if not len(sizes):
        return np.zeros(len(medians)), np.zeros(len(medians))
    through_zero = (medians * weights * sizes).sum(1) / (weights * sizes * sizes).sum()
    if len(sizes) == 1:
        return np.zeros(len(medians)), through_zero
    total = weights.sum()
    middle = (weights * sizes).sum() / total
    mean = (medians * weights).sum(1) / total
    slope = ((medians - mean[:, None]) * (weights * (sizes - middle))).sum(1) / (weights * (sizes - middle) ** 2).sum()
    base = mean - slope * middle
    flat = slope < 0
    slope, base = np.where(flat, 0.0, slope), np.where(flat, mean, base)
    steep = base < 0
    return np.where(steep, 0.0, base), np.where(steep, through_zero, slope)
