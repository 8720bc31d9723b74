# SPDX-License-Identifier: Apache-2.0
"""The difference of two recordings, function by function, as the JSON object of `nfprobe diff` (docs/diff.md).

Functions are compared by own time per packet in each of many time slices (below): a function *stands out* if that
differs between the recordings by more than it does between the slices of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import CallFlag, Columns, Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.pipeline.absences import Absences, overlap_ticks
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.report.report import build_report

# ---- time slices ----------------------------------------------------------------------------------------------------
# Slices: a recording divided into up to 64 equal intervals, with per-function sums. Columns in.
#
# The variation of a function's time between slices is noise; diff.py compares it with the difference between two
# recordings. The cost of probes, and the time in which the scheduler kept the thread from running, are subtracted.


SLICES_MAX = 64
FIRST_WIDTH_TICKS = 1 << 16

Table = NDArray[np.float64]


class TimeSlices:
    """Sums by time slice, in bounded memory: the width of slices doubles whenever there are too many.

    Args:
        costs: overhead of a probed call of each function (dtype COST), by function ID.
        absences: of the whole recording, dtype ABSENCE.

    Attributes:
        calls, own_ticks, total_ticks: of each function, shape (functions, SLICES_MAX).
        packets, batches: received, shape (SLICES_MAX,).
        width_ticks: of a slice.
    """

    def __init__(self, costs: Rows, absences: Rows) -> None:
        self._inside = costs["inside_ticks"].astype(np.float64)
        self._around = np.maximum(costs["whole_ticks"].astype(np.float64) - self._inside, 0)
        self._away = Absences(absences)
        self._begin: int | None = None
        self.width_ticks = FIRST_WIDTH_TICKS
        self.calls, self.own_ticks, self.total_ticks = (np.zeros((len(costs), SLICES_MAX)) for _ in range(3))
        self.packets, self.batches = np.zeros(SLICES_MAX), np.zeros(SLICES_MAX)

    def add(self, columns: Columns) -> None:
        """Adds drained columns."""
        calls, batches = columns.calls, columns.batches
        starts = [rows["start_ticks"] for rows in (calls, batches) if len(rows)]
        if not starts:
            return
        if self._begin is None:
            self._begin = min(int(ticks.min()) for ticks in starts)
        self._make_room(max(int(ticks.max()) for ticks in starts))
        at = self._find(batches["start_ticks"])
        self.packets += np.bincount(at, batches["size"], SLICES_MAX)
        self.batches += np.bincount(at, None, SLICES_MAX)
        self._add_calls(calls)

    def used(self) -> int:
        """Returns how many slices contain anything."""
        filled = np.flatnonzero(self.batches + self.calls.sum(axis=0))
        return int(filled[-1]) + 1 if len(filled) else 0

    def _add_calls(self, calls: Rows) -> None:
        function = calls["function"].astype(np.int64)
        known = (function < len(self.calls)) & ((calls["flags"] & CallFlag.MARK) == 0)
        ran, own = self._time_calls(calls)
        at = (function * SLICES_MAX + self._find(calls["start_ticks"]))[known]
        for table, weights in ((self.calls, None), (self.own_ticks, own[known]), (self.total_ticks, ran[known])):
            table += np.bincount(at, weights, table.size)[: table.size].reshape(table.shape)

    def _time_calls(self, calls: Rows) -> tuple[Table, Table]:
        """Returns time from entry to exit and own time of each call, in ticks."""
        away = np.zeros(len(calls), np.int64)
        start, end = calls["start_ticks"].astype(np.int64), calls["end_ticks"].astype(np.int64)
        for thread in distinct(calls["thread"]).tolist():
            rows = np.flatnonzero(calls["thread"] == thread)
            spans = self._away.during(thread, int(start[rows].min()), int(end[rows].max()))
            away[rows] = overlap_ticks(spans, start[rows], end[rows])
        function = np.minimum(calls["function"], len(self._inside))
        inside, around = np.append(self._inside, 0.0)[function], np.append(self._around, 0.0)[function]
        total = (end - start - away).astype(np.float64)
        total -= np.where(calls["flags"] & CallFlag.CLIPPED, 0, calls["cost_ticks"])
        own = calls["self_ticks"] - away - inside
        nested = np.flatnonzero(calls["parent"] < len(calls))
        # A caller's own time excludes its callees, including their waits; their probes are partly in it.
        np.add.at(own, calls["parent"][nested], (away - around)[nested])
        return total, own

    def _find(self, ticks: NDArray[np.uint64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (ticks.astype(np.int64) - (self._begin or 0)) // self.width_ticks
        return found.clip(0, SLICES_MAX - 1)

    def _make_room(self, last_ticks: int) -> None:
        while (last_ticks - (self._begin or 0)) // self.width_ticks >= SLICES_MAX:
            self.width_ticks *= 2
            for table in (self.calls, self.own_ticks, self.total_ticks, self.packets, self.batches):
                halves = table.reshape(*table.shape[:-1], SLICES_MAX // 2, 2).sum(axis=-1)
                table[..., : SLICES_MAX // 2], table[..., SLICES_MAX // 2 :] = halves, 0


# ---- the difference -------------------------------------------------------------------------------------------------


AT_LEAST = 0.1  # of a function's time: unchanged runs of a program differ by some percent
NOISES = 3  # minimum change of the usual time, in multiples of the noise
ERRORS = 4  # minimum change of the mean, in multiples of its standard error, and
FACTOR = 2  # minimum ratio of the means: few calls, but far slower ones
SHARE = 0.01  # minimum change, as a share of all functions' time: less has no effect on packets
SLICES_MIN = 4
THIN = 0.25  # slices with less than this share of the usual work are the ends of a recording, or not representative
SIGMA = 1.4826  # standard deviations per median absolute deviation

Key = tuple[str, str, int]
Values = NDArray[np.float64]


@dataclass
class Side:
    """One of the two recordings.

    Attributes:
        document: of its report.
        own: own time of each function per unit of work in each valid slice, ns.
        total, calls: time from entry to exit (ns) and calls per unit of work.
        functions: the recording's facts of each called function.
    """

    path: str
    document: dict[str, Any]
    damage: str
    unit: str
    own: Values
    total: Values
    calls: Values
    functions: dict[Key, FunctionInfo]


def build_diff(path_a: str, path_b: str, at_least: float = AT_LEAST) -> dict[str, Any]:
    """Reads both recordings, three times each.

    Args:
        path_a: the reference recording.
        path_b: the other.
        at_least: minimum relative change of a function's usual time to stand out.

    Raises:
        UsageError: one is not a recording, or contains no calls.
    """
    readings = [_Reading(path) for path in (path_a, path_b)]
    unit = next((name for name in ("packet", "batch") if all(reading.has(name) for reading in readings)), "ms")
    a, b = (reading.measure(unit) for reading in readings)
    both = [_compare(key, a, b, at_least) for key in a.functions if key in b.functions]
    whole_ns = max(sum(function[side]["self_ns_per_unit"] for function in both) for side in ("a", "b"))
    for function in both:
        if function["stands_out"] and abs(function["change_ns"]) < SHARE * whole_ns:
            function["stands_out"] = None
    both.sort(key=lambda function: (function["stands_out"] is None, -abs(function["change_ns"]), function["name"]))
    return {
        "unit": unit,
        "functions": both,
        "only_a": _only(a, b),
        "only_b": _only(b, a),
        "batches": {"a": a.document["batches"], "b": b.document["batches"]},
        "packets": {side: _describe_packets(of.document["packets"]) for side, of in (("a", a), ("b", b))},
        "causes": _compare_causes(a.document["packets"], b.document["packets"]),
        "lost": {"a": a.document["lost"], "b": b.document["lost"]},
        "recordings": {
            side: {**of.document["recording"], "file": of.path, "damage": of.damage}
            for side, of in (("a", a), ("b", b))
        },
    }


class _Reading:
    # One recording, read.
    def __init__(self, path: str) -> None:
        self._path = path
        reader = RecordingReader(path)
        self._report = build_report(reader)
        facts = read_facts(reader)
        self._slices = TimeSlices(facts.costs, facts.absences)
        with Pipeline(facts.roles) as pipeline:
            pipeline.set_costs(facts.costs)
            for columns in replay(reader, facts, pipeline):
                self._slices.add(columns)
        self._ns_per_tick = 1e9 / facts.make_clock().ticks_per_second
        self._functions = facts.functions
        if not self._report.document["calls"]:
            raise UsageError(f"The recording {path} contains no calls.", f"nfprobe report {path}")

    def has(self, unit: str) -> bool:
        return bool((self._slices.packets if unit == "packet" else self._slices.batches).any())

    def measure(self, unit: str) -> Side:
        slices = self._slices
        used = slices.used()
        width_ms = slices.width_ticks * self._ns_per_tick / 1e6
        work = {"packet": slices.packets, "batch": slices.batches, "ms": np.full(len(slices.packets), width_ms)}[unit]
        work = work[:used]
        if unit == "ms" and used > 1:
            work = np.append(work[:-1], 0.0)  # the last one is incomplete
        counts = np.flatnonzero(work >= THIN * np.median(work[work > 0]))
        own, total, calls = (
            table[:, :used][:, counts] / work[counts] for table in (slices.own_ticks, slices.total_ticks, slices.calls)
        )
        ns = self._ns_per_tick
        document, damage = self._report.document, self._report.damage
        return Side(self._path, document, damage, unit, own * ns, total * ns, calls, self._name_functions())

    def _name_functions(self) -> dict[Key, FunctionInfo]:
        """Returns the called functions: module, name, and a number if several have the same name."""
        names: dict[Key, FunctionInfo] = {}
        seen: Counter[tuple[str, str]] = Counter()
        called = self._slices.calls.sum(axis=1) > 0
        for function in sorted(self._functions.values(), key=lambda function: function.offset):
            key = PurePath(function.module).name, function.name or f"+0x{function.offset:x}"
            if called[function.id]:
                module, name = key
                names[module, name, seen[key]] = function
            seen[key] += 1
        return names


def _compare(key: Key, a: Side, b: Side, at_least: float) -> dict[str, Any]:
    in_a, in_b = a.functions[key], b.functions[key]
    own_a, own_b = a.own[in_a.id], b.own[in_b.id]
    usual = float(np.median(own_b) - np.median(own_a))
    noise = SIGMA * max(_deviation(own_a), _deviation(own_b))
    change = float(own_b.mean() - own_a.mean())
    error = float(np.sqrt(sum(own.var() / len(own) for own in (own_a, own_b))))
    low, high = sorted((max(float(own_a.mean()), 0.0), max(float(own_b.mean()), 0.0)))
    enough = min(len(own_a), len(own_b)) >= SLICES_MIN
    stands_out = None
    if enough and abs(change) > ERRORS * error and high > FACTOR * low:
        stands_out = "mean"
    if enough and abs(usual) > NOISES * noise and abs(usual) > at_least * float(np.median(own_a)):
        stands_out = "usual"
    return {
        "module": key[0],
        "name": key[1],
        "stands_out": stands_out,
        "change_ns": round(change, 3),
        "usual_change_ns": round(usual, 3),
        "noise_ns": round(noise, 3),
        "error_ns": round(error, 3),
        "a": _describe(a, in_a),
        "b": _describe(b, in_b),
    }


def _deviation(values: Values) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _describe(side: Side, function: FunctionInfo) -> dict[str, Any]:
    """Returns a function's report entry in one recording, and its values per unit of work."""
    place = function.module, function.offset, function.name or f"function {function.id}"
    entries = side.document["functions"]
    entry = next(entry for entry in entries if (entry["module"], entry["offset"], entry["name"]) == place)
    own, total, calls = (table[function.id] for table in (side.own, side.total, side.calls))
    return {
        **{name: entry[name] for name in ("calls", "total_ns", "self_ns", "p50_ns", "p99_ns")},
        "calls_per_unit": round(float(calls.mean()), 6),
        "total_ns_per_unit": round(max(float(total.mean()), 0.0), 3),
        "self_ns_per_unit": round(max(float(own.mean()), 0.0), 3),
        "usual_ns_per_unit": round(max(float(np.median(own)), 0.0), 3),
    }


def _only(side: Side, other: Side) -> list[dict[str, Any]]:
    """Returns functions called in one recording only, those with most time first."""
    found = [
        {"module": key[0], "name": key[1], **_describe(side, function)}
        for key, function in side.functions.items()
        if key not in other.functions
    ]
    return sorted(found, key=lambda function: -function["self_ns"])


def _describe_packets(packets: Mapping[str, Any]) -> dict[str, Any]:
    names = ("received", "transmitted", "dropped", "punted", "absorbed", "unknown", "latency_ns", "late")
    return {name: packets.get(name, 0) for name in names}


def _compare_causes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns causes of late packets in each recording, the largest change first."""
    shares = [
        {(cause["kind"], cause["function"]): cause["share"] for cause in of["causes"] if cause["packets"]}
        for of in (a, b)
    ]
    keys: Iterable[tuple[str, str | None]] = shares[0] | shares[1]
    rows: list[dict[str, Any]] = [
        {
            "kind": kind,
            "function": function,
            "a": shares[0].get((kind, function), 0.0),
            "b": shares[1].get((kind, function), 0.0),
        }
        for kind, function in keys
    ]
    return sorted(rows, key=lambda row: (-abs(row["b"] - row["a"]), row["kind"], row["function"] or ""))
