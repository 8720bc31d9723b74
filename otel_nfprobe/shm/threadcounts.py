# SPDX-License-Identifier: Apache-2.0
"""Counters kept by the threads of a target themselves, as read by threadtable.py."""

from __future__ import annotations

from dataclasses import dataclass

COUNT_MAX = (1 << 48) - 1  # no thread counts that far: larger values are invalid, and their sums would overflow


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """Counters of one thread of the target, exact even when records were lost.

    Attributes:
        tid: thread ID in the monitor's PID namespace; 0: made up by the target, or the thread ended before it was
            looked up.
        timed_ticks: what those calls of the probes' C code took that it timed: one of TIMED_EVERY.
        start_ticks: when it claimed its entry; 0: the entry was freed.
    """

    index: int
    tid: int
    empty_polls: int
    empty_ticks: int
    batches: int
    received: int
    transmit_calls: int
    transmitted: int
    refused: int
    dropped: int
    punted: int
    handed_over: int
    taken_over: int
    timed_ticks: int
    lost: tuple[int, int, int]
    start_ticks: int = 0


@dataclass(frozen=True, slots=True)
class LateCounts:
    """Late-capture counts of one thread of the target; fields as in nfp_thread_shared.

    Attributes:
        copying: bytes of each packet's begin; 0: none.
    """

    index: int
    identified: int
    unplaced: int
    unheld: int
    checked: int
    differing: int
    copying: int
