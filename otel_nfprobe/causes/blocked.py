# SPDX-License-Identifier: Apache-2.0
"""Blocked time: page faults, system calls that slept and waits for other threads, by function. Pure.

Unlike a preemption this happened to a thread because of what its code did: the function is named, and with it what it
was in. Sleeps between batches are no part of this: there a thread waits for work. Page faults and stops there are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE, Columns, Rows
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind, Absences, name_absence

ROWS_MAX = 256  # of one batch: the longest
KINDS = {
    AbsenceKind.FAULT: lib.NFP_TAIL_FAULT,
    AbsenceKind.CALL: lib.NFP_TAIL_FAULT,
    AbsenceKind.WAIT: lib.NFP_TAIL_WAIT,
}

Blocked = dict[int, dict[tuple[int, str], float]]
"""By function ID (NONE: outside of all probed calls), then by cause (CauseKind) and what it was: ticks."""


def find_blocked(columns: Columns, away: Absences, batch: int, until_ticks: int) -> Blocked:
    """Returns the blocked time of a batch up to a time, each row in the innermost call that its middle lies in."""
    row = columns.batches[batch]
    begin = int(row["start_ticks"])
    rows, out, back = _find_rows(away, int(row["thread"]), begin, until_ticks, list(KINDS))
    found: Blocked = {}
    if not len(rows):
        return found
    first = int(row["first_call"])
    calls = columns.calls[first : first + int(row["calls"])]
    start, end = calls["start_ticks"].astype(np.int64), calls["end_ticks"].astype(np.int64)
    for at in range(len(rows)):
        middle = (int(out[at]) + int(back[at])) // 2
        inside = np.flatnonzero((start <= middle) & (middle <= end))
        function = int(calls["function"][inside[np.argmax(start[inside])]]) if len(inside) else NONE
        key = KINDS[AbsenceKind(int(rows["kind"][at]))], name_absence(rows[at])
        of_function = found.setdefault(function, {})
        of_function[key] = of_function.get(key, 0.0) + float(back[at] - out[at])
    return found


def find_blocked_outside(away: Absences, thread: int, begin_ticks: int, until_ticks: int) -> dict[str, float]:
    """Returns a thread's page faults and stops in an interval in which it had no batch: ticks by what they were."""
    rows, out, back = _find_rows(away, thread, begin_ticks, until_ticks, [AbsenceKind.FAULT, AbsenceKind.SWITCH])
    if not len(rows):
        return {}
    known = (rows["kind"] == AbsenceKind.FAULT) | ((rows["flags"] & AbsenceFlag.STOPPED) != 0)
    rows, out, back = rows[known], out[known], back[known]
    found: dict[str, float] = {}
    for row, ticks in zip(rows, (back - out).tolist(), strict=True):
        name = name_absence(row)
        found[name] = found.get(name, 0.0) + ticks
    return found


def _find_rows(
    away: Absences, thread: int, begin_ticks: int, until_ticks: int, kinds: list[AbsenceKind]
) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64]]:
    """Returns the longest rows of these kinds, the longest first, and their begins and ends within an interval."""
    rows = away.rows(thread, begin_ticks, until_ticks)
    if not len(rows):  # as of most batches
        nothing = np.empty(0, np.int64)
        return rows, nothing, nothing
    rows = rows[np.isin(rows["kind"], kinds)]
    out = rows["out_ticks"].astype(np.int64).clip(begin_ticks, until_ticks)
    back = rows["in_ticks"].astype(np.int64).clip(begin_ticks, until_ticks)
    order = np.argsort(out - back, kind="stable")[:ROWS_MAX]
    return rows[order], out[order], back[order]
