# SPDX-License-Identifier: Apache-2.0
"""Rows of dropped packets: what two readings of a counter say, and what is counted by queue."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.linux.queue_counters import Queue, QueueKind
from otel_nfprobe.pipeline.queue_drops import (
    QUEUE_DROP,
    DropFlag,
    QueueDropCounts,
    count_increase,
    describe_counts,
    make_row,
    name_kind,
    name_queue,
)
from otel_nfprobe.recording.recording import QUEUE_DROP_BYTES

UDP, TAP = Queue(QueueKind.UDP, 5, "udp 127.0.0.1:53"), Queue(QueueKind.TAP, 0, "tap dtap0")


@pytest.mark.parametrize(
    ("kind", "before", "after", "dropped"),
    [
        (QueueKind.UDP, 5, 5, (0, False)),
        (QueueKind.UDP, 5, 9, (4, False)),
        (QueueKind.UDP, 2**32 - 3, 4, (7, False)),  # begun anew after its largest number
        (QueueKind.PACKET, 700, 4, (4, True)),  # set to 0 by who reads its statistics
        (QueueKind.TAP, 2**63, 3, (3, True)),  # 64 bits never begin anew
    ],
)
def test_increase_of_a_counter(kind: QueueKind, before: int, after: int, dropped: tuple[int, bool]) -> None:
    assert count_increase(kind, before, after) == dropped


def test_counts_by_queue() -> None:
    counts = QueueDropCounts()
    counts.add(make_row(UDP, (1, 2), 3))
    counts.add(np.concatenate([make_row(TAP, (1, 2), 1000, 4), make_row(UDP, (2, 3), 4, flags=DropFlag.AT_LEAST)]))
    found = counts.describe()
    assert found == [
        {"queue": "tap dtap0", "kind": "tap", "packets": 1000},
        {"queue": "udp 127.0.0.1:53", "kind": "udp", "packets": 7, "at_least": True},
    ]
    assert describe_counts(found) == "1,000 by tap dtap0, at least 7 by udp 127.0.0.1:53"
    assert describe_counts([]) == ""


def test_names_of_any_recording_are_printable() -> None:
    row = make_row(UDP, (1, 2), 3)
    row["name"] = b"\x1b[31m\xff\nx"
    assert name_queue(row[0]).isprintable()
    assert len(name_queue(make_row(Queue(QueueKind.UDP, 1, "\u00e4" * 60), (1, 2), 3)[0])) == 28
    assert name_kind(999) == "unknown"


def test_the_layout_is_that_of_recordings() -> None:
    assert QUEUE_DROP.itemsize == QUEUE_DROP_BYTES
