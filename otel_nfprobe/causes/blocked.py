# SPDX-License-Identifier: Apache-2.0
"""Blocked time: page faults, system calls that slept and waits for other threads, by function. Pure.

Unlike a preemption this happened to a thread because of what its code did: the function is named, and with it what it
was in. Sleeps between batches are no part of this: there a thread waits for work.
"""

from __future__ import annotations

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE, Columns
from otel_nfprobe.pipeline.absences import AbsenceKind, Absences, name_absence

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
    rows = away.rows(int(row["thread"]), begin, until_ticks)
    rows = rows[np.isin(rows["kind"], list(KINDS))]
    found: Blocked = {}
    if not len(rows):
        return found
    out = rows["out_ticks"].astype(np.int64).clip(begin, until_ticks)
    back = rows["in_ticks"].astype(np.int64).clip(begin, until_ticks)
    first = int(row["first_call"])
    calls = columns.calls[first : first + int(row["calls"])]
    start, end = calls["start_ticks"].astype(np.int64), calls["end_ticks"].astype(np.int64)
    for at in np.argsort(out - back, kind="stable")[:ROWS_MAX].tolist():
        middle = (int(out[at]) + int(back[at])) // 2
        inside = np.flatnonzero((start <= middle) & (middle <= end))
        function = int(calls["function"][inside[np.argmax(start[inside])]]) if len(inside) else NONE
        key = KINDS[AbsenceKind(int(rows["kind"][at]))], name_absence(rows[at])
        of_function = found.setdefault(function, {})
        of_function[key] = of_function.get(key, 0.0) + float(back[at] - out[at])
    return found
