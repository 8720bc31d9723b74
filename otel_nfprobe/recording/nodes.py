# SPDX-License-Identifier: Apache-2.0
"""Graph nodes: calls, vectors and clocks of each, for comparison with the NF's own counters (VPP's `show runtime`).

Counts functions whose calls carry the number of vectors in the lower half of their value; the upper half is the node
index, if several nodes share the function. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.adapters.base import VECTORS
from otel_nfprobe.base.columns import CallFlag, Columns, Rows
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.recording.sessionfacts import FunctionInfo

NUMBER_SHIFT = 32  # of a node's index in the value of a call
_KEY_SHIFT = 24  # exceeds function IDs
_LOW = np.uint64(0xFFFFFFFF)


class NodeCounts:
    """Sums over all calls of functions that count vectors."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._counts = np.zeros(0, np.bool_)  # by function ID: whether its calls carry vectors
        self._sums: dict[tuple[int, int], NDArray[np.uint64]] = {}  # calls, vectors, ticks by function and node

    def learn(self, functions: Iterable[FunctionInfo]) -> None:
        """Adds functions that have probes, or get them."""
        self._names.update({item.id: item.name for item in functions if item.unit == VECTORS})
        self._counts = np.zeros(max(self._names, default=-1) + 1, np.bool_)
        self._counts[list(self._names)] = True

    def add(self, columns: Columns) -> None:
        """Adds drained calls."""
        if not len(self._counts) or not len(columns.calls):
            return
        calls = columns.calls
        ids = np.minimum(calls["function"], len(self._counts) - 1)
        counted = self._counts[ids] & (ids == calls["function"]) & ((calls["flags"] & CallFlag.VALUE) != 0)
        calls = calls[counted]
        numbers = np.where(calls["flags"] & CallFlag.RECEIVE, 0, calls["value"] >> np.uint64(NUMBER_SHIFT))
        self._add(calls, calls["function"] | numbers.astype(np.uint64) << np.uint64(_KEY_SHIFT))

    def _add(self, calls: Rows, keys: NDArray[np.uint64]) -> None:
        ticks = calls["end_ticks"] - calls["start_ticks"]
        # As in native/core/statistics.c: a clipped call's cost is that of the whole call.
        cost = np.where(calls["flags"] & CallFlag.CLIPPED, 0, calls["cost_ticks"])
        ticks = ticks - np.minimum(ticks, cost)
        vectors = calls["value"] & _LOW
        begun = (calls["flags"] & CallFlag.CONTINUED) == 0
        found, rows = np.unique(keys, return_inverse=True)
        sums = [np.bincount(rows, weights=weights, minlength=len(found)) for weights in (begun, vectors, ticks)]
        for key, row in zip(found.tolist(), np.array(sums).T.astype(np.uint64), strict=True):
            place = key & (1 << _KEY_SHIFT) - 1, key >> _KEY_SHIFT
            self._sums[place] = self._sums[place] + row if place in self._sums else row

    def describe(self, names: NumberNames, ns_per_tick: float) -> list[dict[str, Any]]:
        """Returns the nodes, most clocks first; each node once, by its name."""
        by_name: dict[str, NDArray[np.uint64]] = {}
        for (function, number), row in self._sums.items():
            name = (names.nodes.get(number, "") if number else "") or self._names[function]
            by_name[name] = by_name[name] + row if name in by_name else row
        found = sorted(by_name.items(), key=lambda item: -int(item[1][2]))
        return [_describe(name, row.tolist(), ns_per_tick) for name, row in found]


def _describe(name: str, sums: Sequence[int], ns_per_tick: float) -> dict[str, Any]:
    calls, vectors, ticks = sums
    return {
        "name": name,
        "calls": calls,
        "vectors": vectors,
        "total_ns": round(ticks * ns_per_tick),
        "vectors_per_call": round(vectors / max(calls, 1), 2),
        "clocks_per_vector": round(ticks / vectors, 1) if vectors else None,
        "ns_per_vector": round(ticks * ns_per_tick / vectors, 1) if vectors else None,
    }


def node_rows(nodes: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Yields a table of nodes, header first, with the columns and units of `show runtime`, and ns."""
    rows = [["graph node", "calls", "vectors", "vectors/call", "clocks/vector", "ns/vector"]]
    for node in nodes:
        per_vector = (node["clocks_per_vector"], node["ns_per_vector"])
        clocks = ["-" if number is None else f"{number:,.1f}" for number in per_vector]
        counts = [f"{node['calls']:,}", f"{node['vectors']:,}", f"{node['vectors_per_call']:.2f}"]
        rows.append([node["name"], *counts, *clocks])
    return rows
