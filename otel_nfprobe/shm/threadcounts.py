# SPDX-License-Identifier: Apache-2.0
"""What the threads of a target have counted themselves, as threadtable.py reads it."""

from __future__ import annotations

from dataclasses import dataclass

COUNT_MAX = (1 << 48) - 1  # no thread counts that far: what says more is nonsense, and its sums would fit nowhere


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """Counters of one thread of the target, exact even when records were lost.

    Attributes:
        tid: the monitor's number; 0: the target has made it up, or the thread ended before it was looked at.
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
    lost: tuple[int, int, int]
    start_ticks: int = 0


@dataclass(frozen=True, slots=True)
class LateCounts:
    """What one thread of the target did where not every packet is identified; fields as in nfp_thread_shared."""

    index: int
    identified: int
    unplaced: int
    unheld: int
    checked: int
    differing: int
    copying: bool
