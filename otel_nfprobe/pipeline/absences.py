# SPDX-License-Identifier: Apache-2.0
"""Absences: when threads of the target did not execute their own code, as rows. Pure: arrays in, arrays out.

One row of the kind SWITCH lasts from the moment when the scheduler took a thread off its CPU until it ran again. A
thread that was *preempted* could have run on: its time is nobody's fault in the target. One that gave up its CPU (a
lock, a sleep, a stop by a signal or debugger) spent the time where it was: that is time of the function that waited.
A row of the kind FAULT is a page fault, or a part of one beside interrupts; CALL and WAIT are times that the thread
slept in a system call, where it is known in which one. Interrupts took the CPU from the thread that was running there,
each row without those that interrupted it. A row of the kind STEAL says how long the hypervisor ran something else in
its interval, not when: it overlaps with others. Of those that interrupts tell the place of, `place_steal_time` makes
rows of the same kind with the flag PREEMPTED: they do not overlap. A row of the kind FIRMWARE says that there were
`code` system management interrupts on the thread's CPU in its interval, neither when nor for how long.

Written by absence_watch.py, kept in recordings (block ABSENCES), used by latency_causes.py.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.base.printable import printable

_LAYOUT = dtype_of("nfp_absence")
_NAMES = {
    "out_ns": "out_ticks",
    "in_ns": "in_ticks",
    "part_ns": "part_ticks",
    "woken_ns": "woken_ticks",
    "event": "thread",
}
ABSENCE = np.dtype([(_NAMES.get(name, name), _LAYOUT[name]) for name in _LAYOUT.names or ()])
"""struct nfp_absence in other units. thread: its index in the thread table; flags: AbsenceFlag; kind: AbsenceKind; the
CPUs differ when the thread migrated. sleep: without a meaning here.
"""

ABSENCES_MAX = 1 << 19  # kept of a whole recording: 80 MiB


class AbsenceFlag(IntFlag):
    PREEMPTED = lib.NFP_ABSENCE_PREEMPTED
    MAJOR = lib.NFP_ABSENCE_MAJOR  # of a page fault: a file was read
    WOKEN_BY_INTERRUPT = lib.NFP_ABSENCE_WOKEN_BY_INTERRUPT
    HELD = lib.NFP_ABSENCE_HELD  # another thread of the target kept it from running (holds.py)
    STOPPED = lib.NFP_ABSENCE_STOPPED  # by a signal or a debugger
    INCOMPLETE = lib.NFP_ABSENCE_INCOMPLETE  # records of the kernel were lost before this row


class AbsenceKind(IntEnum):
    SWITCH = lib.NFP_ABSENCE_SWITCH
    VECTOR = lib.NFP_ABSENCE_VECTOR
    IRQ = lib.NFP_ABSENCE_IRQ
    SOFTIRQ = lib.NFP_ABSENCE_SOFTIRQ
    NMI = lib.NFP_ABSENCE_NMI
    STEAL = lib.NFP_ABSENCE_STEAL
    FAULT = lib.NFP_ABSENCE_FAULT
    CALL = lib.NFP_ABSENCE_CALL
    WAIT = lib.NFP_ABSENCE_WAIT
    FIRMWARE = lib.NFP_ABSENCE_FIRMWARE


INTERRUPTS = (AbsenceKind.VECTOR, AbsenceKind.IRQ, AbsenceKind.SOFTIRQ, AbsenceKind.NMI)
SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
"""By number: linux/interrupt.h."""
VECTORS = (
    "local_timer",
    "reschedule",
    "call_function",
    "call_function_single",
    "thermal_apic",
    "threshold_apic",
    "deferred_error_apic",
    "error_apic",
    "spurious_apic",
    "x86_platform_ipi",
)
"""Tracepoints irq_vectors:*_entry and *_exit; the code of a row is the position here. perf cannot sample irq_work."""


def name_absence(row: np.void) -> str:
    """Returns what the CPU did instead, or where the thread slept; empty: unknown.

    Such as `kworker/1:2 (tid 71), woken by interrupt local_timer`, `softirq NET_RX`, `major page fault of /lib/x.so`.
    """
    kind, name = int(row["kind"]), _text(row["name"])
    if row["flags"] & AbsenceFlag.STOPPED:
        return "stopped by a signal or a debugger"
    if kind == AbsenceKind.SWITCH:
        return _name_task(row, name)
    if kind == AbsenceKind.STEAL:
        return "the hypervisor"
    if kind == AbsenceKind.FIRMWARE:
        return name_firmware(int(row["code"]))
    if kind == AbsenceKind.FAULT:
        size = "major page fault" if row["flags"] & AbsenceFlag.MAJOR else "page fault"
        return " of ".join(part for part in (size, _text(row["text"])) if part)
    if kind == AbsenceKind.CALL:
        return ": ".join(part for part in (name, _text(row["text"])) if part)
    if kind == AbsenceKind.WAIT:
        waker = _name_waker(row)
        return f"{name}, ended by {waker}" if waker else name
    return name_interrupt(row)


def name_firmware(count: int) -> str:
    """Returns what so many system management interrupts are called."""
    return "a system management interrupt" if count == 1 else f"{count:,} system management interrupts"


def name_interrupt(row: np.void) -> str:
    """As name_absence, of interrupts."""
    kind, code, name = int(row["kind"]), int(row["code"]), _text(row["name"])
    if kind == AbsenceKind.VECTOR:
        return f"interrupt {VECTORS[code]}" if code < len(VECTORS) else "interrupt"
    if kind == AbsenceKind.IRQ:
        return f"interrupt {code} {name}".rstrip()
    if kind == AbsenceKind.SOFTIRQ:
        return f"softirq {SOFTIRQS[code]}" if code < len(SOFTIRQS) else f"softirq {code}"
    return "non-maskable interrupt"


def _name_task(row: np.void, name: str) -> str:
    if not name:
        return ""
    if not row["code"]:
        return "the idle task"
    group, waker = _text(row["text"]), _name_waker(row)
    words = f"{name} (tid {int(row['code'])})" + (f" of {group}" if group else "")
    return words + (f", woken by {waker}" if waker else "")


def _name_waker(row: np.void) -> str:
    name, tid = _text(row["waker_name"]), int(row["waker"])
    if row["flags"] & AbsenceFlag.WOKEN_BY_INTERRUPT:
        return (name if name.startswith("softirq ") else f"interrupt {name}") if name else "an interrupt"
    return f"{name} (tid {tid})" if tid and name else ""


def _text(field: bytes) -> str:
    return printable(field.decode("utf-8", "replace"))


def no_absences() -> Rows:
    """An empty array of rows."""
    return np.empty(0, ABSENCE)


def keep_longest(absences: Rows, most: int) -> Rows:
    """Returns at most so many of the rows, in their order: short interrupts are left out first."""
    if len(absences) <= most:
        return absences
    lasted = (absences["in_ticks"] - absences["out_ticks"]).astype(np.int64)
    lasted = np.where(absences["kind"] == AbsenceKind.STEAL, absences["part_ticks"].astype(np.int64), lasted)
    kept: Rows = absences[np.sort(np.argpartition(lasted, len(absences) - most)[len(absences) - most :])]
    return kept


PLACED_SHARE_MIN = 0.5  # of what was stolen: the minimum by which an interrupt that it fell into is too long


def place_steal_time(absences: Rows) -> Rows:
    """Gives time of interrupts to the hypervisor that took the CPU in them, which made them that long.

    A virtual machine leaves its CPU most often where it handles an interrupt, and gets it back there.

    Args:
        absences: of dtype ABSENCE, in any order.

    Returns:
        the same with the longest interrupt in an interval of steal time shortened, if most of it lies in there, and a
        row of the kind STEAL with the flag PREEMPTED behind it; less is left to be placed by others.
    """
    is_stolen = _is_unplaced_steal(absences)
    steals = absences[is_stolen]
    steals = steals[np.argsort(steals["in_ticks"], kind="stable")[::-1]]  # what is behind is taken off first
    order = np.flatnonzero(np.isin(absences["kind"], INTERRUPTS))
    if not len(steals) or not len(order):
        return absences
    order = order[np.lexsort((absences["in_ticks"][order], absences["thread"][order]))]
    interrupts, placed = absences[order], [no_absences()]
    spans, usual, threads = _spans(interrupts), _usual_ticks(interrupts), interrupts["thread"]
    for steal in steals:  # a view: what is placed is taken off
        first, last = np.searchsorted(threads, [steal["thread"], int(steal["thread"]) + 1])
        first, last = (
            first + np.searchsorted(spans[first:last, 1], int(steal["out_ticks"]), side="right"),
            first + np.searchsorted(spans[first:last, 0], int(steal["in_ticks"])),
        )
        near = spans[first:last]
        inside = np.diff(near.clip(int(steal["out_ticks"]), int(steal["in_ticks"])))[:, 0]
        extra = np.minimum(inside, near[:, 1] - near[:, 0] - usual[first:last])
        taken = min(int(extra.max(initial=0)), int(steal["part_ticks"]))
        if taken <= 0 or taken < PLACED_SHARE_MIN * steal["part_ticks"]:
            continue
        longest = first + int(np.argmax(extra))
        placed.append(_make_steal_row(interrupts[longest], taken))
        spans[longest, 1] = interrupts["in_ticks"][longest] = spans[longest, 1] - taken
        steal["part_ticks"] -= taken
    others = np.ones(len(absences), bool)
    others[order] = False
    others &= ~is_stolen
    interrupts = interrupts[spans[:, 1] > spans[:, 0]]
    return np.concatenate((absences[others], interrupts, steals[steals["part_ticks"] > 0], *placed))


def is_unplaced(absences: Rows) -> NDArray[np.bool_]:
    """Returns which rows say of something that it was in their interval, not when: steal time, firmware."""
    unplaced: NDArray[np.bool_] = _is_unplaced_steal(absences) | (absences["kind"] == AbsenceKind.FIRMWARE)
    return unplaced


def _is_unplaced_steal(absences: Rows) -> NDArray[np.bool_]:
    unplaced: NDArray[np.bool_] = absences["kind"] == AbsenceKind.STEAL
    unplaced &= (absences["flags"] & AbsenceFlag.PREEMPTED) == 0
    return unplaced


def _make_steal_row(interrupt: np.void, ticks: int) -> Rows:
    """Returns a row of the last `ticks` of an interrupt, which the hypervisor took."""
    row = np.zeros(1, ABSENCE)
    for name in ("in_ticks", "thread", "from_cpu", "to_cpu"):
        row[name] = interrupt[name]
    row["out_ticks"] = row["in_ticks"] - np.uint64(ticks)
    row["kind"], row["part_ticks"] = AbsenceKind.STEAL, ticks
    row["flags"] = interrupt["flags"] | AbsenceFlag.PREEMPTED
    return row


def _usual_ticks(interrupts: Rows) -> NDArray[np.int64]:
    """Returns the median of the interrupts of the same kind and number; 0 where there is no other one."""
    lasted = np.diff(_spans(interrupts))[:, 0]
    keys = interrupts["kind"].astype(np.uint64) << np.uint64(32) | interrupts["code"]
    usual = np.zeros(len(interrupts), np.int64)
    for key in distinct(keys):
        same = np.flatnonzero(keys == key)
        if len(same) > 1:
            usual[same] = np.partition(lasted[same], (len(same) - 1) // 2)[(len(same) - 1) // 2]
    return usual


class Absences:
    """The rows of one drain or recording, asked for the time that a thread was away; steal time is left out
    where its place is not known.

    Args:
        absences: of dtype ABSENCE, in any order; those of one thread do not overlap, but for steal time.
    """

    def __init__(self, absences: Rows) -> None:
        absences = absences[~is_unplaced(absences)]
        order = np.lexsort((absences["out_ticks"], absences["thread"]))
        threads, first = np.unique(absences["thread"][order], return_index=True)
        parts = np.split(absences[order], first[1:]) if len(absences) else []
        self._by_thread = dict(zip(threads.tolist(), parts, strict=True))

    def during(self, thread: int, start_ticks: int, end_ticks: int, preempted_only: bool = True) -> NDArray[np.int64]:
        """Start and end of each time in [start, end] that a thread was away: shape (n, 2), in order, cut to it.

        A page fault is no such time: the thread was busy with its own work.
        """
        rows = self.rows(thread, start_ticks, end_ticks)
        if not len(rows):
            return np.empty((0, 2), np.int64)
        rows = rows[rows["kind"] != AbsenceKind.FAULT]
        if preempted_only:
            rows = rows[(rows["flags"] & AbsenceFlag.PREEMPTED) != 0]
        return _spans(rows).clip(start_ticks, end_ticks)

    def interrupts(self, thread: int, start_ticks: int, end_ticks: int) -> NDArray[np.int64]:
        """As `during`, of interrupts only."""
        rows = self.rows(thread, start_ticks, end_ticks)
        return _spans(rows[np.isin(rows["kind"], INTERRUPTS)]).clip(start_ticks, end_ticks)

    def rows(self, thread: int, start_ticks: int, end_ticks: int) -> Rows:
        """Returns the rows of a thread that overlap with [start, end], in order, not cut to it."""
        rows = self._by_thread.get(thread)
        if rows is None or end_ticks <= start_ticks:
            return no_absences()
        first = int(np.searchsorted(rows["in_ticks"], np.uint64(start_ticks), side="right"))
        last = int(np.searchsorted(rows["out_ticks"], np.uint64(end_ticks), side="left"))
        overlapping: Rows = rows[first:last]
        return overlapping


class StealTime:
    """The rows of steal time of one drain or recording whose place is not known.

    Args:
        absences: of dtype ABSENCE, in any order.
    """

    def __init__(self, absences: Rows) -> None:
        rows = absences[_is_unplaced_steal(absences)]
        self._rows = rows[np.argsort(rows["in_ticks"], kind="stable")]

    def during(self, thread: int, start_ticks: int, end_ticks: int) -> Rows:
        """Returns a thread's rows that overlap with [start, end], in order; those of one thread do not overlap."""
        rows = self._rows[self._rows["thread"] == thread]
        overlapping: Rows = rows[(rows["in_ticks"] > start_ticks) & (rows["out_ticks"] < end_ticks)]
        return overlapping


def _spans(rows: Rows) -> NDArray[np.int64]:
    return np.stack((rows["out_ticks"], rows["in_ticks"]), axis=1).astype(np.int64)


def overlap_ticks(spans: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of each interval [start, end] lies in any of the spans, which are in order and do not overlap.

    Args:
        spans: shape (n, 2).
        starts, ends: shape (m,).

    Returns:
        shape (m,).
    """
    if not len(spans):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0])))

    def covered(until: NDArray[np.int64]) -> NDArray[np.int64]:
        index = np.searchsorted(spans[:, 0], until, side="right")
        last = np.maximum(index - 1, 0)
        partly = np.where(index > 0, np.minimum(until, spans[last, 1]) - spans[last, 0], 0)
        total: NDArray[np.int64] = before[last] + np.maximum(partly, 0)
        return total

    inside: NDArray[np.int64] = np.maximum(covered(ends) - covered(starts), 0)
    return inside
