# SPDX-License-Identifier: Apache-2.0
"""Sets: counter sets of a session whose counters changed while it ran, and their combined counts. Pure.

A call is counted with one set or not at all. Sums of a counter cover all sets that contain it; a derived column, such
as instructions per cycle, those that contain all of its counters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from otel_nfprobe.base.columns import NONE, Columns, Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.counters.bundles import add_counts, derive
from otel_nfprobe.counters.sums import CountedFunction, CounterSums

NamedCounters = tuple[tuple[str, int], ...]  # name and multiplier


class CounterSet(NamedTuple):
    """The counters in use between two changes.

    Attributes:
        number: number of changes before it.
        counters: in the order of the readings.
        costs: what a probed call counts by itself (dtype COUNTER_COST, by function id).
    """

    number: int
    counters: NamedCounters
    costs: Rows


class SessionSums:
    """Sums over all calls and batches of a session across all of its counter sets."""

    def __init__(self, sets: Iterable[CounterSet] = ()) -> None:
        self._sums: dict[int, CounterSums] = {}
        for counted in sets:
            self.begin(counted)

    def begin(self, counted: CounterSet) -> None:
        """Starts a counter set; the same number again means that its costs changed."""
        names, scales = [name for name, _ in counted.counters], [scale for _, scale in counted.counters]
        sums = self._sums.setdefault(counted.number, CounterSums(names, scales))
        sums.costs = counted.costs

    @property
    def names(self) -> list[str]:
        """Names of all counters."""
        return list(dict.fromkeys(name for sums in self._sums.values() for name in sums.names))

    @property
    def changes(self) -> int:
        """Number of changes."""
        return max(self._sums, default=0)

    @property
    def are_compensated(self) -> bool:
        """Whether the counts of probes are subtracted everywhere."""
        used = [sums for sums in self._sums.values() if sums.names]
        return bool(used) and all(sums.are_compensated for sums in used)

    def add(self, columns: Columns) -> None:
        """Adds the calls and batches of these columns."""
        rows = columns.counters
        numbers = distinct(rows["set"]).tolist()
        if len(numbers) == 1 and numbers[0] in self._sums:
            self._sums[numbers[0]].add(columns)
        if len(numbers) < 2:
            return
        # A batch belongs to the counters of its first call; if they changed during it, it was not counted.
        owners = np.full(len(columns.batches), numbers[-1], np.uint32)
        batches = columns.calls["batch"][rows["call"]]
        inside = batches != NONE
        owners[batches[inside][::-1]] = rows["set"][inside][::-1]
        for number in numbers:
            if number in self._sums:
                part = replace(columns, counters=rows[rows["set"] == number])
                self._sums[number].add(part, owners == number)

    def of_function(self, function: int) -> dict[str, Any]:
        """As CounterSums.of_function; means and rates are over the calls that were counted with each counter."""
        parts = [found for sums in self._sums.values() if (found := sums.of_function(function))]
        merged: dict[str, Any] = {}
        for part in parts:
            for name, entry in part.items():
                if isinstance(entry, dict):
                    merged[name] = _merge(merged[name], entry) if name in merged else entry
        totals = [{name: entry["total"] for name, entry in part.items() if isinstance(entry, dict)} for part in parts]
        return merged | derive(*totals)

    def counted_functions(self) -> list[CountedFunction]:
        """As CounterSums.counted_functions."""
        merged: dict[int, CountedFunction] = {}
        for item in (item for sums in self._sums.values() for item in sums.counted_functions()):
            before = merged.get(item.function, CountedFunction(item.function, {}, 0, 0))
            counts = {name: int(count) for name, count in add_counts((before.counts, item.counts)).items()}
            merged[item.function] = CountedFunction(
                item.function, counts, before.calls + item.calls, before.invalid + item.invalid
            )
        return list(merged.values())

    def count_calls(self) -> dict[str, int]:
        """As CounterSums.count_calls."""
        parts = [sums.count_calls() for sums in self._sums.values()]
        return {name: sum(part[name] for part in parts) for name in ("calls", "invalid_calls")}

    def of_batches(self) -> dict[str, Any]:
        """As CounterSums.of_batches; per packet of those that were counted with each counter."""
        parts = [(sums, found) for sums in self._sums.values() if (found := sums.of_batches())]
        if not parts:
            return {}
        whole = {key: sum(found[key] for _, found in parts) for key in ("batches", "invalid_batches", "packets")}
        sums = [{name: found[name] for name in counted.names} for counted, found in parts]
        packets = add_counts([dict.fromkeys(counted.names, counted.packets) for counted, _ in parts])
        totals = add_counts(sums)
        shares = {f"{name}_per_packet": totals[name] / packets[name] for name in totals if packets[name]}
        return {**whole, **totals, **shares, **derive(*sums)}


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Merges the results of two sets for one counter."""
    merged = {key: first[key] + second[key] for key in ("total", "calls", "self_calls", "invalid")}
    own = [entry["self"] for entry in (first, second) if entry["self"] is not None]
    mean = merged["total"] / merged["calls"] if merged["calls"] else None
    probe = second["probe"] if second["calls"] else first["probe"]
    return {
        "total": merged["total"],
        "mean": mean,
        "self": sum(own) if own else None,
        **{key: merged[key] for key in ("calls", "self_calls", "invalid")},
        "probe": probe,
    }
