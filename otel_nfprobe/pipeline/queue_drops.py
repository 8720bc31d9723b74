# SPDX-License-Identifier: Apache-2.0
"""Queue drops: how many packets a queue of the target dropped between two readings of its counter, as rows. Pure.

The packets were dropped somewhere between the two readings: nothing says when. Written by queue_watch.py, kept in
recordings (block QUEUE_DROPS), explained by drop_causes.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntFlag
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import NONE, Rows
from otel_nfprobe.base.printable import printable
from otel_nfprobe.linux.queue_counters import COUNTER_BITS, Queue, QueueKind

NAME_BYTES = 56
QUEUE_DROP = np.dtype(
    [
        ("since_ticks", "<u8"),
        ("until_ticks", "<u8"),
        ("packets", "<u8"),
        ("number", "<u8"),
        ("thread", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("name", f"S{NAME_BYTES}"),
    ]
)
"""since_ticks, until_ticks: the readings. packets: dropped between them. number, name: of the queue, UTF-8. thread:
index of the only thread that was seen to read it, or NONE. kind: QueueKind; flags: DropFlag.
"""
QUEUE_DROPS_MAX = 1 << 18  # kept of a recording: 24 MiB


class DropFlag(IntFlag):
    SHARED = 1  # several threads were seen to read the queue
    AT_LEAST = 2  # its counter was set to 0 meanwhile: more may have been dropped


def no_queue_drops() -> Rows:
    """An empty array of rows."""
    return np.empty(0, QUEUE_DROP)


def count_increase(kind: QueueKind, before: int, after: int) -> tuple[int, bool]:
    """Returns how many packets were dropped between two readings of a counter, and whether it was set to 0 meanwhile.

    A counter of 32 bits that has gone back by more than half of its range has begun anew after its largest number.
    """
    if after >= before:
        return after - before, False
    bits = COUNTER_BITS.get(kind)
    if bits is not None and before - after > 1 << bits - 1:
        return after + (1 << bits) - before, False
    return after, True


def make_row(queue: Queue, span: tuple[int, int], packets: int, thread: int = NONE, flags: int = 0) -> Rows:
    """Returns one row; `span`: the ticks before the earlier reading and after the later one."""
    row = np.zeros(1, QUEUE_DROP)
    row["since_ticks"], row["until_ticks"], row["packets"] = *span, packets
    row["number"], row["thread"], row["kind"], row["flags"] = queue.number, thread, queue.kind, flags
    row["name"] = queue.name.encode()[:NAME_BYTES].decode("utf-8", "ignore").encode()
    return row


def leave_out_impossible(drops: Rows) -> Rows:
    """Returns the rows that can be: a recording may hold any numbers."""
    largest = np.uint64(1 << 62)
    possible = (drops["since_ticks"] <= drops["until_ticks"]) & (drops["until_ticks"] < largest)
    bounded: Rows = drops[possible & (drops["packets"] < largest)][:QUEUE_DROPS_MAX]
    return bounded


def name_queue(row: np.void) -> str:
    """Returns the queue's name, printable."""
    return printable(row["name"].decode("utf-8", "replace"))


class QueueDropCounts:
    """Counts dropped packets by queue."""

    def __init__(self) -> None:
        self._packets: dict[tuple[str, int], int] = {}
        self._at_least: set[tuple[str, int]] = set()

    def add(self, rows: Rows) -> None:
        """Adds rows of dtype QUEUE_DROP."""
        for row in rows:
            key = name_queue(row), int(row["kind"])
            self._packets[key] = self._packets.get(key, 0) + int(row["packets"])
            if row["flags"] & DropFlag.AT_LEAST:
                self._at_least.add(key)

    def describe(self) -> list[dict[str, Any]]:
        """Returns packets by queue, most first: `queue`, `kind`, `packets`, and `at_least` where it may be more."""
        found = sorted(self._packets.items(), key=lambda item: (-item[1], item[0]))
        return [
            {
                "queue": name,
                "kind": name_kind(kind),
                "packets": packets,
                **({"at_least": True} if (name, kind) in self._at_least else {}),
            }
            for (name, kind), packets in found
        ]


def name_kind(number: int) -> str:
    """Returns the name of a QueueKind, which a damaged recording may have wrong."""
    return QueueKind(number).name.lower() if number in QueueKind._value2member_map_ else "unknown"


def describe_counts(queues: Sequence[Mapping[str, Any]]) -> str:
    """Returns the counts by queue as part of a sentence; empty without drops."""
    return ", ".join(
        f"{'at least ' if queue.get('at_least') else ''}{queue['packets']:,} by {queue['queue']}" for queue in queues
    )
