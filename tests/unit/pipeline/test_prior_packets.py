# SPDX-License-Identifier: Apache-2.0
"""Packets that can have waited since before the records began: no latency counts them."""

from __future__ import annotations

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import BatchFlag, Columns, counted_latency_ticks, latency_ticks
from otel_nfprobe.pipeline.sampling import Sampler, find_latency_ticks, find_population
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from tests.support.synthetic_records import RX, TX, Row, burst, hand_on, poll, record, run
from tests.unit.monitor.test_latecapture import hand_on as hand_on_chosen

FULL, SOME = 4, 3
QUEUE, ARRIVAL, NOTE, LATE = 16, 18, 31, 1


def receive(start: int, count: int, earliest: int, queue: int = 0, note: bool = False) -> list[Row]:
    """A receive call of at most FULL packets from a queue that was seen empty at `earliest`."""
    entry, leave = poll(RX, start, start + 10, 800, count, FULL)
    rows = [entry, record(QUEUE, RX, earliest, queue), leave]
    return [*rows, record(NOTE, RX, 0, LATE)] if note else [*rows, *burst(RX, buffers(start, count))]


def buffers(start: int, count: int) -> list[int]:
    return [start * 16 + index for index in range(count)]


def batch(start: int, count: int, earliest: int, queue: int = 0) -> list[Row]:
    rows = receive(start, count, earliest, queue)
    return [*rows, *hand_on(TX, start + 20, start + 30, 700, buffers(start, count))]


def are_prior(columns: Columns) -> list[bool]:
    order = np.argsort(columns.batches["start_ticks"])
    return ((columns.batches["flags"][order] & BatchFlag.PRIOR) != 0).tolist()


def statistics_of(columns: Columns) -> Statistics:
    statistics = Statistics()
    statistics.add(columns)
    return statistics


def test_until_the_queue_is_seen_empty() -> None:
    columns, _ = run([*batch(1000, FULL, 500), *batch(1100, FULL, 500), *batch(1200, SOME, 500), *batch(1300, 1, 1200)])
    assert are_prior(columns) == [True, True, True, False]
    assert sorted(latency_ticks(columns).tolist()) == [130] + FULL * [530] + FULL * [630] + SOME * [730]
    assert counted_latency_ticks(columns)[columns.packets["done_ticks"] == 1330].tolist() == [130]
    assert np.count_nonzero(counted_latency_ticks(columns)) == 1
    statistics = statistics_of(columns)
    assert statistics.summary(Distribution.PACKET_TICKS)["count"] == 1
    assert statistics.summary(Distribution.BATCH_TICKS)["count"] == 4
    assert statistics.describe_prior(2.0) == {"packets": 2 * FULL + SOME, "longest_ns": 1460}


def test_a_poll_in_between_that_found_nothing() -> None:
    columns, _ = run([*batch(1000, FULL, 500), *batch(1100, FULL, 1050)])
    assert are_prior(columns) == [True, False]


def test_each_queue_for_itself() -> None:
    columns, _ = run([*batch(1000, 1, 500, 1), *batch(1100, FULL, 500, 2), *batch(1200, FULL, 1000, 1)])
    assert are_prior(columns) == [True, True, False]


def test_a_queue_that_is_never_empty_is_given_up() -> None:
    saturated = lib.NFP_QUEUE_SATURATED
    later = 1000 + (1 << 32)
    columns, _ = run([*batch(1000, FULL, 500, saturated), *batch(later, FULL, 500), *batch(later + 100, FULL, 500)])
    assert are_prior(columns) == [True, True, False]


def test_what_waited_only_since_its_receive_call_counts() -> None:
    columns, _ = run(batch(1000, FULL, 500, lib.NFP_QUEUE_SATURATED))
    assert are_prior(columns) == [True]
    statistics = statistics_of(columns)
    counted = statistics.summary(Distribution.PACKET_TICKS)
    assert (counted["count"], counted["min"], counted["max"]) == (FULL, 30, 30)
    assert statistics.describe_prior(1.0) == {"packets": 0, "longest_ns": 0}


def test_late_capture_counts_the_packets_of_its_calls() -> None:
    rows = [*receive(1000, FULL, 500, note=True), *hand_on_chosen(1020, 1030, FULL, [])]
    columns, _ = run([*rows, *receive(1100, 2, 1050, note=True), *hand_on_chosen(1120, 1130, 2, [])])
    statistics = statistics_of(columns)
    assert statistics.describe_prior(1.0) == {"packets": FULL, "longest_ns": 530}
    assert statistics.summary(Distribution.PACKET_TICKS)["max"] == 80
    population = find_population(columns)
    assert population is not None
    assert population.latency_ticks.tolist() == [80]


def test_they_are_not_the_slowest_and_join_with_others() -> None:
    columns, _ = run([*batch(1000, SOME, 500), *batch(1100, 1, 1050)])
    selected, _ = Sampler(slowest_share=0.1).select(find_latency_ticks(columns.packets, columns.batches))
    assert columns.packets["done_ticks"][selected].tolist() == [1130]
    both = statistics_of(columns)
    both.merge(statistics_of(columns))
    assert both.describe_prior(1.0) == {"packets": 2 * SOME, "longest_ns": 530}


def test_another_thread_begins_for_itself() -> None:
    columns, _ = run([*batch(1000, FULL, 500), *batch(1100, FULL, 1050)], batch(1200, FULL, 1000))
    assert are_prior(columns) == [True, False, True]
