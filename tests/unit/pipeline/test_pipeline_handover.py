# SPDX-License-Identifier: Apache-2.0
"""Packets that go on in batches of other threads: which ones, when, and that each row is given once."""

from __future__ import annotations

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import TRANSMITTED, BatchFlag, Columns, HandoverFlag, concatenate, with_again
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from otel_nfprobe.pipeline.sampling import find_population
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

TAKE = len(ROLES)
SECOND = 1  # thread that takes packets over
Round = tuple[list[Row], list[Row]]  # records of the first thread and of the second


def take_over(buffers: list[int], start: int) -> list[Row]:
    """A call that takes these buffers over, in 10 ticks."""
    rows = poll(TAKE, start, start + 10, 700, len(buffers))
    return [*rows, *(record(8, TAKE, buffer, position << 16) for position, buffer in enumerate(buffers))]


def run(rounds: list[Round]) -> tuple[list[Columns], PipelineCounts]:
    """Takes after each round, and the counts."""
    with Pipeline(np.append(ROLES, np.uint8(lib.NFP_ROLE_DEQUEUE))) as pipeline:
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
    again = [take for take in takes if len(take.reemitted_batches)]
    assert len(again) == 1
    assert again[0].handovers["flags"].tolist() == [HandoverFlag.AGAIN]
    columns = concatenate(takes)
    assert ways(columns) == {0x10: [(2, 0)], 0x20: [(2, 1)], 0x30: [], 0x40: [(1, 0)]}
    assert len(np.unique(columns.batches["id"])) == len(columns.batches) == counts.batches == 5
    whole = with_again(columns)
    assert sorted(np.unique(whole.batches["id"], return_counts=True)[1].tolist()) == [1, 1, 1, 1, 2]
    one, other = (whole.batches[whole.batches["id"] == again[0].reemitted_batches["id"][0]][i] for i in (0, 1))
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
    with Pipeline(np.append(ROLES, np.uint8(lib.NFP_ROLE_DEQUEUE))) as pipeline:
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


HAND, TAKEN, VIA, ORIGIN, RECEIVED_MARK = TAKE + 1, 29, 23, 30, 1 << 29


def chosen(buffer: int, origin: tuple[int, int], thread: int, taken: tuple[int, int], via: int = 0) -> list[Row]:
    """A packet that is described when it leaves: its receive call, who made that, and the call that took it over."""
    vias = [record(VIA, TX, via << 16 | SECOND, 0)] if via else []
    rows = [record(8, TX, buffer, 64), record(ORIGIN, TX, *origin), *vias]
    return [*rows, record(TAKEN, TX, taken[0] << 16 | thread, taken[1]), record(9, TX, buffer * 3, 0)]


def take_unnamed(start: int, count: int, earliest: int) -> list[Row]:
    begin, end = poll(TAKE, start, start + 10, 700, count)
    return [begin, record(16, TAKE, earliest, RECEIVED_MARK), end]


def send(start: int, count: int, described: list[Row]) -> list[Row]:
    return [
        entry(TX, start, 600),
        *described,
        value(TX, count | count << 32, 600),
        leave(TX, start + 10, 600),
    ]


def put(start: int, count: int) -> list[Row]:
    return [entry(HAND, start, 600), value(HAND, count | count << 32, 600), leave(HAND, start + 10, 600)]


def receive_late(start: int, count: int) -> list[Row]:
    return [*poll(RX, start, start + 10, 800, count), record(31, RX, 0, 1)]


def run_late(rounds: list[Round]) -> tuple[Columns, PipelineCounts]:
    roles = np.append(ROLES, np.array([lib.NFP_ROLE_DEQUEUE, lib.NFP_ROLE_HAND_OVER], np.uint8))
    with Pipeline(roles) as pipeline:
        takes = []
        for rows in rounds:
            for thread, some in enumerate(rows):
                pipeline.feed(thread, records(some))
            takes.append(pipeline.take())
        pipeline.finish()
        takes.append(pipeline.take())
        return concatenate(takes), pipeline.counts()


