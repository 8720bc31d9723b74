# SPDX-License-Identifier: Apache-2.0
"""What snippets captured, by function: how many calls have a value, the smallest and the largest. Pure."""

from __future__ import annotations

import numpy as np

from otel_nfprobe.base.columns import CallFlag, Columns


class CapturedValues:
    """Count, smallest and largest value of each function that captured any; 64 bits without sign."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int, int]] = {}

    def add(self, columns: Columns) -> None:
        """Takes the calls of one delivery."""
        calls = columns.calls[(columns.calls["flags"] & CallFlag.VALUE) != 0]
        for function in np.unique(calls["function"]):
            values = calls["value"][calls["function"] == function]
            lowest, highest = int(values.min()), int(values.max())
            count, low, high = self._known.get(int(function), (0, lowest, highest))
            self._known[int(function)] = count + len(values), min(low, lowest), max(high, highest)

    def describe(self, function: int) -> dict[str, dict[str, int]]:
        """`values` of one function for the report; empty when it captured none."""
        known = self._known.get(function)
        return {"values": dict(zip(("count", "min", "max"), known, strict=True))} if known else {}
