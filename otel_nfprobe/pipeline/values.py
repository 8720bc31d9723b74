# SPDX-License-Identifier: Apache-2.0
"""Values captured by snippets, per function: how many calls have one, the smallest and the largest. Pure."""

from __future__ import annotations

from otel_nfprobe.base.columns import CallFlag, Columns
from otel_nfprobe.base.distinct import distinct


class CapturedValues:
    """Count, smallest and largest value of each function with captured values; unsigned, 64 bits."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int, int]] = {}

    def add(self, columns: Columns) -> None:
        """Adds drained calls."""
        calls = columns.calls[(columns.calls["flags"] & CallFlag.VALUE) != 0]
        for function in distinct(calls["function"]):
            values = calls["value"][calls["function"] == function]
            lowest, highest = int(values.min()), int(values.max())
            count, low, high = self._known.get(int(function), (0, lowest, highest))
            self._known[int(function)] = count + len(values), min(low, lowest), max(high, highest)

    def describe(self, function: int) -> dict[str, dict[str, int]]:
        """Returns `values` of one function for the report; empty if it captured none."""
        known = self._known.get(function)
        return {"values": dict(zip(("count", "min", "max"), known, strict=True))} if known else {}
