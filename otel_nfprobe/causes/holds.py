# SPDX-License-Identifier: Apache-2.0
"""Holds: intervals in which one thread of the target kept all others from running (VPP's barrier), as rows. Pure.

A thread stands still from the end of its last work before all threads did, until it is released. As with a preemption,
that time is not the fault of the code it ran. Rows come from the pipeline (native/core/barrier.c).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import Columns, Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.printable import printable
from otel_nfprobe.pipeline.absences import (
    ABSENCE,
    AbsenceFlag,
    Absences,
    StealTime,
    is_unplaced,
    no_absences,
    place_steal_time,
)


def describe_hold(hold: Any) -> str:
    """Returns the reason why the other threads were held, printable; empty: unknown."""
    return printable(bytes(hold["text"][: min(int(hold["size"]), 84)]).decode("utf-8", "replace"))


def hold_threads(holds: Rows, thread: int, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Rows:
    """Returns the intervals in which a thread stood still during these holds: rows of dtype ABSENCE, in order.

    Args:
        holds: sorted by end.
        thread: its index in the thread table.
        starts, ends: of its batches, in order.
    """
    holds = holds[holds["thread"] != thread]
    rows = np.zeros(len(holds), ABSENCE)
    if not len(holds):
        return rows
    began, held, ended = (holds[name].astype(np.int64) for name in ("start_ticks", "held_ticks", "end_ticks"))
    before = np.searchsorted(starts, held)  # batches that had begun when all threads stood still
    last = np.where(before > 0, ends[np.maximum(before - 1, 0)] if len(ends) else 0, 0)
    since = np.clip(last, began, held)
    following = starts[np.minimum(before, len(starts) - 1)] if len(starts) else ended
    until = np.where(before < len(starts), np.clip(following, held, ended), ended)
    until[1:] = np.maximum(until[1:], until[:-1])
    since[1:] = np.maximum(since[1:], until[:-1])
    rows["out_ticks"], rows["in_ticks"] = since, np.maximum(until, since)
    rows["thread"], rows["flags"] = thread, AbsenceFlag.PREEMPTED | AbsenceFlag.HELD
    return rows


def add_held(absences: Rows, held: Rows) -> Rows:
    """Merges the intervals in which threads were held into their context switches; overlapping time counts once."""
    if not len(held):
        return absences
    parts = [absences[~np.isin(absences["thread"], held["thread"])]]
    for thread in distinct(held["thread"]).tolist():
        own = absences[absences["thread"] == thread]
        parts.append(_add_held(own[np.argsort(own["out_ticks"])], held[held["thread"] == thread]))
    return np.concatenate(parts)


def _add_held(absences: Rows, held: Rows) -> Rows:
    # For one thread; both sorted by time.
    out, back = absences["out_ticks"].copy(), absences["in_ticks"].copy()
    place = np.searchsorted(held["in_ticks"], out, side="right")
    inside = place < len(held)
    at = held[np.minimum(place, len(held) - 1)]
    overlaps = inside & (at["out_ticks"] < back)
    # An interval that begins in a hold starts at the hold's end; one that reaches into a hold stops at its start.
    begins_in = overlaps & (at["out_ticks"] <= out)
    out[begins_in] = np.minimum(at["in_ticks"][begins_in], back[begins_in])
    reaches = overlaps & ~begins_in
    back[reaches] = at["out_ticks"][reaches]
    kept = absences.copy()
    kept["out_ticks"], kept["in_ticks"] = out, back
    return np.concatenate((kept[kept["in_ticks"] > kept["out_ticks"]], held))


def find_held(columns: Columns) -> Rows:
    """Returns the intervals in which each thread with batches stood still: rows of dtype ABSENCE."""
    if not len(columns.holds):
        return no_absences()
    batches = columns.batches[np.lexsort((columns.batches["start_ticks"], columns.batches["thread"]))]
    found = [no_absences()]
    for thread in distinct(batches["thread"]).tolist():
        own = batches[batches["thread"] == thread]
        starts, ends = own["start_ticks"].astype(np.int64), own["end_ticks"].astype(np.int64)
        found.append(hold_threads(columns.holds, thread, starts, ends))
    return np.concatenate(found)


def find_longest(holds: Rows, start_ticks: int, end_ticks: int) -> int:
    """Returns the index of the hold that covers most of [start, end]; -1: none."""
    if not len(holds):
        return -1
    since = np.maximum(holds["start_ticks"].astype(np.int64), start_ticks)
    took = np.minimum(holds["end_ticks"].astype(np.int64), end_ticks) - since
    best = int(np.argmax(took))
    return best if took[best] > 0 else -1


def tell_apart(absences: Rows | None, columns: Columns) -> tuple[Absences, StealTime]:
    """Returns when threads were away, what holds them included, and steal time; None: no absences were recorded."""
    absences = no_absences() if absences is None else place_steal_time(absences)
    away = Absences(add_held(absences[~is_unplaced(absences)], find_held(columns)))
    return away, StealTime(absences)
