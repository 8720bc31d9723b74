# SPDX-License-Identifier: Apache-2.0
"""Packets that a receive call has only counted: functions show them later, each for its own receive call."""

from __future__ import annotations

import numpy as np
from otel_nfprobe._core import lib
from synthetic_records import RX, TX, Row, entry, hand_on, leave, poll, record, records, value

from otel_nfprobe.columns import TRANSMITTED, UNKNOWN, Columns
from otel_nfprobe.pipeline import Pipeline, PipelineCounts

SHOW = 4  # number of a function
ROLES = np.array([0, 1, 2, 3, lib.NFP_ROLE_SHOW], np.uint8)
ORIGIN = 30


def run(*parts: list[Row]) -> tuple[list[Columns], PipelineCounts]:
    """What each part's take gave, and at last the rest."""
    with Pipeline(ROLES) as pipeline:
        taken = []
        for rows in parts:
            pipeline.feed(0, records(rows))
            taken.append(pipeline.take())
            taken[-1] = Columns(*(column.copy() for column in (taken[-1].calls, taken[-1].batches, taken[-1].packets)))
        pipeline.finish()
        return [*taken, pipeline.take()], pipeline.counts()


def show(packets: list[tuple[int, int, int]], start: int) -> list[Row]:
    """A call that gets packets: buffer, entry of its receive call, place in what that returned."""
    rows = [entry(SHOW, start, 700)]
    for buffer, received, place in packets:
        rows += [record(8, SHOW, buffer, 64 | place << 16), record(ORIGIN, SHOW, received, place)]
        rows += [record(9, SHOW, buffer * 3, 7 | 17 << 16 | 4 << 24)]
    return [*rows, value(SHOW, len(packets), 700), leave(SHOW, start + 5, 700)]


def test_packets_of_two_receive_calls() -> None:
    """The second one's batch is the thread's when all are shown."""
    received = [*poll(RX, 100, 110, 800, 1), *poll(RX, 120, 130, 800, 2)]
    later = [*show([(1, 100, 0), (2, 120, 0), (3, 120, 1)], 140), *hand_on(TX, 150, 160, 800, [3, 1])]
    first = [*poll(RX, 50, 60, 800, 1), *show([(9, 50, 0)], 70), *hand_on(TX, 80, 90, 800, [9])]
    for parts in ([first + received + later], [first, received, later]):
        taken, counts = run(*parts)
        found = []
        for columns in taken:
            starts = columns.batches["start_ticks"][columns.packets["batch"]].tolist()
            facts = (columns.packets[name].tolist() for name in ("digest", "disposition"))
            found += zip(starts, *facts, strict=True)
        assert sorted(found)[1:] == [(100, 3, TRANSMITTED), (120, 6, UNKNOWN), (120, 9, TRANSMITTED)]
        assert (counts.received, counts.transmitted, counts.stray_packets) == (4, 3, 0)


def test_what_has_no_batch_is_counted() -> None:
    taken, counts = run([*poll(RX, 100, 110, 800, 1), *show([(1, 99, 0), (2, 100, 1), (3, 100, 0), (4, 100, 0)], 120)])
    assert taken[-1].packets["digest"].tolist() == [9]
    assert (counts.stray_packets, counts.invalid, counts.received) == (3, 0, 1)


def test_a_batch_waits_for_the_turns_packets_only() -> None:
    turn = [*poll(RX, 100, 110, 800, 2), *show([(1, 100, 0)], 120), *hand_on(TX, 130, 140, 800, [1])]
    turns = [row for number in range(10) for row in poll(RX, 200 + 20 * number, 210 + 20 * number, 800, 1)]
    taken, counts = run(turn, turns)
    assert len(taken[0].batches) == 0
    assert taken[1].batches["start_ticks"].tolist()[0] == 100
    assert counts.unknown == 11
