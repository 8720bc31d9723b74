# SPDX-License-Identifier: Apache-2.0
"""Folded stacks of a recording: where its threads spent their time, for flame graphs.

A stack is `batch`, the probed calls inside each other, and the function that was sampled, where it is another than the
innermost call. Without samples each call counts with its own time (self time). Two classes of packets: all, and slow:
then only batches count that ran while a slow packet was in the network function, on its thread: its own batch and those
that it waited for. Called by cli/report.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.columns import UNKNOWN, CallFlag, Columns, Rows, latency_ticks, life_start_ticks
from otel_nfprobe.pipeline import Pipeline
from otel_nfprobe.recording import RecordingReader
from otel_nfprobe.replay import RecordingFacts, replay
from otel_nfprobe.samples import PlaceNames, addresses_of, find_calls
from otel_nfprobe.statistics import Distribution, Statistics

LATE_QUANTILE = 0.999  # of all latencies, as in the report
BATCH, OUTSIDE = "batch", "outside batches"
_NO_CALL = -1

Ticks = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FlameWish:
    """What is folded.

    Attributes:
        slow_only: only what ran while a slow packet was there.
        slower_ns: what a slow packet is; None: later than LATE_QUANTILE of all.
        by_time: self times in ns, also where there are samples.
    """

    slow_only: bool = False
    slower_ns: int | None = None
    by_time: bool = False


def fold(reader: RecordingReader, facts: RecordingFacts, wish: FlameWish) -> dict[str, int]:
    """Stacks, frames joined by semicolons, and how many samples or ns each has; the largest first.

    Raises:
        UsageError: the recording's clock is damaged.
    """
    ticks_per_second = facts.make_clock().ticks_per_second
    windows = _find_windows(reader, facts, wish, ticks_per_second) if wish.slow_only else None
    by_time = wish.by_time or not len(facts.samples)
    stacks = _Stacks(facts, windows, by_time)
    for columns in _replay(reader, facts):
        stacks.add(columns)
    found = stacks.finish()
    scale = 1e9 / ticks_per_second if by_time else 1
    scaled = {stack: round(weight * scale) for stack, weight in found.most_common()}
    return {stack: weight for stack, weight in scaled.items() if weight}


def render_folded(stacks: dict[str, int]) -> str:
    """One line for each stack: frames, a space, a number (flamegraph.pl, speedscope, inferno)."""
    return "".join(f"{stack} {weight}\n" for stack, weight in stacks.items())


def _replay(reader: RecordingReader, facts: RecordingFacts) -> Iterator[Columns]:
    with Pipeline(facts.roles) as pipeline:
        pipeline.set_costs(facts.costs)
        yield from replay(reader, facts, pipeline)


class _Windows:
    """When slow packets were there, by thread.

    Args:
        spans: shape (n, 3): thread, start, end.
    """

    def __init__(self, spans: NDArray[np.uint64]) -> None:
        self._by_thread: dict[int, tuple[Ticks, Ticks]] = {}
        for thread in np.unique(spans[:, 0]).tolist():
            own = spans[spans[:, 0] == thread]
            own = own[np.argsort(own[:, 1], kind="stable")]
            self._by_thread[thread] = own[:, 1], np.maximum.accumulate(own[:, 2])

    def touch(self, batches: Rows) -> NDArray[np.bool_]:
        """Which batches ran in one of them."""
        found = np.zeros(len(batches), bool)
        for thread, (starts, ends) in self._by_thread.items():
            mine = batches["thread"] == thread
            # The last one that began before the batch was over: none before it ended later than `ends` says.
            index = np.searchsorted(starts, batches["end_ticks"][mine], side="left") - 1
            found[mine] = (index >= 0) & (ends[np.maximum(index, 0)] > batches["start_ticks"][mine])
        return found


def _find_windows(reader: RecordingReader, facts: RecordingFacts, wish: FlameWish, ticks_per_second: float) -> _Windows:
    if wish.slower_ns is not None:
        limit = wish.slower_ns * ticks_per_second / 1e9
    else:
        statistics = Statistics()
        for columns in _replay(reader, facts):
            statistics.add(columns)
        limit = statistics.quantile(Distribution.PACKET_TICKS, LATE_QUANTILE)
    spans = [np.empty((0, 3), np.uint64)]
    for columns in _replay(reader, facts):
        packets = columns.packets
        slow = (packets["disposition"] != UNKNOWN) & (packets["batch"] < len(columns.batches))
        slow &= latency_ticks(columns) > limit
        threads = columns.batches["thread"][packets["batch"][slow]].astype(np.uint64)
        spans.append(np.stack((threads, life_start_ticks(columns)[slow], packets["done_ticks"][slow]), axis=1))
    return _Windows(np.concatenate(spans))


class _Stacks:
    # Paths are numbered: 0 is a batch, 1 what is outside of batches, the others a path and a function more.
    def __init__(self, facts: RecordingFacts, windows: _Windows | None, by_time: bool) -> None:
        self._names = facts.function_names
        self._windows = windows
        self._by_time = by_time
        self._paths: dict[tuple[int, int], int] = {(_NO_CALL, 0): 0, (_NO_CALL, 1): 1}
        self._weights: Counter[tuple[int, str]] = Counter()
        self._samples = facts.samples[np.argsort(facts.samples["ticks"], kind="stable")]
        self._placed = np.zeros(len(self._samples), bool)
        self._places = PlaceNames(facts.places)
        self._leaves: dict[tuple[int, bool], str] = {}

    def add(self, columns: Columns) -> None:
        """Looks at one take."""
        batches, calls = columns.batches, columns.calls
        wanted = np.ones(len(batches), bool) if self._windows is None else self._windows.touch(batches)
        paths = self._find_paths(calls)
        in_batch = calls["batch"] < len(batches)
        kept = np.full(len(calls), self._windows is None)
        kept[in_batch] = wanted[calls["batch"][in_batch]]
        if self._by_time:
            self._add_times(columns, wanted, kept, paths)
        else:
            self._add_samples(columns, wanted, kept, paths)

    def finish(self) -> Counter[str]:
        """All stacks with their weights."""
        if not self._by_time and self._windows is None:
            self._count(self._samples[~self._placed], np.ones(int((~self._placed).sum()), np.int64))
        frames = self._frames()
        found: Counter[str] = Counter()
        for (path, leaf), weight in self._weights.items():
            stack = frames[path]
            if leaf and leaf != stack[-1]:
                stack = [*stack, leaf]
            found[";".join(frame.replace(";", ":").replace("\n", " ") for frame in stack)] += weight
        return found

    def _frames(self) -> list[list[str]]:
        frames: list[list[str]] = [[BATCH], [OUTSIDE]]
        for path, function in list(self._paths)[2:]:
            name = self._names[function] if function < len(self._names) else ""
            frames.append([*frames[path], name or f"function {function}"])
        return frames

    def _find_paths(self, calls: Rows) -> NDArray[np.int64]:
        """The path of each call. A caller that is not among the calls is none."""
        paths = np.full(len(calls), _NO_CALL, np.int64)
        parents = np.where(calls["parent"] < len(calls), calls["parent"].astype(np.int64), _NO_CALL)
        above = np.where(calls["batch"] == 0xFFFFFFFF, 1, 0)
        rows = np.flatnonzero(parents == _NO_CALL)
        while len(rows):
            keys = np.stack((above[rows], calls["function"][rows].astype(np.int64)), axis=1)
            found, places = np.unique(keys, axis=0, return_inverse=True)
            numbers = [self._paths.setdefault((path, function), len(self._paths)) for path, function in found.tolist()]
            paths[rows] = np.array(numbers, np.int64)[places.ravel()]
            rows = np.flatnonzero((paths == _NO_CALL) & (parents >= 0) & (paths[parents] != _NO_CALL))
            above[rows] = paths[parents[rows]]
        return paths

    def _add_times(
        self, columns: Columns, wanted: NDArray[np.bool_], kept: NDArray[np.bool_], paths: NDArray[np.int64]
    ) -> None:
        calls, batches = columns.calls, columns.batches
        kept &= (paths != _NO_CALL) & ((calls["flags"] & CallFlag.MARK) == 0)
        sums = np.bincount(paths[kept], calls["self_ticks"][kept].astype(np.float64))
        for path in np.flatnonzero(sums).tolist():
            self._weights[path, ""] += round(float(sums[path]))
        outer = (calls["parent"] >= len(calls)) & (calls["batch"] < len(batches))
        inside = np.bincount(
            calls["batch"][outer], (calls["end_ticks"] - calls["start_ticks"])[outer].astype(np.float64), len(batches)
        )
        own = (batches["end_ticks"] - batches["start_ticks"]).astype(np.float64) - inside
        self._weights[0, ""] += round(float(np.maximum(own, 0)[wanted].sum()))

    def _add_samples(
        self, columns: Columns, wanted: NDArray[np.bool_], kept: NDArray[np.bool_], paths: NDArray[np.int64]
    ) -> None:
        calls, batches = columns.calls, columns.batches
        for thread in np.unique(np.concatenate((calls["thread"], batches["thread"]))).tolist():
            rows = np.flatnonzero(calls["thread"] == thread)
            rows = rows[np.lexsort((calls["depth"][rows], calls["start_ticks"][rows]))]
            own = np.flatnonzero(batches["thread"] == thread)
            own = own[np.argsort(batches["start_ticks"][own], kind="stable")]
            seen = self._samples_between(calls[rows], batches[own], thread)
            ticks = self._samples["ticks"][seen]
            at = np.searchsorted(batches["start_ticks"][own], ticks, side="right") - 1
            in_batch = at >= 0
            in_batch[in_batch] = ticks[in_batch] < batches["end_ticks"][own[at[in_batch]]]
            call = find_calls(_renumber(calls, rows), ticks)
            in_call = call >= 0
            path = np.where(in_batch, 0, _NO_CALL)
            path[in_call] = paths[rows[call[in_call]]]
            count = np.ones(len(seen), bool)
            count[in_batch] = wanted[own[at[in_batch]]]
            only_call = in_call & ~in_batch
            count[only_call] = kept[rows[call[only_call]]]
            placed = path != _NO_CALL
            self._placed[seen[placed]] = True
            self._count(self._samples[seen[placed & count]], path[placed & count])

    def _samples_between(self, calls: Rows, batches: Rows, thread: int) -> NDArray[np.int64]:
        """Samples of a thread that lie where these calls and batches do, and have no place yet."""
        both = [rows for rows in (calls, batches) if len(rows)]
        first = min(int(rows["start_ticks"].min()) for rows in both)
        last = max(int(rows["end_ticks"].max()) for rows in both)
        low, high = np.searchsorted(self._samples["ticks"], np.array([first, last], np.uint64)).tolist()
        near = slice(low, high)
        found: NDArray[np.int64] = low + np.flatnonzero((self._samples["thread"][near] == thread) & ~self._placed[near])
        return found

    def _count(self, samples: Rows, paths: NDArray[np.int64]) -> None:
        for key, path in zip(addresses_of(samples), paths.tolist(), strict=True):
            if key not in self._leaves:
                self._leaves[key] = self._places.name(*key)
            self._weights[path, self._leaves[key]] += 1


def _renumber(calls: Rows, rows: NDArray[np.int64]) -> Rows:
    """The calls of one thread in this order, `parent` counting among them."""
    places = np.full(len(calls) + 1, 0xFFFFFFFF, np.uint32)
    places[rows] = np.arange(len(rows), dtype=np.uint32)
    chosen: Rows = calls[rows].copy()
    chosen["parent"] = places[np.minimum(chosen["parent"], len(calls))]
    return chosen
