# SPDX-License-Identifier: Apache-2.0
"""Each kind of cause on columns made by hand: batches of one thread, every 1000 ticks, 100 ticks per call."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.columns import BATCH, CALL, NONE, PACKET, Columns
from otel_nfprobe.statistics import Statistics
from otel_nfprobe.tail import CauseKind, Typical, find_causes

RX, WORK, TX = 0, 1, 2
TYPICAL = Typical(np.array([100, 100, 100], np.uint64), latency_ticks=300, own_ticks=300, batch_size=4)


def _fill(array: np.ndarray, names: tuple[str, ...], rows: list) -> None:
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        array[name] = values


class Story:
    """Batches one after another: each receives, works and transmits; one packet each."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int, int, int]] = []  # function, start, end, batch, thread
        self.batches: list[tuple[int, int, int, int]] = []  # start, end, size, thread
        self.packets: list[tuple[int, int, int]] = []  # arrival, done, batch

    def batch(self, start: int, ticks: tuple[int, ...], arrival: int = 0, size: int = 4, thread: int = 0) -> None:
        at, index = start, len(self.batches)
        for function, duration in enumerate(ticks):
            self.calls.append((function, at, at + duration, index, thread))
            at += duration
        self.batches.append((start, at, size, thread))
        self.packets.append((arrival, at, index))

    def columns(self) -> Columns:
        calls = np.zeros(len(self.calls), CALL)
        batches, packets = np.zeros(len(self.batches), BATCH), np.zeros(len(self.packets), PACKET)
        _fill(calls, ("function", "start_ticks", "end_ticks", "batch", "thread"), self.calls)
        calls["self_ticks"], calls["parent"] = calls["end_ticks"] - calls["start_ticks"], NONE
        _fill(batches, ("start_ticks", "end_ticks", "size", "thread"), self.batches)
        batches["id"] = np.arange(len(batches)) + 100
        batches["first_call"] = np.searchsorted(calls["batch"], np.arange(len(batches)))
        batches["calls"] = np.bincount(calls["batch"])
        _fill(packets, ("arrival_ticks", "done_ticks", "batch"), self.packets)
        packets["flags"], packets["disposition"] = packets["arrival_ticks"] > 0, 1
        return Columns(calls, batches, packets)

    def cause(self, packet: int) -> np.void:
        return find_causes(self.columns(), np.array([packet]), TYPICAL)[0]


def test_own() -> None:
    story = Story()
    story.batch(1000, (100, 900, 100))
    cause = story.cause(0)
    assert cause.tolist() == (CauseKind.OWN, WORK, 800, 100, 0, 1, 1.0)


def test_queue() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000))
    story.batch(6200, (100, 100, 100), arrival=1500)
    cause = story.cause(1)
    assert (cause["kind"], cause["function"], cause["batch"], cause["batch_id"]) == (
        CauseKind.QUEUE,
        TX,
        0,
        100,
    )
    assert cause["excess_ticks"] == min(4900, 6200 - 1500)
    assert cause["share"] == 1.0


def test_queue_behind_several_batches_names_the_slow_one() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.batch(1300, (100, 4000, 100))
    story.batch(5500, (100, 100, 100))
    story.batch(5800, (100, 100, 100), arrival=1200)
    cause = story.cause(3)
    assert (cause["kind"], cause["batch"], cause["function"]) == (CauseKind.QUEUE, 1, WORK)


def test_batch_that_ended_before_the_arrival_is_not_to_blame() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000))
    story.batch(6200, (100, 100, 100))
    story.batch(9000, (100, 100, 100), arrival=6300)
    assert story.cause(2)["kind"] == CauseKind.UNKNOWN


def test_other_threads_are_not_to_blame() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000), thread=1)
    story.batch(6200, (100, 100, 100), arrival=1500)
    assert story.cause(1).tolist() == (CauseKind.UNKNOWN, NONE, 0, 0, NONE, NONE, 0.0)


def test_call_after_the_packet_was_done_is_not_to_blame() -> None:
    story = Story()
    story.batch(1000, (100, 1000, 100, 9000))
    story.packets[0] = (0, 2200, 0)
    assert story.cause(0)["function"] == WORK


def test_batching() -> None:
    story = Story()
    story.batch(1000, (150, 150, 150, 150, 150, 150), size=32)
    cause = story.cause(0)
    assert (cause["kind"], cause["function"], cause["excess_ticks"], cause["share"]) == (
        CauseKind.BATCHING,
        NONE,
        600,
        1.0,
    )


def test_punctual_and_unfinished_packets_have_no_cause() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    assert story.cause(0)["kind"] == CauseKind.UNKNOWN
    columns = story.columns()
    columns.packets["done_ticks"], columns.packets["disposition"] = 0, 0
    assert find_causes(columns, np.array([0]), TYPICAL)["kind"][0] == CauseKind.UNKNOWN
    assert len(find_causes(columns, np.array([], np.int64), TYPICAL)) == 0


@pytest.mark.parametrize("order", [1, -1])
def test_batches_may_come_in_any_order(order: int) -> None:
    story = Story()
    batches = [(1000, (100, 100, 5000), 0), (6200, (100, 100, 100), 1500)][::order]
    for start, ticks, arrival in batches:
        story.batch(start, ticks, arrival)
    late = 1 if order == 1 else 0
    assert story.cause(late)[["kind", "batch"]].tolist() == (CauseKind.QUEUE, 1 - late)


def test_typical_of_statistics() -> None:
    story = Story()
    for start in range(1000, 20000, 1000):
        story.batch(start, (100, 200, 100))
    statistics = Statistics()
    statistics.add(story.columns())
    typical = Typical.of(statistics)
    assert typical.self_ticks.tolist() == pytest.approx([100, 200, 100], rel=1 / 64)
    assert (typical.latency_ticks, typical.own_ticks, typical.batch_size) == (400, 400, 4)
