# SPDX-License-Identifier: Apache-2.0
"""The parts of a report that are sums over the whole recording, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_nfprobe.base.columns import NONE, Rows
from otel_nfprobe.base.strategies import ENTRY_ONLY
from otel_nfprobe.counters.sets import SessionSums
from otel_nfprobe.pipeline.pipeline import PipelineCounts
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from otel_nfprobe.pipeline.values import CapturedValues
from otel_nfprobe.recording.replay import RecordingFacts
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.shm.session import LOST_CLASSES

RESOLUTION_COSTS = 3  # a mean below so many times the probe's own cost is marked
_UNKNOWN_FUNCTION = FunctionInfo(NONE, 0, "", 0, 0, "unknown function", "", "")


def make_document(
    facts: RecordingFacts,
    statistics: Statistics,
    counts: PipelineCounts,
    captured: CapturedValues,
    ns_per_tick: float,
) -> dict[str, Any]:
    sizes = statistics.histogram(Distribution.BATCH_SIZE)
    return {
        "functions": _list_functions(facts, statistics.functions(), captured, ns_per_tick),
        "batches": {
            "count": counts.batches,
            "size_histogram": [[int(size), int(count)] for size, count in sizes],
            "latency_ns": _quantiles(statistics, Distribution.BATCH_TICKS, ns_per_tick),
        },
        "packets": {
            "received": counts.received,
            "transmitted": counts.transmitted,
            "dropped": counts.dropped,
            **{name: count for name in ("punted", "absorbed") if (count := getattr(counts, name))},
            "unknown": counts.unknown + counts.pending,
            "latency_ns": _quantiles(statistics, Distribution.PACKET_TICKS, ns_per_tick),
            "latency_from": statistics.origins(),
            "slowest": [],
        },
        "lost": _count_lost(facts, counts),
        "calls": counts.calls,
        "records": counts.records,
        "unpaired": {"entries": counts.unpaired_entries, "exits": counts.unpaired_exits},
        "threads": _list_threads(facts),
        "recording": {
            "pid": facts.header.pid,
            "executable": facts.header.executable,
            "version": facts.header.resource.get("service.version"),
            "start_unix_ns": facts.header.start_unix_ns,
            "complete": facts.complete,
            "damage": facts.damage,
            "stolen": facts.summary.get("stolen"),
        },
    }


def _list_functions(
    facts: RecordingFacts, rows: Rows, captured: CapturedValues, ns_per_tick: float
) -> list[dict[str, Any]]:
    called = {int(row["function"]): row for row in rows}
    functions = []
    for id in sorted(facts.functions.keys() | called.keys()):
        function = facts.functions.get(id, _UNKNOWN_FUNCTION)
        row = called.get(id)
        entry = {
            "module": function.module,
            "offset": function.offset,
            "name": function.name or f"function {id}",
            "calls": int(row["count"]) if row is not None else 0,
        }
        for name in ("total", "self", "min", "p50", "p90", "p99", "max"):
            entry[f"{name}_ns"] = round(int(row[f"{name}_ticks"]) * ns_per_tick) if row is not None else 0
        entry |= _describe_cost(function, row, ns_per_tick) | {"counters": {}}
        functions.append(entry | captured.describe(id))
    return functions


def add_counters(document: dict[str, Any], facts: RecordingFacts, statistics: Statistics, sums: SessionSums) -> None:
    called = {int(row["function"]) for row in statistics.functions()}
    for id, entry in zip(sorted(facts.functions.keys() | called), document["functions"], strict=True):
        entry["counters"] = sums.of_function(id)
    document["batches"]["counters"] = sums.of_batches()


def _describe_cost(function: FunctionInfo, row: np.void | None, ns_per_tick: float) -> dict[str, Any]:
    """What was measured before the probes' own cost was taken off, and whether little but that cost was measured."""
    names = ("total", "self", "min", "max")
    raw = {f"{name}_ns": round(int(row[f"raw_{name}_ticks"]) * ns_per_tick) if row is not None else 0 for name in names}
    calls = int(row["count"]) if row is not None else 0
    mean_ticks = int(row["total_ticks"]) / calls if row is not None and calls else 0.0
    is_mark = function.strategy == ENTRY_ONLY
    return {
        "raw": raw,
        "probe_ns": {
            "inside": round(function.probe_inside_ticks * ns_per_tick, 1),
            "whole": round(function.probe_whole_ticks * ns_per_tick, 1),
        },
        "strategy": function.strategy,
        "below_resolution": bool(calls and not is_mark and mean_ticks < RESOLUTION_COSTS * function.probe_whole_ticks),
    }


def _quantiles(statistics: Statistics, distribution: Distribution, ns_per_tick: float) -> dict[str, int | None]:
    summary = statistics.summary(distribution)
    if not summary["count"]:
        return {"p50": None, "p99": None, "p999": None, "max": None}
    found = {
        name: round(statistics.quantile(distribution, quantile) * ns_per_tick)
        for name, quantile in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }
    return {**found, "max": round(summary["max"] * ns_per_tick)}


def _count_lost(facts: RecordingFacts, counts: PipelineCounts) -> dict[str, int]:
    # The thread table is exact but may be missing from a cut recording; LOST records stand where it happened.
    lost = {}
    for index, name in enumerate(LOST_CLASSES):
        said = sum(thread.lost[index] for thread in facts.counters.values() if index < len(thread.lost))
        lost[name] = max(said, counts.lost[index])
    return lost | ({"mistimed": counts.mistimed} if counts.mistimed else {})


def _list_threads(facts: RecordingFacts) -> list[dict[str, Any]]:
    threads = []
    for index, thread in sorted(facts.threads.items()):
        counters = facts.counters.get(index)
        entry: dict[str, Any] = {"tid": thread.tid, "name": thread.name}
        number = facts.names.thread_number(thread.tid)
        entry |= {} if number is None else {"number": number}
        if counters is not None:
            entry |= {
                "polls": counters.batches + counters.empty_polls,
                "empty_polls": counters.empty_polls,
                "batches": counters.batches,
                "packets": counters.received_packets,
                "handed_over": counters.handed_over_packets,
                "taken_over": counters.taken_over_packets,
            }
        threads.append(entry)
    return threads
