# SPDX-License-Identifier: Apache-2.0
"""Counts and extremes are exact, quantiles to 1/64, merging equals adding."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.base.columns import BATCH, CALL, NONE, PACKET, BatchFlag, CallFlag, Columns, PacketFlag
from otel_nfprobe.pipeline.sampling import find_population
from otel_nfprobe.pipeline.statistics import SIZES_EXACT, Distribution, Statistics
from otel_nfprobe.report.views.numbers import format_size


def calls(function: int, ticks: np.ndarray, flags: int = 0) -> Columns:
    rows = np.zeros(len(ticks), CALL)
    rows["function"], rows["flags"] = function, flags
    rows["start_ticks"], rows["end_ticks"] = 1000, 1000 + ticks
    rows["self_ticks"] = ticks // 2
    return Columns(calls=rows)


def durations(seed: int, count: int = 20000) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(7, 2, count).astype(np.uint64)


@pytest.mark.parametrize("quantile", [0.0, 0.001, 0.5, 0.9, 0.99, 0.999, 1.0])
def test_quantiles(quantile: float) -> None:
    ticks = durations(1)
    statistics = Statistics()
    statistics.add(calls(3, ticks))
    exact = int(np.quantile(ticks, quantile, method="inverted_cdf"))
    got = statistics.quantile(Distribution.CALL_TICKS, quantile, 3)
    assert abs(got - exact) <= exact / 64


def test_small_and_huge_values_are_exact() -> None:
    for tick in (0, 1, 31, 32, 33, 63, 2**63 + 1, 2**64 - 1001):
        statistics = Statistics()
        statistics.add(calls(0, np.array([tick], np.uint64)))
        assert statistics.quantile(Distribution.CALL_TICKS, 0.5) == tick
        upper, count = statistics.histogram(Distribution.CALL_TICKS)[0].tolist()
        assert count == 1
        assert tick <= upper <= tick + tick / 32


def test_functions() -> None:
    ticks = durations(2)
    statistics = Statistics()
    statistics.add(calls(2, ticks))
    statistics.add(calls(5, ticks[:7], flags=1))
    rows = statistics.functions()
    assert rows["function"].tolist() == [2, 5]
    assert rows["count"].tolist() == [len(ticks), 7]
    assert statistics.call_counts().tolist() == [0, 0, len(ticks), 0, 0, 7]
    assert rows["clipped"].tolist() == [0, 7]
    assert rows["total_ticks"][0] == ticks.sum()
    assert rows["self_ticks"][0] == (ticks // 2).sum()
    assert rows["min_ticks"][0] == ticks.min()
    assert rows["max_ticks"][0] == ticks.max()
    assert rows["p50_ticks"][0] <= rows["p90_ticks"][0] <= rows["p99_ticks"][0]
    median = statistics.quantile(Distribution.SELF_TICKS, 0.5, 5)
    assert median == pytest.approx(np.quantile(ticks[:7] // 2, 0.5, method="inverted_cdf"), rel=1 / 64)


def test_histogram_holds_every_value_once() -> None:
    ticks = durations(3)
    statistics = Statistics()
    statistics.add(calls(0, ticks))
    buckets = statistics.histogram(Distribution.CALL_TICKS)
    assert buckets[:, 1].sum() == len(ticks)
    below = np.searchsorted(np.sort(ticks), buckets[:, 0], side="right")
    assert below.tolist() == np.cumsum(buckets[:, 1]).tolist()


def test_merge_equals_add() -> None:
    parts = [calls(seed % 3, durations(seed, 500)) for seed in range(6)]
    whole, merged = Statistics(), Statistics()
    for part in parts:
        whole.add(part)
        single = Statistics()
        single.add(part)
        merged.merge(single)
    assert merged.functions().tolist() == whole.functions().tolist()


def test_batches_and_packets() -> None:
    batches, packets = np.zeros(2, BATCH), np.zeros(3, PACKET)
    batches["size"], batches["start_ticks"], batches["end_ticks"] = [4, 32], [1000, 2000], [1500, 2100]
    packets["batch"], packets["disposition"] = [0, 1, 1], [1, 2, 0]
    packets["done_ticks"], packets["arrival_ticks"], packets["flags"] = (
        [1100, 2500, 0],
        [900, 0, 0],
        [1, 0, 0],
    )
    statistics = Statistics()
    statistics.add(Columns(batches=batches, packets=packets))
    assert statistics.histogram(Distribution.BATCH_SIZE).tolist() == [[4, 1], [32, 1]]
    assert statistics.summary(Distribution.BATCH_TICKS)["total"] == 600
    assert statistics.summary(Distribution.PACKET_TICKS) == {
        "count": 2,
        "clipped": 0,
        "total": 700,
        "min": 200,
        "max": 500,
    }
    assert statistics.summary(Distribution.PACKET_OWN_TICKS)["total"] == 600


def test_what_latencies_count_from() -> None:
    batches, packets = np.zeros(4, BATCH), np.zeros(5, PACKET)
    batches["start_ticks"], batches["earliest_ticks"] = 1000, [900, 1000, 0, 800]
    batches["flags"] = [0, BatchFlag.SATURATED, 0, BatchFlag.CHOSEN]
    packets["batch"], packets["disposition"], packets["done_ticks"] = [0, 1, 2, 0, 0], 1, 1500
    packets["arrival_ticks"] = [0, 0, 0, 700, 700]
    packets["flags"] = [0, 0, 0, PacketFlag.ARRIVAL_KNOWN, PacketFlag.ARRIVAL_KNOWN | PacketFlag.ARRIVAL_UNIX_NS]
    calls = np.zeros(1, CALL)
    calls["parent"], calls["flags"], calls["value"] = NONE, CallFlag.TRANSMIT | CallFlag.VALUE, 32
    calls["start_ticks"], calls["end_ticks"], calls["batch"] = 1100, 1200, 3
    batches["calls"][3] = 1
    statistics, whole = Statistics(), Statistics()
    statistics.add(Columns(calls=calls, batches=batches, packets=packets))
    assert statistics.origins() == {"stamp": 1, "capture": 1, "poll": 1 + 32, "receive": 2}
    assert statistics.summary(Distribution.PACKET_TICKS)["count"] == sum(statistics.origins().values())
    batches["flags"][3] |= BatchFlag.SATURATED
    whole.add(Columns(calls=calls, batches=batches, packets=packets))
    whole.merge(statistics)
    assert whole.origins() == {"stamp": 2, "capture": 2, "poll": 2 + 32, "receive": 4 + 32}


def test_packets_that_are_not_described_are_as_old_as_the_first_one_of_their_batch() -> None:
    batches, calls = np.zeros(2, BATCH), np.zeros(2, CALL)
    batches["start_ticks"], batches["earliest_ticks"], batches["arrival_ticks"] = 1000, 200, [950, 0]
    batches["flags"], batches["calls"], batches["first_call"] = BatchFlag.CHOSEN, 1, [0, 1]
    calls["parent"], calls["flags"], calls["value"] = NONE, CallFlag.TRANSMIT | CallFlag.VALUE, [32, 3]
    calls["start_ticks"], calls["end_ticks"], calls["batch"] = 1100, 1200, [0, 1]
    statistics = Statistics()
    statistics.add(Columns(calls=calls, batches=batches))
    assert statistics.origins() == {"stamp": 32, "capture": 0, "poll": 3, "receive": 0}
    assert statistics.summary(Distribution.PACKET_TICKS)["total"] == 32 * 250 + 3 * 1000
    assert statistics.summary(Distribution.PACKET_OWN_TICKS)["total"] == 35 * 200
    population = find_population(Columns(calls=calls, batches=batches, packets=np.zeros(0, PACKET)))
    assert population is not None
    assert population.latency_ticks.tolist() == [250, 1000]


def test_batch_sizes_are_counted_one_by_one() -> None:
    sizes = np.concatenate((np.arange(1, 1200), [256] * 5, [SIZES_EXACT - 1, SIZES_EXACT, 9999]))
    batches = np.zeros(len(sizes), BATCH)
    batches["size"] = sizes
    statistics, merged = Statistics(), Statistics()
    statistics.add(Columns(batches=batches))
    merged.merge(statistics)
    expected = [[size, 6 if size == 256 else 1] for size in range(1, 1200)]
    expected += [[SIZES_EXACT - 1, 1], [SIZES_EXACT + 255, 1], [9999 | 255, 1]]
    assert statistics.histogram(Distribution.BATCH_SIZE).tolist() == expected
    assert merged.histogram(Distribution.BATCH_SIZE).tolist() == expected
    assert [format_size(size) for size, _ in expected[-3:]] == ["8191", "8192..8447", "9984..10239"]


def test_empty() -> None:
    statistics = Statistics()
    statistics.add(Columns())
    assert len(statistics.functions()) == 0
    assert statistics.quantile(Distribution.PACKET_TICKS, 0.5) == 0
    assert statistics.summary(Distribution.CALL_TICKS, 9)["count"] == 0
