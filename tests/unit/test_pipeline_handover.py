# SPDX-License-Identifier: Apache-2.0
"""Packets that go on in batches of other threads: which ones, when, and that each row is given once."""

from __future__ import annotations

import numpy as np
from otel_nfprobe._core import lib
from synthetic_records import ROLES, RX, TX, Row, burst, hand_on, poll, receiver, record, records

from otel_nfprobe.columns import TRANSMITTED, BatchFlag, Columns, HandoverFlag, concatenate, with_again
from otel_nfprobe.pipeline import Pipeline, PipelineCounts

TAKE = len(ROLES)
SECOND = 1  # thread that takes packets over
Round = tuple[list[Row], list[Row]]  # records of the first thread and of the second


def take_over(buffers: list[int], start: int) -> list[Row]:
    """A call that takes these buffers over, in 10 ticks."""
    rows = poll(TAKE, start, start + 10, 700, len(buffers))
    return [*rows, *(record(8, TAKE, buffer, position << 16) for position, buffer in enumerate(buffers))]


def run(rounds: list[Round]) -> tuple[list[Columns], PipelineCounts]:
    """Takes after each round, and the counts."""
    with Pipeline(np.append(ROLES, np.uint8(lib.NFP_ROLE_TAKE_OVER))) as pipeline:
        takes = []
        for rows in rounds:
            for thread, some in enumerate(rows):
                pipeline.feed(thread, records(some))
            takes.append(pipeline.take())
        pipeline.finish()
        takes.append(pipeline.take())
        return takes, pipeline.counts()


def ways(columns: Columns) -> dict[int, list[tuple[int, int]]]:
    """By buffer: size of each batch that took it over, and its place there."""
    whole, found = with_again(columns), {}
    for packet, row in enumerate(columns.packets):
        mine = whole.handovers[whole.handovers["packet"] == packet]
        found[int(row["buffer"])] = [(int(whole.batches["size"][one["batch"]]), int(one["index"])) for one in mine]
    return found


def test_a_packet_is_given_with_the_batches_it_was_in() -> None:
    second = [*take_over([0x20, 0x10], 200), *hand_on(TX, 220, 230, 600, [0x20, 0x10])]
    (columns, last), counts = run([(receiver([0x10, 0x20], 100), second)])
    columns = concatenate([columns, last])
    assert ways(columns) == {0x10: [(2, 1)], 0x20: [(2, 0)]}
    assert columns.batches["flags"].tolist().count(int(BatchFlag.TAKEN_OVER)) == 1
    assert np.all(columns.packets["disposition"] == TRANSMITTED)
    assert (counts.received, counts.transmitted, counts.taken_over, counts.unknown) == (2, 2, 2, 0)
    taken = np.flatnonzero(columns.batches["flags"] & BatchFlag.TAKEN_OVER)[0]
    assert {TAKE, TX} == set(columns.calls["function"][columns.calls["batch"] == taken].tolist())


def test_over_two_threads_and_back() -> None:
    rounds = [
        (
            [*receiver([0x10], 100), *take_over([0x10], 300), *hand_on(TX, 320, 330, 600, [0x10])],
            take_over([0x10], 200),
        )
    ]
    takes, counts = run(rounds)
    assert ways(concatenate(takes)) == {0x10: [(1, 0), (1, 0)]}
    assert counts.taken_over == 2


def test_a_batch_that_an_earlier_take_needed_is_given_again() -> None:
    """Its packets came in two batches, one of which waits for a packet that is sent later."""
    third = [*take_over([0x40], 500), *hand_on(TX, 520, 530, 600, [0x40])]
    rounds = [
        ([*receiver([0x10], 100), *receiver([0x20, 0x30], 150)], take_over([0x10, 0x20], 200)),
        ([*receiver([0x40], 400)], hand_on(TX, 420, 430, 600, [0x10])),
        ([], third),
        ([], hand_on(TX, 600, 610, 600, [0x20, 0x30])),
        ([], []),
    ]
    takes, counts = run(rounds)
    again = [take for take in takes if len(take.again_batches)]
    assert len(again) == 1
    assert again[0].handovers["flags"].tolist() == [HandoverFlag.AGAIN]
    columns = concatenate(takes)
    assert ways(columns) == {0x10: [(2, 0)], 0x20: [(2, 1)], 0x30: [], 0x40: [(1, 0)]}
    assert len(np.unique(columns.batches["id"])) == len(columns.batches) == counts.batches == 5
    whole = with_again(columns)
    assert sorted(np.unique(whole.batches["id"], return_counts=True)[1].tolist()) == [1, 1, 1, 1, 2]
    one, other = (whole.batches[whole.batches["id"] == again[0].again_batches["id"][0]][i] for i in (0, 1))
    for row in (one, other):
        calls = whole.calls[row["first_call"] : row["first_call"] + row["calls"]]
        assert calls["function"].tolist() == [TAKE, TX]
        assert all(parent == 0xFFFFFFFF for parent in calls["parent"].tolist())


def test_what_nobody_has_received_is_left_out() -> None:
    rounds = [([*receiver([0x10], 100)], take_over([0x99, 0x10], 200)), ([], []), ([], [])]
    takes, counts = run(rounds)
    assert ways(concatenate(takes)) == {0x10: [(2, 1)]}
    assert (counts.taken_over, counts.generated) == (1, 0)
    stray = [*poll(RX, 300, 310, 700, 1), *burst(RX, [0x50]), record(8, TAKE, 0x50, 0)]
    assert run([(stray, [])])[1].stray_packets == 1


def test_the_second_thread_was_drained_first_and_in_parts() -> None:
    """As after a pause of the monitor: what one ring held is taken before another one is looked at."""
    first, again = ([*take_over([0x10], at), *hand_on(TX, at + 20, at + 30, 600, [0x10])] for at in (200, 1200))
    with Pipeline(np.append(ROLES, np.uint8(lib.NFP_ROLE_TAKE_OVER))) as pipeline:
        takes = []
        for rows in (first, take_over([], 300)):
            pipeline.feed(SECOND, records(rows))
            takes.append(pipeline.take(True))
        pipeline.feed(SECOND, records(again))
        pipeline.feed(0, records([*receiver([0x10], 100), *receiver([0x10], 1100)]))
        takes += [pipeline.take() for _ in range(3)]
        pipeline.finish()
        columns = concatenate([*takes, pipeline.take()])
        counts = pipeline.counts()
    assert (counts.received, counts.transmitted, counts.taken_over, counts.generated, counts.unknown) == (2, 2, 2, 0, 0)
    assert columns.packets["done_ticks"].tolist() == [230, 1230]


def test_many_batches_wait_for_packets_in_a_ring() -> None:
    """More than any thread's batches are kept where packets are not handed to other threads."""
    first = [row for i in range(200) for row in receiver([0x1000 + i], 100 + 100 * i)]
    second = [row for i in range(200) for row in take_over([0x1000 + i], 30_000 + 100 * i)]
    rounds: list[Round] = [(first, []), ([], []), ([], take_over([0x1], 29_000)), ([], second), ([], []), ([], [])]
    columns = concatenate(run([([], take_over([0x1], 50)), *rounds])[0])
    assert [len(way) for way in ways(columns).values()] == [1] * 200
