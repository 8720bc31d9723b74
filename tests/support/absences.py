# SPDX-License-Identifier: Apache-2.0
"""Rows of dtype ABSENCE as tests write them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.pipeline.absences import ABSENCE, AbsenceFlag, AbsenceKind


def make_switches(rows: Sequence[tuple[int, int, int, int]]) -> Rows:
    """Context switches: out and in (ticks), thread, AbsenceFlag."""
    made = np.zeros(len(rows), ABSENCE)
    for row, (out, back, thread, flags) in zip(made, rows, strict=True):
        row["out_ticks"], row["in_ticks"], row["thread"], row["flags"] = out, back, thread, flags
    return made


def make_interrupt(kind: AbsenceKind, code: int, out: int, back: int, thread: int = 0) -> Rows:
    """One interrupt."""
    made = make_switches([(out, back, thread, AbsenceFlag.PREEMPTED)])
    made["kind"], made["code"] = kind, code
    return made


def make_steal(out: int, back: int, stolen: int, thread: int = 0) -> Rows:
    """Steal time of so many ticks, somewhere in an interval."""
    made = make_switches([(out, back, thread, 0)])
    made["kind"], made["part_ticks"] = AbsenceKind.STEAL, stolen
    return made
