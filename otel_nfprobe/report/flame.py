# SPDX-License-Identifier: Apache-2.0
"""Folded stacks of a recording: where its threads spent their time, for flame graphs.

A stack is `batch`, the nested probed calls, and the sampled function, if it differs from the innermost call. Without
samples each call is weighted with its own time (self time); with counters, each sample with the increase since the
thread's previous sample. Two classes of packets: all, and slow: the latter counts only batches that ran on its thread
while a slow packet was in the network function: its own batch and those that it waited for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import UNKNOWN, CallFlag, Columns, Rows, counted_latency_ticks, life_start_ticks
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.printable import printable
from otel_nfprobe.causes.lateness import LatenessStatistics
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind, StealTime, place_steal_time
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.profiling.samples import AddressNames, Words, addresses_of, find_calls, is_known
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, replay

LATE_QUANTILE = 0.99  # of the latencies of identified packets: fewer packets would have hardly any samples
SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
BATCH, OUTSIDE = "batch", "outside batches"
INTERRUPT = "[interrupt]"
# What had the CPU meanwhile, as a frame.
AWAY = {
    AbsenceKind.SWITCH: "[preempted]",
    AbsenceKind.VECTOR: INTERRUPT,
    AbsenceKind.IRQ: INTERRUPT,
    AbsenceKind.SOFTIRQ: INTERRUPT,
    AbsenceKind.NMI: INTERRUPT,
    AbsenceKind.STEAL: "[hypervisor]",
}
OTHER = "[away]"
STOLEN_SHARE_MIN = 0.5  # of what was stolen in an interval: a call that took less stood still elsewhere
_NO_PATH = -1

Ticks = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FlameRequest:
    """What to fold.

    Attributes:
        slow_only: only what ran while a slow packet was in the NF.
        slower_ns: latency of a slow packet; None: LATE_QUANTILE of the identified ones.
        by_time: self times in ns, even if there are samples.
        counter: use its increases, stored in the samples; "": count samples.
    """

    slow_only: bool = False
    slower_ns: int | None = None
    by_time: bool = False
    counter: str = ""


def fold(reader: RecordingReader, facts: RecordingFacts, request: FlameRequest) -> dict[str, int]:
    """Returns stacks, frames joined by semicolons, with their number of samples, ns or counts; the largest first.

    Raises:
        UsageError: the recording's clock is damaged.
    """
    ticks_per_second = facts.make_clock().ticks_per_second
    windows = _find_windows(reader, facts, request, ticks_per_second) if request.slow_only else None
    by_time = is_by_time(facts, request)
    stacks = _Stacks(facts, windows, by_time, facts.sample_counts[request.counter] if request.counter else None)
    for columns in _replay(reader, facts):
        stacks.add(columns)
    found = stacks.finish()
    scale = 1e9 / ticks_per_second if by_time else 1
    scaled = {stack: round(weight * scale) for stack, weight in found.most_common()}
    return {stack: weight for stack, weight in scaled.items() if weight}


def is_by_time(facts: RecordingFacts, request: FlameRequest) -> bool:
    """Returns whether stacks are weighted with own times, in ns: always where there are no samples."""
    return request.by_time or not len(facts.samples)


def render_folded(stacks: dict[str, int]) -> str:
    """Returns one line per stack: frames, a space, a number (flamegraph.pl, speedscope, inferno)."""
    return "".join(f"{printable(stack)} {weight}\n" for stack, weight in stacks.items())


def render_speedscope(stacks: dict[str, int], by_time: bool, name: str) -> str:
    """Returns the stacks as one line of JSON that https://www.speedscope.app opens: one sampled profile.

    Source: speedscope's file format, `FileFormat.SampledProfile`.

    Args:
        stacks: what `fold` returns.
        by_time: weights are ns.
        name: title of the profile.
    """
    frames: dict[str, int] = {}
    samples = [[frames.setdefault(frame, len(frames)) for frame in printable(stack).split(";")] for stack in stacks]
    weights = list(stacks.values())
    profile = {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds" if by_time else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    document = {
        "$schema": SPEEDSCOPE_SCHEMA,
        "exporter": "nfprobe",
        "name": name,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [profile],
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _replay(reader: RecordingReader, facts: RecordingFacts) -> Iterator[Columns]:
    with Pipeline(facts.roles) as pipeline:
        pipeline.set_costs(facts.costs)
        yield from replay(reader, facts, pipeline)


class _Windows:
    """Times when slow packets were in the NF, by thread.

    Args:
        spans: shape (n, 3): thread, start, end.
    """

    def __init__(self, spans: NDArray[np.uint64]) -> None:
        self._by_thread: dict[int, tuple[Ticks, Ticks]] = {}
        for thread in distinct(spans[:, 0]).tolist():
            own = spans[spans[:, 0] == thread]
            own = own[np.argsort(own[:, 1], kind="stable")]
            self._by_thread[thread] = own[:, 1], np.maximum.accumulate(own[:, 2])

    def touch(self, batches: Rows) -> NDArray[np.bool_]:
        """Returns which batches ran in one of them."""
        found = np.zeros(len(batches), bool)
        for thread, (starts, ends) in self._by_thread.items():
            mine = batches["thread"] == thread
            # The last one that began before the batch ended: none before it ended later than `ends`.
            index = np.searchsorted(starts, batches["end_ticks"][mine], side="left") - 1
            found[mine] = (index >= 0) & (ends[np.maximum(index, 0)] > batches["start_ticks"][mine])
        return found


def _find_windows(
    reader: RecordingReader, facts: RecordingFacts, request: FlameRequest, ticks_per_second: float
) -> _Windows:
    if request.slower_ns is not None:
        limit = request.slower_ns * ticks_per_second / 1e9
    else:
        statistics = LatenessStatistics()
        for columns in _replay(reader, facts):
            statistics.add(columns)
        limit = statistics.find_late_ticks(LATE_QUANTILE)
    spans = [np.empty((0, 3), np.uint64)]
    for columns in _replay(reader, facts):
        packets = columns.packets
        slow = (packets["disposition"] != UNKNOWN) & (packets["batch"] < len(columns.batches))
        slow &= counted_latency_ticks(columns) > limit
        threads = columns.batches["thread"][packets["batch"][slow]].astype(np.uint64)
        spans.append(np.stack((threads, life_start_ticks(columns)[slow], packets["done_ticks"][slow]), axis=1))
    return _Windows(np.concatenate(spans))


class _Take:
    # Drained columns, queried for the call that ran at a given time.
    def __init__(self, columns: Columns, windows: _Windows | None, paths: NDArray[np.int64]) -> None:
        calls, batches = columns.calls, columns.batches
        self.columns = columns
        self.paths = paths
        self.wanted = np.ones(len(batches), bool) if windows is None else windows.touch(batches)
        self.kept = np.full(len(calls), windows is None)  # calls to count
        in_batch = calls["batch"] < len(batches)
        self.kept[in_batch] = self.wanted[calls["batch"][in_batch]]

    def extent(self, thread: int) -> tuple[int, int]:
        """Returns the first and the last time at which a thread appears."""
        own = [rows[rows["thread"] == thread] for rows in (self.columns.calls, self.columns.batches)]
        own = [rows for rows in own if len(rows)]
        first = min(int(rows["start_ticks"].min()) for rows in own)
        return first, max(int(rows["end_ticks"].max()) for rows in own)

    def locate(self, thread: int, ticks: Ticks) -> tuple[NDArray[np.int64], NDArray[np.bool_], Ticks]:
        """Returns for each time the path of the innermost call, whether it counts, and when that call or batch ends."""
        calls, batches = self.columns.calls, self.columns.batches
        rows = np.flatnonzero(calls["thread"] == thread)
        rows = rows[np.lexsort((calls["depth"][rows], calls["start_ticks"][rows]))]
        own = np.flatnonzero(batches["thread"] == thread)
        own = own[np.argsort(batches["start_ticks"][own], kind="stable")]
        path, counts, ends = np.full(len(ticks), _NO_PATH), np.zeros(len(ticks), bool), np.zeros(len(ticks), np.uint64)
        at = np.searchsorted(batches["start_ticks"][own], ticks, side="right") - 1
        inside = np.flatnonzero(at >= 0)
        inside = inside[ticks[inside] < batches["end_ticks"][own[at[inside]]]]
        batch = own[at[inside]]
        path[inside], counts[inside], ends[inside] = 0, self.wanted[batch], batches["end_ticks"][batch]
        found = find_calls(_renumber(calls, rows), ticks)
        called = np.flatnonzero(found >= 0)
        call = rows[found[called]]
        known = self.paths[call] != _NO_PATH
        called, call = called[known], call[known]
        lonely = path[called] == _NO_PATH  # outside batches
        counts[called[lonely]] = self.kept[call[lonely]]
        path[called], ends[called] = self.paths[call], calls["end_ticks"][call]
        return path, counts, ends


class _Stacks:
    # Paths are numbered: 0 is a batch, 1 is outside batches, each other one is a path plus a function.
    def __init__(
        self, facts: RecordingFacts, windows: _Windows | None, by_time: bool, counts: Words | None = None
    ) -> None:
        self._names = facts.function_names
        self._windows = windows
        self._by_time = by_time
        self._paths: dict[tuple[int, int], int] = {(_NO_PATH, 0): 0, (_NO_PATH, 1): 1}
        self._weights: Counter[tuple[int, str]] = Counter()
        order = np.argsort(facts.samples["ticks"], kind="stable")
        self._samples = facts.samples[order]
        known = np.ones(len(order), np.uint64) if counts is None else np.where(is_known(counts), counts, np.uint64(0))
        self._amounts = known[order]
        self._placed = np.zeros(len(self._samples), bool)
        absences = place_steal_time(facts.absences)
        self._away = absences[(absences["flags"] & AbsenceFlag.PREEMPTED) != 0]
        self._steal = StealTime(absences)
        self._places = AddressNames(facts.places)
        self._leaves: dict[tuple[int, bool], str] = {}

    def add(self, columns: Columns) -> None:
        """Adds drained columns."""
        take = _Take(columns, self._windows, self._find_paths(columns.calls))
        if self._by_time:
            self._add_times(take)
        for thread in distinct(np.concatenate((columns.calls["thread"], columns.batches["thread"]))).tolist():
            if self._by_time:
                self._move_away(take, thread)
                self._move_stolen(take, thread)
            else:
                self._add_samples(take, thread)

    def finish(self) -> Counter[str]:
        """Returns all stacks with their weights."""
        if not self._by_time and self._windows is None:
            outside = np.flatnonzero(~self._placed)
            self._count(outside, np.ones(len(outside), np.int64))
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
        """Returns the path of each call. A caller outside the columns is ignored."""
        paths = np.full(len(calls), _NO_PATH, np.int64)
        parents = np.where(calls["parent"] < len(calls), calls["parent"].astype(np.int64), _NO_PATH)
        above = np.where(calls["batch"] == 0xFFFFFFFF, 1, 0)
        rows = np.flatnonzero(parents == _NO_PATH)
        while len(rows):
            keys = np.stack((above[rows], calls["function"][rows].astype(np.int64)), axis=1)
            found, places = np.unique(keys, axis=0, return_inverse=True)
            numbers = [self._paths.setdefault((path, function), len(self._paths)) for path, function in found.tolist()]
            paths[rows] = np.array(numbers, np.int64)[places.ravel()]
            rows = np.flatnonzero((paths == _NO_PATH) & (parents >= 0) & (paths[parents] != _NO_PATH))
            above[rows] = paths[parents[rows]]
        return paths

    def _add_times(self, take: _Take) -> None:
        calls, batches = take.columns.calls, take.columns.batches
        kept = take.kept & (take.paths != _NO_PATH) & ((calls["flags"] & CallFlag.MARK) == 0)
        sums = np.bincount(take.paths[kept], calls["self_ticks"][kept].astype(np.float64))
        for path in np.flatnonzero(sums).tolist():
            self._weights[path, ""] += round(float(sums[path]))
        outer = (calls["parent"] >= len(calls)) & (calls["batch"] < len(batches))
        inside = np.bincount(
            calls["batch"][outer], (calls["end_ticks"] - calls["start_ticks"])[outer].astype(np.float64), len(batches)
        )
        own = (batches["end_ticks"] - batches["start_ticks"]).astype(np.float64) - inside
        self._weights[0, ""] += round(float(np.maximum(own, 0)[take.wanted].sum()))

    def _move_away(self, take: _Take, thread: int) -> None:
        """Subtracts what had the CPU instead from the function."""
        rows = self._away[self._away["thread"] == thread]
        path, counts, ends = take.locate(thread, rows["out_ticks"])
        gone = np.minimum(rows["in_ticks"], ends).astype(np.int64) - rows["out_ticks"].astype(np.int64)
        for index in np.flatnonzero(counts & (gone > 0)).tolist():
            self._move(int(path[index]), AbsenceKind(int(rows["kind"][index])), int(gone[index]))

    def _move_stolen(self, take: _Take, thread: int) -> None:
        """The same for steal time: when in its interval is not known, so in the call that took longest in it."""
        calls = take.columns.calls
        own = np.flatnonzero(calls["thread"] == thread)
        own = own[np.argsort(calls["start_ticks"][own], kind="stable")]
        starts = calls["start_ticks"][own]
        first, last = take.extent(thread)
        rows = self._steal.during(thread, first, last)
        for row in rows[rows["in_ticks"] <= last]:  # a longer interval belongs to the next columns
            inside = own[slice(*np.searchsorted(starts, (row["out_ticks"], row["in_ticks"])))]
            if not len(inside):
                continue
            longest, stolen = inside[calls["self_ticks"][inside].argmax()], int(row["part_ticks"])
            took = int(calls["self_ticks"][longest])
            if take.kept[longest] and took >= STOLEN_SHARE_MIN * stolen and take.paths[longest] != _NO_PATH:
                self._move(int(take.paths[longest]), AbsenceKind.STEAL, min(took, stolen))

    def _move(self, path: int, kind: AbsenceKind, ticks: int) -> None:
        moved = min(ticks, self._weights[path, ""])
        self._weights[path, ""] -= moved
        self._weights[path, AWAY.get(kind, OTHER)] += moved

    def _add_samples(self, take: _Take, thread: int) -> None:
        seen = self._samples_between(*take.extent(thread), thread)
        path, counts, _ = take.locate(thread, self._samples["ticks"][seen])
        self._placed[seen[path != _NO_PATH]] = True
        self._count(seen[counts], path[counts])

    def _samples_between(self, first: int, last: int, thread: int) -> NDArray[np.int64]:
        """Returns a thread's unassigned samples between two times."""
        low, high = np.searchsorted(self._samples["ticks"], np.array([first, last], np.uint64)).tolist()
        near = slice(low, high)
        found: NDArray[np.int64] = low + np.flatnonzero((self._samples["thread"][near] == thread) & ~self._placed[near])
        return found

    def _count(self, seen: NDArray[np.int64], paths: NDArray[np.int64]) -> None:
        keys, amounts = addresses_of(self._samples[seen]), self._amounts[seen].tolist()
        for key, path, amount in zip(keys, paths.tolist(), amounts, strict=True):
            if key not in self._leaves:
                self._leaves[key] = self._places.name(*key)
            self._weights[path, self._leaves[key]] += amount


def _renumber(calls: Rows, rows: NDArray[np.int64]) -> Rows:
    """Returns the calls of one thread in this order, with `parent` relative to them."""
    places = np.full(len(calls) + 1, 0xFFFFFFFF, np.uint32)
    places[rows] = np.arange(len(rows), dtype=np.uint32)
    chosen: Rows = calls[rows].copy()
    chosen["parent"] = places[np.minimum(chosen["parent"], len(calls))]
    return chosen
