# SPDX-License-Identifier: Apache-2.0
"""Late capture in the monitor: chosen packets find their batch or none, and thresholds follow what is seen."""

from __future__ import annotations

import types
from typing import Any, cast

import numpy as np

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import CALL, DROPPED, THREAD, TRANSMITTED, BatchFlag, CallFlag, Columns
from otel_nfprobe.causes.baseline import BatchSample
from otel_nfprobe.monitor.latecapture import CapturePolicy, LateCapture
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.sampling import REASON_SAMPLE, REASON_SLOWEST, Sampler, find_population
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from otel_nfprobe.shm.session import LATE_NEVER, SAMPLE_ALL, Session
from otel_nfprobe.shm.threadids import ThreadIds
from otel_nfprobe.shm.threadtable import ThreadTable
from tests.support.synthetic_records import DR, ROLES, RX, TX, Row, entry, leave, poll, record, records, run, value

NOTE, ORIGIN, LATE, DRAWN = 31, 30, 1, 2
UNPLACED = (0, 0xFFFFFFFF)


def receiver(start: int, count: int, note: int = LATE) -> list[Row]:
    rows = poll(RX, start, start + 10, 800, count)
    return [*rows, record(NOTE, RX, 0, note)] if note else rows


def chosen(function: int, buffer: int, position: int, origin: tuple[int, int]) -> list[Row]:
    return [
        record(8, function, buffer, 64 | position << 16),
        record(ORIGIN, function, *origin),
        record(9, function, buffer * 3, 7 | 17 << 16 | 4 << 24),
    ]


def hand_on(
    start: int, end: int, count: int, packets: list[tuple[int, tuple[int, int]]], function: int = TX
) -> list[Row]:
    """A call that hands on `count` packets; of some of them position and origin (receive call, place) are told."""
    rows = [entry(function, start, 700)]
    for position, origin in packets:
        rows += chosen(function, 100 + position, position, origin)
    return [*rows, value(function, count | count << 32, 700), leave(function, end, 700)]


def test_chosen_packets_are_in_the_batch_that_they_name() -> None:
    columns, counts = run(
        [
            *receiver(1000, 4),
            *receiver(2000, 4, DRAWN | LATE),
            *hand_on(2100, 2200, 6, [(1, (1000, 1)), (5, (2000, 1))]),
            *hand_on(2300, 2400, 2, [(0, (2000, 3))], DR),
        ]
    )
    packets, batches = columns.packets, columns.batches
    assert batches["flags"].tolist() == [BatchFlag.CHOSEN, BatchFlag.CHOSEN | BatchFlag.DRAWN]
    assert batches["start_ticks"][packets["batch"]].tolist() == [1000, 2000, 2000]
    assert packets["index"].tolist() == [1, 1, 3]
    assert packets["done_ticks"].tolist() == [2200, 2200, 2400]
    assert packets["receive_ticks"].tolist() == [1010, 2010, 2010]
    assert packets["disposition"].tolist() == [TRANSMITTED, TRANSMITTED, DROPPED]
    assert packets["digest"].tolist() == packets["done_digest"].tolist() == [303, 315, 300]
    assert (counts.identified, counts.unplaced) == (3, 0)
    assert (counts.received, counts.transmitted, counts.dropped) == (8, 6, 2)
    assert (counts.unknown, counts.pending, counts.invalid) == (0, 0, 0)


def test_a_packet_of_no_known_batch_is_only_counted() -> None:
    columns, counts = run(
        [*receiver(1000, 4), *hand_on(1100, 1200, 4, [(0, UNPLACED), (1, (999, 1)), (2, (1000, 4)), (3, (1000, 3))])],
    )
    assert columns.packets["index"].tolist() == [3]  # the others name no batch, another one, and a place behind its end
    assert (counts.identified, counts.unplaced) == (4, 3)
    assert (counts.received, counts.transmitted, counts.unknown) == (4, 4, 0)


