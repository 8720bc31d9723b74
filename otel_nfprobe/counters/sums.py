# SPDX-License-Identifier: Apache-2.0
"""Sums: counts per function, per batch and per packet. Pure; arrays in, numbers out.

A packet is processed together with its batch: its share is the batch's count divided by the batch's packets. It is
called `per_packet` everywhere, never the packet's own count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import COUNTER_COST, NONE, CallFlag, Columns, CountersFlag, Rows
from otel_nfprobe.counters.bundles import derive, per_packet
from otel_nfprobe.counters.namelist import COUNTERS_MAX

Words = NDArray[np.uint64]


def _rows(width: int = COUNTERS_MAX) -> Words:
    return np.zeros((0, width), np.uint64)


class CountedFunction(NamedTuple):
    """Counts over all calls of a function, by counter; numbers of calls counted, and not counted."""

    function: int
    counts: dict[str, int]
    calls: int
    invalid: int


@dataclass
class CounterSums:
    """Sums over all calls and batches of a session.

    Attributes:
        names: of the counters, in the order of the readings.
        scales: what each is multiplied by.
        costs: what was taken off for the probe of each function (dtype COUNTER_COST, by function id).
    """

    names: Sequence[str]
    scales: Sequence[int] = ()
    costs: Rows = field(default_factory=lambda: np.zeros(0, COUNTER_COST))
    batches: int = 0
    packets: int = 0
    invalid_batches: int = 0
    _inclusive: Words = field(default_factory=_rows)  # by function
    _self: Words = field(default_factory=_rows)
    _calls: Words = field(default_factory=lambda: _rows(3))  # counted, with self counted, not counted
    _batch_sums: Words = field(default_factory=lambda: np.zeros(COUNTERS_MAX, np.uint64))

    def add(self, columns: Columns, batches: NDArray[np.bool_] | None = None) -> None:
        """Adds the calls and batches of these columns.

        Args:
            batches: those to add; None: all.
        """
        rows = columns.counters
        if not len(rows):
            return
        calls = columns.calls[rows["call"]]
        whole = (calls["flags"] & CallFlag.MARK) == 0
        rows, calls = rows[whole], calls[whole]
        functions = calls["function"].astype(np.intp)
        self._make_room(int(functions.max(initial=-1)) + 1)
        valid = (rows["flags"] & CountersFlag.VALID) != 0
        own = (rows["flags"] & CountersFlag.SELF_VALID) != 0
        columns_used = len(self._counters())
        _add_up(self._inclusive, functions[valid], rows["inclusive"][valid], columns_used)
        _add_up(self._self, functions[own], rows["self"][own], columns_used)
        for column, chosen in enumerate((valid, own, ~valid)):
            self._calls[:, column] += np.bincount(functions[chosen], minlength=len(self._calls)).astype(np.uint64)
        self._add_batches(columns, batches)

    def _add_batches(self, columns: Columns, chosen: NDArray[np.bool_] | None) -> None:
        # A batch's count is that of its outermost calls; if one of them was not counted, the batch is left out. Without
        # any readings there are no counters, whatever else is in the same columns.
        if not len(columns.batches):
            return
        owners = columns.calls["batch"][columns.counters["call"]]
        read = np.zeros(len(columns.batches), bool)
        read[owners[owners != NONE]] = True
        found, counted = batch_counts(columns)
        chosen = read if chosen is None else chosen & read
        self.invalid_batches += int((chosen & ~counted).sum())
        counted &= chosen
        self.batches += int(counted.sum())
        self.packets += int(columns.batches["size"][counted].sum())
        self._batch_sums += found[counted].sum(axis=0)

    def _make_room(self, count: int) -> None:
        more = count - len(self._inclusive)
        if more > 0:
            self._inclusive, self._self, self._calls = (
                np.pad(rows, ((0, more), (0, 0))) for rows in (self._inclusive, self._self, self._calls)
            )

    def of_function(self, function: int) -> dict[str, Any]:
        """Returns for each counter its sum, mean and self sum over the calls of one function, and derived columns.

        Returns:
            empty: it was never called while counters were read.
        """
        if function >= len(self._calls) or not self._calls[function].any():
            return {}
        counted, own, invalid = (int(number) for number in self._calls[function])
        found: dict[str, Any] = {}
        sums: dict[str, float] = {}
        for place, (name, scale) in enumerate(self._counters()):
            total = int(self._inclusive[function, place]) * scale
            sums[name] = total
            found[name] = {
                "total": total,
                "mean": total / counted if counted else None,
                "self": int(self._self[function, place]) * scale if own else None,
                "calls": counted,
                "self_calls": own,
                "invalid": invalid,
                "probe": self._probe(function, place, scale),
            }
        return found | derive(sums)

    @property
    def are_compensated(self) -> bool:
        """Whether the counts of probes are subtracted."""
        return bool(len(self.costs)) and bool(self.costs["whole"].any())

    def _probe(self, function: int, place: int, scale: int) -> dict[str, int]:
        """Returns what was subtracted per call: from its own counts, and in total for the calls around it."""
        if function >= len(self.costs):
            return {"inside": 0, "whole": 0}
        return {name: int(self.costs[name][function, place]) * scale for name in ("inside", "whole")}

    def counted_functions(self) -> list[CountedFunction]:
        """Returns an entry for each function called while counters were read."""
        found = []
        for function in np.flatnonzero(self._calls.any(axis=1)).tolist():
            calls, _, invalid = (int(number) for number in self._calls[function])
            sums = (int(number) for number in self._inclusive[function])
            counts = {name: total * scale for (name, scale), total in zip(self._counters(), sums, strict=False)}
            found.append(CountedFunction(function, counts, calls, invalid))
        return found

    def count_calls(self) -> dict[str, int]:
        """Returns the calls that were counted, and those whose readings cannot be compared."""
        counted, _, invalid = (int(number) for number in self._calls.sum(axis=0)) if len(self._calls) else (0, 0, 0)
        return {"calls": counted, "invalid_calls": invalid}

    def of_batches(self) -> dict[str, Any]:
        """Returns sums over all counted batches, per packet (divided by a batch's packets), and derived columns."""
        if not self.batches and not self.invalid_batches:
            return {}
        sums = {name: float(self._batch_sums[place]) * scale for place, (name, scale) in enumerate(self._counters())}
        return {
            "batches": self.batches,
            "invalid_batches": self.invalid_batches,
            "packets": self.packets,
            **sums,
            **per_packet(sums, self.packets),
            **derive(sums),
        }

    def _counters(self) -> list[tuple[str, int]]:
        scales = list(self.scales) or [1] * len(self.names)
        return list(zip(self.names, scales, strict=True))


def _add_up(sums: Words, places: NDArray[np.intp], counts: Words, columns: int) -> None:
    """Adds rows of counts to the rows of `sums` at `places`; columns beyond `columns` are 0 in all of them."""
    for column in range(columns if len(places) else 0):
        # Exact: each addition sums fewer than 2^20 numbers below 2^32, far below the precision of a double.
        sums[:, column] += np.bincount(places, counts[:, column], minlength=len(sums)).astype(np.uint64)


def batch_counts(columns: Columns) -> tuple[Words, NDArray[np.bool_]]:
    """What was counted in the outermost calls of each batch, and whether all of them were: its receive call, too."""
    calls, batches = columns.calls, columns.batches
    rows = np.zeros((len(calls), COUNTERS_MAX), np.uint64)
    valid = np.zeros(len(calls), bool)
    rows[columns.counters["call"]] = columns.counters["inclusive"]
    valid[columns.counters["call"]] = (columns.counters["flags"] & CountersFlag.VALID) != 0
    uncounted = CallFlag.MARK | CallFlag.CLIPPED | CallFlag.SHARED
    skipped = (calls["flags"] & uncounted) != 0
    parent = calls["parent"]
    inside_clipped = np.zeros(len(calls), bool)
    known = parent != NONE
    inside_clipped[known] = skipped[parent[known]]
    outermost = (calls["batch"] != NONE) & ~skipped & (~known | inside_clipped)
    places = calls["batch"][outermost].astype(np.intp)
    sums = np.zeros((len(batches), COUNTERS_MAX), np.uint64)
    _add_up(sums, places, np.where(valid[outermost][:, None], rows[outermost], np.uint64(0)), COUNTERS_MAX)
    total = np.bincount(places, minlength=len(batches))
    good = np.bincount(places[valid[outermost]], minlength=len(batches))
    return sums, (total > 0) & (good == total)
