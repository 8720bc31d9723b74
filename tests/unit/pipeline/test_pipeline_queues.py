# SPDX-License-Identifier: Apache-2.0
"""Packets that one thread puts into queues of others: which a full queue has dropped, and what waits for them."""

from __future__ import annotations

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import DROPPED, TRANSMITTED, Columns, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from tests.support.synthetic_records import (
    ROLES,
    RX,
    TX,
    Row,
    burst,
    entry,
    hand_on,
    leave,
    poll,
    receiver,
    record,
    records,
    value,
)
from tests.unit.monitor.test_latecapture import hand_on as hand_on_chosen
from tests.unit.monitor.test_latecapture import receiver as late_receiver

TAKE, PUT = len(ROLES), len(ROLES) + 1
ALL_ROLES = np.append(ROLES, np.array([lib.NFP_ROLE_DEQUEUE, lib.NFP_ROLE_HAND_OVER], np.uint8))
Round = tuple[list[Row], list[Row]]  # records of the first thread and of the second


def put(start: int, asked: int, accepted: int, buffers: list[int]) -> list[Row]:
    """A call that puts packets into queues; it says which they are only where it drops some."""
    rows = [entry(PUT, start, 600), *(row for row in burst(PUT, buffers) if row[1] >> 24 == 8)]
    return [*rows, value(PUT, accepted | asked << 32, 600), leave(PUT, start + 10, 600)]


def take_over(buffers: list[int], start: int) -> list[Row]:
    rows = poll(TAKE, start, start + 10, 700, len(buffers))
    return [*rows, *(record(8, TAKE, buffer, position << 16) for position, buffer in enumerate(buffers))]


def run(*rounds: Round) -> tuple[Columns, PipelineCounts]:
    with Pipeline(ALL_ROLES) as pipeline:
        takes = []
        for rows in rounds:
            for thread, some in enumerate(rows):
                pipeline.feed(thread, records(some))
            takes.append(pipeline.take())
        pipeline.finish()
        return concatenate([*takes, pipeline.take()]), pipeline.counts()


def dispositions(columns: Columns) -> dict[int, int]:
    return dict(zip(columns.packets["buffer"].tolist(), columns.packets["disposition"].tolist(), strict=True))


def test_what_nobody_takes_over_was_dropped() -> None:
    buffers = [0x10, 0x20, 0x30, 0x40]
    first = [*receiver(buffers, 100), *put(150, 4, 2, buffers)]
    second = [*take_over([0x40, 0x20], 155), *hand_on(TX, 170, 180, 500, [0x40, 0x20])]
    columns, counts = run((first, second))
    assert dispositions(columns) == {0x10: DROPPED, 0x20: TRANSMITTED, 0x30: DROPPED, 0x40: TRANSMITTED}
    dropped = columns.packets[columns.packets["disposition"] == DROPPED]
    assert set(dropped["done_function"].tolist()) == {PUT}
    assert set(dropped["done_ticks"].tolist()) == {160}
    assert columns.batches["dropped"].sum() == 2
    assert (counts.dropped, counts.transmitted, counts.handed_over, counts.taken_over) == (2, 2, 2, 2)
    assert (counts.unknown, counts.pending, counts.generated, counts.stray_packets) == (0, 0, 0, 0)


def test_a_buffer_that_is_received_again_was_dropped() -> None:
    """At once, and not when its batch is not waited for any more."""
    first = [*receiver([0x10, 0x20], 100), *put(150, 2, 1, [0x10, 0x20]), *receiver([0x10], 200)]
    second = [*take_over([0x20], 160), *hand_on(TX, 170, 180, 500, [0x20])]
    with Pipeline(ALL_ROLES) as pipeline:
        pipeline.feed(0, records(first))
        pipeline.feed(1, records(second))
        pipeline.take()
        pipeline.take()
        assert (pipeline.counts().dropped, pipeline.counts().transmitted) == (1, 1)


def test_a_call_that_drops_all() -> None:
    columns, counts = run(([*receiver([0x10, 0x20], 100), *put(150, 2, 0, [0x10, 0x20])], []))
    assert dispositions(columns) == {0x10: DROPPED, 0x20: DROPPED}
    assert (counts.dropped, counts.handed_over, counts.unknown) == (2, 0, 0)


def test_packets_that_are_only_counted() -> None:
    columns, counts = run(([*poll(RX, 100, 110, 800, 5), *put(150, 5, 3, [])], poll(TAKE, 160, 170, 700, 3)))
    assert (counts.dropped, counts.handed_over, counts.received) == (2, 3, 5)
    assert sorted(columns.batches["size"].tolist()) == [3, 5]


def test_a_late_batch_waits_for_what_is_in_queues() -> None:
    """Its packets come out many rounds later, on the same thread, and say then where they came from."""
    first = [*late_receiver(1000, 2), *put(1050, 2, 2, [])]
    other = [*late_receiver(1200, 1), *hand_on_chosen(1220, 1230, 1, [(0, (1200, 0))])]
    out = [*poll(TAKE, 1500, 1510, 700, 2), *hand_on_chosen(1520, 1530, 2, [(0, (1000, 0)), (1, (1000, 1))])]
    rounds: list[Round] = [(first, []), (other, []), *[([], []) for _ in range(10)], (out, [])]
    columns, counts = run(*rounds)
    assert (counts.identified, counts.unplaced) == (3, 0)
    assert sorted(columns.packets["index"].tolist()) == [0, 0, 1]