def test_a_chosen_packet_names_the_thread_that_received_it() -> None:
    """However the rounds of the monitor lie: what it names may be read later, and waits where it was read before."""
    first = [*receive_late(100, 2), *put(120, 2)]
    second = [*take_unnamed(200, 2, 90), *send(220, 2, chosen(0x10, (100, 1), 0, (200, 0)))]
    for rounds in (
        [(first, second)],
        [(first, []), ([], second)],
        [(first, []), *[([], [])] * 100, ([], second)],
        [([], second), (first, [])],
    ):
        columns, counts = run_late(rounds)
        assert ways(columns) == {0x10: [(2, 0)]}
        assert (counts.identified, counts.unplaced, counts.taken_over) == (1, 0, 1)
        assert (counts.received, counts.transmitted, counts.unknown) == (2, 2, 0)
        packet, batches = columns.packets[0], columns.batches
        assert (batches["start_ticks"][packet["batch"]], packet["index"], packet["done_ticks"]) == (100, 1, 230)
        (taker,) = batches[(batches["flags"] & BatchFlag.TAKEN_OVER) != 0]
        assert taker["flags"] & BatchFlag.CHOSEN
        assert taker["earliest_ticks"] == 90


def test_a_chosen_packet_that_came_back_names_both_threads() -> None:
    first = [*receive_late(100, 1), *put(120, 1)]
    second = [*take_unnamed(200, 1, 100), *put(220, 1)]
    back = [*take_unnamed(300, 1, 100), *send(320, 1, chosen(0x10, (100, 0), 0, (300, 0), via=200))]
    for rounds in ([([*first, *back], second)], [(first, second), (back, [])]):
        columns, counts = run_late(rounds)
        whole = with_again(columns)
        assert whole.batches["start_ticks"][whole.handovers["batch"]].tolist() == [200, 300]
        assert (counts.identified, counts.unplaced, counts.taken_over) == (1, 0, 2)


def test_chosen_packets_of_thousands_of_small_batches_that_are_read_at_once() -> None:
    """A thread may hand packets to itself: it receives them, and takes them over in the turn after."""
    rows: list[Row] = []
    for start in range(1000, 1_000_000, 200):
        rows += [*receive_late(start, 1), *put(start + 20, 1), *take_unnamed(start + 100, 1, start)]
        rows += send(start + 120, 1, chosen(0x10, (start, 0), 0, (start + 100, 0)))
    _, counts = run_late([(rows, [])])
    assert (counts.received, counts.transmitted) == (4995, 4995)
    assert (counts.identified, counts.unplaced, counts.unknown) == (4995, 0, 0)


def test_a_chosen_packet_that_names_nonsense_is_only_counted() -> None:
    first, none = [*receive_late(100, 2), *put(120, 2)], (200, 0)
    for described in (
        chosen(0x10, (101, 0), 0, none),  # no such call
        chosen(0x10, (100, 0), 1, none),  # of the other thread
        chosen(0x10, (100, 2), 0, none),  # behind its end
        chosen(0x10, (100, 0), 0xFFFF, none),
    ):
        columns, counts = run_late([(first, [*take_unnamed(200, 2, 90), *send(220, 2, described)])])
        assert (len(columns.packets), len(columns.handovers)) == (0, 0)
        assert (counts.identified, counts.unplaced, counts.transmitted, counts.unknown) == (1, 1, 2, 0)
    for taken in ((0, 0), (199, 0), (200, 2)):  # by which call it was taken over is not known
        described = chosen(0x10, (100, 0), 0, taken)
        columns, counts = run_late([(first, [*take_unnamed(200, 2, 90), *send(220, 2, described)])])
        assert ways(columns) == {0x10: []}
        assert counts.unplaced == 0


def test_packets_of_a_late_take_over_are_as_old_as_they_were_received() -> None:
    """The thresholds follow them, too."""
    rounds = [([*receive_late(100, 2), *put(120, 2)], [*take_unnamed(200, 2, 90), *send(220, 2, [])])]
    population = find_population(run_late(rounds)[0])
    assert population is not None
    assert (population.latency_ticks.tolist(), population.weights.tolist()) == ([140], [2])
