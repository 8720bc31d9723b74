# SPDX-License-Identifier: Apache-2.0
"""Counts and extremes are exact, quantiles to 1/64, merging equals adding."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.columns import BATCH, CALL, PACKET, Columns
from otel_nfprobe.statistics import Distribution, Statistics


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
    medians = statistics.self_medians()
    assert medians.tolist()[:2] == [0, 0]
    assert medians[5] == pytest.approx(np.quantile(ticks[:7] // 2, 0.5, method="inverted_cdf"), rel=1 / 64)


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


def test_empty() -> None:
    statistics = Statistics()
    statistics.add(Columns())
    assert len(statistics.functions()) == 0
    assert statistics.quantile(Distribution.PACKET_TICKS, 0.5) == 0
    assert statistics.summary(Distribution.CALL_TICKS, 9)["count"] == 0