def placed_from(*parts: list[Row]) -> list[tuple[int, int]]:
    """Of each packet the receive call and its place there, in a session whose rounds ended between the parts."""
    found: list[tuple[int, int]] = []
    with Pipeline(ROLES) as pipeline:
        for number, rows in enumerate(parts):
            pipeline.feed(0, records(rows))
            if number == len(parts) - 1:
                pipeline.finish()
            columns = pipeline.take()
            starts = columns.batches["start_ticks"][columns.packets["batch"]].tolist()
            found += zip(starts, columns.packets["index"].tolist(), strict=True)
        assert pipeline.counts().unplaced == 0
    return sorted(found)


def test_packets_of_a_turn_leave_in_any_order() -> None:
    """Two queues are polled, and what came with the second call leaves first; however long the NF rests in between."""
    turn = [*receiver(1000, 2), *receiver(2000, 4)]
    first = hand_on(2100, 2200, 4, [(position, (2000, position)) for position in range(4)])
    last = hand_on(2300, 2400, 2, [(position, (1000, position)) for position in range(2)])
    packets = [(1000, 0), (1000, 1), *((2000, position) for position in range(4))]
    assert placed_from(turn + first, last) == packets
    assert placed_from(turn, first, [], [], [], last) == packets


def test_a_turn_of_full_frames_is_not_cut_by_the_end_of_a_round() -> None:
    """As VPP's with several interfaces: far more packets are received behind a batch before the first of it leaves."""
    turn = [row for start in range(1000, 9000, 1000) for row in receiver(start, 256)]
    others = hand_on(9000, 9100, 7 * 256, [])
    last = hand_on(9200, 9300, 256, [(position, (1000, position)) for position in range(256)])
    assert placed_from(turn + others, last) == [(1000, position) for position in range(256)]
    assert placed_from(turn, others, last) == [(1000, position) for position in range(256)]


def test_a_packet_that_is_kept_back_while_a_later_turn_passes() -> None:
    """It is in the buffer of a port of its own: its batch waits one round more."""
    early = [*receiver(1000, 2), *hand_on(1100, 1200, 1, [(0, (1000, 0))])]
    later = [*receiver(2000, 1), *hand_on(2100, 2200, 1, [(0, (2000, 0))])]
    last = hand_on(2300, 2400, 1, [(0, (1000, 1))])
    packets = [(1000, 0), (1000, 1), (2000, 0)]
    assert placed_from(early + later, last) == packets
    assert placed_from(early, later, last) == packets


def test_packets_that_were_not_accepted_are_not_done() -> None:
    rows = [*receiver(1000, 4), entry(TX, 1100, 700), *chosen(TX, 5, 3, (1000, 3))]
    columns, counts = run([*rows, value(TX, 2 | 4 << 32, 700), leave(TX, 1200, 700)])
    assert len(columns.packets) == 0
    assert (counts.transmitted, counts.unknown) == (2, 2)


def test_a_note_without_a_batch_is_invalid() -> None:
    columns, counts = run([record(NOTE, RX, 0, LATE), *receiver(1000, 1, 0)])
    assert counts.invalid == 1
    assert columns.batches["flags"][0] & BatchFlag.CHOSEN


def test_latency_of_all_packets_of_chosen_batches() -> None:
    """It is that of the calls that handed them on; identified ones do not count twice, nor calls inside calls."""
    inner = [entry(TX, 1510, 600), value(TX, 3 | 3 << 32, 600), leave(TX, 1590, 600)]
    outer = [entry(TX, 1500, 700), *chosen(TX, 7, 0, (1000, 1)), *inner]
    outer += [value(TX, 3 | 3 << 32, 700), leave(TX, 1600, 700)]
    columns, _ = run([*receiver(1000, 8), *outer, *hand_on(1700, 2000, 5, [])])
    statistics = Statistics()
    statistics.add(columns)
    summary = statistics.summary(Distribution.PACKET_TICKS)
    assert (summary["count"], summary["min"], summary["max"]) == (8, 600, 1000)
    assert summary["total"] == 3 * 600 + 5 * 1000


