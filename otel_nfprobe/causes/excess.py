# SPDX-License-Identifier: Apache-2.0
"""Excess: the time of a batch's functions beyond the baseline, without preemption. Pure.

Computed on demand for the few batches that matter, and cached: many late packets wait for the same batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, BatchFlag, Columns
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.pipeline.context_switches import Absences, overlap_ticks

FUNCTIONS_NAMED = 4  # per batch: those with the largest excess


class BatchExcess:
    """Excess of the batches of some columns, looked up by index."""

    def __init__(self, columns: Columns, baseline: Baseline, away: Absences) -> None:
        self._columns = columns
        self._baseline = baseline
        self._away = away
        self._known: dict[tuple[int, int], list[tuple[int, float, int]]] = {}

    def of(self, batch: int, until_ticks: int | None = None) -> list[tuple[int, float, int]]:
        """Returns the functions of a batch that took longer than usual, the largest excess first.

        Args:
            batch: index in columns.batches.
            until_ticks: time after this is ignored; None: up to the end of the batch.

        Returns:
            function ID (NONE: the time outside of all probed calls), excess in ticks, and the index of the function's
            longest call (NONE: there is none).
        """
        row = self._columns.batches[batch]
        end = int(row["end_ticks"])
        until = end if until_ticks is None or until_ticks >= end else until_ticks
        key = (batch, until)
        if key not in self._known:
            self._known[key] = self._find(row, until)
        return self._known[key]

    def _find(self, row: np.void, until: int) -> list[tuple[int, float, int]]:
        first, begin = int(row["first_call"]), int(row["start_ticks"])
        calls = self._columns.calls[first : first + int(row["calls"])]
        start = calls["start_ticks"].astype(np.int64).clip(begin, until)
        end = calls["end_ticks"].astype(np.int64).clip(begin, until)
        spans = self._away.during(int(row["thread"]), begin, until)
        ran = end - start - overlap_ticks(spans, start, end)
        own = ran.copy()
        parent = calls["parent"].astype(np.int64) - first
        inside = (parent >= 0) & (parent < len(calls))
        np.subtract.at(own, parent[inside], ran[inside])
        own = np.maximum(own, 0)
        covered = int(ran[~inside].sum())
        away = int((spans[:, 1] - spans[:, 0]).sum())
        rest = max(until - begin - away - covered, 0)
        functions, where = np.unique(calls["function"], return_inverse=True)
        totals = np.append(np.bincount(where, own, len(functions)), rest)
        functions = np.append(functions, np.uint32(NONE))
        usual = self._baseline.function_ticks(functions, int(row["size"]))
        if row["flags"] & BatchFlag.UNDETAILED:  # the rest contains all functions that were not timed
            whole = float(self._baseline.batch_ticks(row["size"].reshape(1))[0])
            usual[-1] = max(whole - usual[:-1].sum(), 0.0)
        over = totals - usual
        longest = [*_longest(where, own, len(functions) - 1), NONE - first]
        order = np.argsort(-over, kind="stable")[:FUNCTIONS_NAMED]
        return [(int(functions[at]), float(over[at]), first + int(longest[at])) for at in order if over[at] > 0]


def _longest(where: NDArray[np.intp], own: NDArray[np.int64], count: int) -> NDArray[np.intp]:
    """Returns the call with the largest self time of each function."""
    order = np.lexsort((own, where))
    last = np.searchsorted(where[order], np.arange(count), side="right") - 1
    found: NDArray[np.intp] = order[last]
    return found