def columns_of(latencies: list[int], sizes: list[int]) -> Columns:
    rows: list[Row] = []
    for number, (latency, size) in enumerate(zip(latencies, sizes, strict=True)):
        start = 1000 * (number + 1)
        rows += [*receiver(start, size), *hand_on(start + 20, start + latency, size, [(0, (start, 0))])]
    return run(rows)[0]


def test_population_and_selection() -> None:
    columns = columns_of([100, 200, 900], [500, 499, 1])
    population = find_population(columns)
    assert population is not None
    assert population.latency_ticks.tolist() == [100, 200, 900]
    assert population.weights.tolist() == [500, 499, 1]
    sampler = Sampler(0.5, None, 0.001)
    columns.batches["flags"][0] |= BatchFlag.DRAWN
    population = find_population(columns)
    latency = np.array([100, 200, 900], np.int64)
    randomness = np.array([0, 2**56 - 1, 2**56 - 1], np.uint64)
    selected, reasons = sampler.select(latency, randomness, population)
    assert selected.tolist() == [0, 2]  # drawn by its batch, and the slowest of a thousand
    assert reasons.tolist() == [REASON_SAMPLE, REASON_SLOWEST]


def test_what_is_usual_is_so_of_all_packets() -> None:
    """Though only the slowest ones are identified."""
    columns = columns_of([100] * 90 + [900] * 10, [4] * 100)
    columns.packets = columns.packets[columns.packets["batch"] >= 90]
    assert len(columns.packets) == 10
    sample = BatchSample()
    sample.add(columns)
    assert (sample.baseline().latency_ticks, sample.baseline().own_ticks) == (100, 100)


def test_a_target_that_says_that_it_has_handed_on_billions_of_packets() -> None:
    columns, sample = columns_of([100, 200, 900] * 20, [4] * 60), BatchSample()
    columns.calls["value"] = np.where(columns.calls["value"] != 0, 0xFFFFFFFF, 0)
    sample.add(columns)
    assert sample.baseline().latency_ticks == 200


def test_calls_outside_of_batches_are_no_population() -> None:
    columns = columns_of([100], [4])
    calls = np.zeros(1, CALL)
    calls["flags"], calls["batch"] = CallFlag.TRANSMIT | CallFlag.VALUE, 0xFFFFFFFF
    columns.calls = np.concatenate((columns.calls, calls))
    population = find_population(columns)
    assert population is not None
    assert len(population.weights) == 1


class Words:
    """What a session's threads would read."""

    def __init__(self) -> None:
        self.of: dict[int | None, tuple[int, int]] = {}

    def choose_packets(self, late_ticks: int, sample: int, index: int | None = None) -> None:
        self.of[index] = late_ticks, sample


def capture(policy: CapturePolicy) -> tuple[LateCapture, Words]:
    words = Words()
    clock = types.SimpleNamespace(find_ticks=lambda ns: round(ns * 2))
    return LateCapture(cast(Session, words), policy, cast(Clock, clock)), words


def test_the_words_that_a_wish_begins_with() -> None:
    words: Any
    for policy, late_ticks, sample in (
        (CapturePolicy(None, 0.001, 0.001), LATE_NEVER, round(SAMPLE_ALL / 1000)),
        (CapturePolicy(50_000, None, 0.0), 100_000, 0),
        (CapturePolicy(0, None, 1.0), 0, SAMPLE_ALL),
        (CapturePolicy.choose(None, None, None), LATE_NEVER, round(SAMPLE_ALL / 1000)),
        (CapturePolicy.choose(1000, None, None), 2000, 0),
    ):
        _, words = capture(policy)
        assert words.of == {None: (late_ticks, sample)}


def test_the_threshold_follows_the_slowest() -> None:
    late, words = capture(CapturePolicy(None, 0.01, 0.0))
    late.add(columns_of([100, 200, 800], [950, 30, 20]))
    late_ticks, _ = words.of[0]
    assert 200 < late_ticks <= 800  # twice the wanted share: nothing that will be wanted is missed
    late, words = capture(CapturePolicy(50, 0.01, 0.0))
    late.add(columns_of([100, 200, 800], [950, 30, 20]))
    assert words.of[0][0] == 100  # whatever is asked for, by the lower one
    late, words = capture(CapturePolicy(None, None, 0.5))
    late.add(columns_of([100], [4]))
    assert list(words.of) == [None]


class Threads:
    """A session whose threads have counted packets: received, transmitted and dropped by each."""

    pid = 7

    def __init__(self, *counts: tuple[int, int, int]) -> None:
        counted = np.array(counts, np.int64)
        balance = counted[:, 0], counted[:, 1:].sum(axis=1)
        self.threads = types.SimpleNamespace(packet_balance=lambda: balance)

    def choose_packets(self, *_: int) -> None:
        pass


def sentences_of(*counts: tuple[int, int, int]) -> list[str]:
    clock = types.SimpleNamespace(find_ticks=lambda ns: ns)
    late = LateCapture(cast(Session, Threads(*counts)), CapturePolicy(), cast(Clock, clock))
    return [*late.find_handed_over(), *late.find_handed_over()]


def test_what_is_seen_to_be_handed_over_is_no_surplus() -> None:
    rows = np.zeros(2, THREAD)
    rows["received_packets"], rows["transmitted_packets"] = (100, 0), (40, 60)
    rows["taken_over_packets"] = 0, 60
    received, handed_on = ThreadTable(rows, ThreadIds(7), types.SimpleNamespace(threads=2)).packet_balance()
    assert (received.tolist(), handed_on.tolist()) == ([100, 0], [40, 60])
    rows["handed_over_packets"] = 60, 0
    received, handed_on = ThreadTable(rows, ThreadIds(7), types.SimpleNamespace(threads=2)).packet_balance()
    assert received.tolist() == handed_on.tolist() == [100, 60]


def test_handing_from_thread_to_thread_is_told_once() -> None:
    (sentence,) = sentences_of((10_000, 8_000, 0), (0, 1_500, 400))
    assert sentence.startswith("1900 of 10000 packets were received by one thread and transmitted or dropped")
    assert sentence.endswith("nfprobe attach 7 --packets all")
    assert sentences_of((10_000, 9_500, 400), (10_000, 9_999, 0)) == []  # what is in flight
    assert sentences_of((10_000, 9_000, 0), (0, 900, 0)) == []  # too few to be worth a sentence
    assert sentences_of((100_000, 98_000, 0), (0, 2_000, 0)) == []  # too small a share
    assert sentences_of((10_000, 10_000, 0), (0, 50_000, 0)) == []  # packets of its own
    assert sentences_of((50_000, 0, 0)) == []  # it keeps what it receives


def test_what_threads_copy_is_told_again_when_it_is_more_and_not_for_ever() -> None:
    """A target that writes any numbers there is told no more than a header's bytes allow."""
    rows = np.zeros(2, THREAD)
    rows["tid"] = 0, 7
    clock = types.SimpleNamespace(find_ticks=lambda ns: ns)
    table = ThreadTable(rows, ThreadIds(7), types.SimpleNamespace(threads=2))
    session = types.SimpleNamespace(threads=table, choose_packets=lambda *_: None)
    late = LateCapture(cast(Session, session), CapturePolicy(), cast(Clock, clock))
    assert list(late.find_copying()) == []
    rows["copying"] = 0, 16
    (sentence,) = late.find_copying()
    assert "the first 16 bytes of each are copied" in sentence
    assert list(late.find_copying()) == []
    rows["copying"] = 0, 128
    (sentence,) = late.find_copying()
    assert "the first 128 bytes" in sentence
    for number in range(1000):
        rows["copying"] = 0, 2**63 + number
        assert sum(1 for _ in late.find_copying()) == (number == 0)
