# SPDX-License-Identifier: Apache-2.0
"""Sampling: the shares are right, the trace state says what was done, thresholds are exact at their edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_nfprobe.base.columns import BATCH, PACKET
from otel_nfprobe.pipeline.sampling import (
    REASON_SAMPLE,
    REASON_SLOW,
    REASON_SLOWEST,
    QuantileTracker,
    Sampler,
    find_latency_ticks,
    find_threshold,
    format_trace_state,
)
from tests.support.synthetic_columns import START_TICKS

RANDOMNESS_END = 1 << 56


def draw_randomness(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, RANDOMNESS_END, count, dtype=np.uint64)


@pytest.mark.parametrize(
    ("probability", "state"),
    [(0.01, "ot=th:fd70a4"), (0.5, "ot=th:8"), (0.25, "ot=th:c"), (1.0, ""), (0.0, ""), (1 / 16, "ot=th:f")],
)
def test_trace_state(probability: float, state: str) -> None:
    assert format_trace_state(probability) == state


@given(st.floats(1e-12, 1 - 1e-6))
def test_threshold_is_what_the_trace_state_says(probability: float) -> None:
    threshold = find_threshold(probability)
    digits = format_trace_state(probability).removeprefix("ot=th:")
    assert int(digits.ljust(14, "0"), 16) == threshold
    assert (RANDOMNESS_END - threshold) / RANDOMNESS_END == pytest.approx(probability, rel=5e-4)


def test_sample_draws_its_share_and_is_consistent() -> None:
    randomness = draw_randomness(1_000_000)
    latency = np.ones(len(randomness), dtype=np.int64)
    selected, reasons = Sampler(0.01).select(latency, randomness)
    # Six standard deviations.
    assert abs(len(selected) - 10_000) < 600
    assert np.all(reasons == REASON_SAMPLE)
    more, _ = Sampler(0.02).select(latency, randomness)
    assert set(selected) < set(more)


def test_sample_of_all_and_of_none() -> None:
    latency = np.array([1, 0, 3], dtype=np.int64)
    selected, reasons = Sampler(1.0).select(latency)
    assert selected.tolist() == [0, 1, 2]
    assert selected.dtype == np.uint32
    assert reasons.tolist() == [REASON_SAMPLE] * 3
    assert len(Sampler(0.0).select(latency)[0]) == 0


def test_sample_edge_is_exact() -> None:
    threshold = find_threshold(0.01)
    randomness = np.array([threshold - 1, threshold, RANDOMNESS_END - 1, 0], dtype=np.uint64)
    assert Sampler(0.01).select(np.ones(4, dtype=np.int64), randomness)[0].tolist() == [1, 2]


def test_slower_than_is_exact_and_skips_unknown_latencies() -> None:
    latency = np.array([100, 101, 102, 0], dtype=np.int64)
    selected, reasons = Sampler(slower_than_ticks=101).select(latency)
    assert selected.tolist() == [2]
    assert reasons.tolist() == [REASON_SLOW]


def test_reasons_add_up() -> None:
    latency = np.array([5, 10, 1000], dtype=np.int64)
    selected, reasons = Sampler(1.0, slower_than_ticks=6, slowest_share=0.4).select(latency)
    assert selected.tolist() == [0, 1, 2]
    assert reasons.tolist() == [
        REASON_SAMPLE,
        REASON_SAMPLE | REASON_SLOW,
        REASON_SAMPLE | REASON_SLOW | REASON_SLOWEST,
    ]


def test_slowest_selects_about_its_share_of_a_stream() -> None:
    random = np.random.default_rng(2)
    sampler = Sampler(slowest_share=0.01)
    selected_count, slowest, fastest_selected = 0, 0, 2**62
    for _ in range(50):
        latency = random.lognormal(8, 1, 20_000).astype(np.int64)
        selected, reasons = sampler.select(latency)
        assert np.all(reasons == REASON_SLOWEST)
        selected_count += len(selected)
        fastest_selected = min(fastest_selected, int(latency[selected].min()))
        slowest = max(slowest, int(latency.max()))
    assert 0.8 * 10_000 < selected_count < 1.1 * 10_000
    assert fastest_selected > np.exp(8 + 2)


def test_slowest_of_a_short_recording() -> None:
    latency = np.arange(1, 201, dtype=np.int64) * 1000
    selected, _ = Sampler(slowest_share=0.001).select(latency)
    assert 199 in selected.tolist()
    assert len(selected) <= 1


def test_slowest_does_not_select_when_all_are_equal() -> None:
    assert len(Sampler(slowest_share=0.01).select(np.full(10_000, 500, dtype=np.int64))[0]) == 0


def test_slowest_follows_a_change() -> None:
    random = np.random.default_rng(4)
    tracker = QuantileTracker(0.01, window=100_000)
    for _ in range(10):
        tracker.add(random.integers(1000, 2000, 50_000))
    before = tracker.find_threshold()
    for _ in range(40):
        tracker.add(random.integers(100, 200, 50_000))
    after = tracker.find_threshold()
    assert before is not None
    assert after is not None
    assert 1900 <= before < 2050
    assert 190 <= after < 205


def test_what_was_seen_long_ago_fades() -> None:
    random = np.random.default_rng(5)
    tracker = QuantileTracker(0.01)
    tracker.add(random.integers(10_000, 20_000, 2_000))  # as in the second in which nfprobe attached
    edges = []
    for _ in range(12):
        tracker.add(random.integers(100, 200, 10_000))
        tracker.fade()
        edges.append(tracker.find_threshold())
    assert edges[0] is not None
    assert edges[0] > 10_000
    assert edges[-1] is not None
    assert edges[-1] < 205


def test_what_is_needed_to_find_the_share_does_not_fade() -> None:
    tracker = QuantileTracker(0.01)
    tracker.add(np.arange(1000, 10_000))
    before = tracker.find_threshold()
    for _ in range(100):
        tracker.fade()
    assert tracker.find_threshold() == before


@given(values=st.lists(st.integers(0, 2**62), min_size=1, max_size=300), share=st.floats(0.001, 0.5))
def test_threshold_never_lets_more_than_the_share_pass(values: list[int], share: float) -> None:
    tracker = QuantileTracker(share)
    tracker.add(np.array(values, dtype=np.int64))
    edge = tracker.find_threshold()
    assert edge is not None
    assert sum(value >= edge for value in values) <= max(1, share * len(values))
    assert edge <= max(values) * (1 + 1 / 64) + 1


def test_latency_starts_at_the_arrival_or_the_batch() -> None:
    batches, packets = np.zeros(2, dtype=BATCH), np.zeros(6, dtype=PACKET)
    batches["start_ticks"] = START_TICKS + np.array([0, 1000])
    packets["batch"] = [0, 1, 1, 1, 0, 0]
    packets["done_ticks"] = START_TICKS + np.array([10, 1500, 1500, 0, 50, 20])
    packets["arrival_ticks"] = START_TICKS + np.array([0, 0, 700, 700, 0, 400])
    packets["disposition"] = [1, 2, 1, 0, 1, 1]
    packets["flags"] = [0, 0, 1, 1, 0, 1]
    # From the batch; again; from the arrival; not done; from the batch; an arrival after the batch began.
    assert find_latency_ticks(packets, batches).tolist() == [10, 500, 800, 0, 50, 20]
    assert find_latency_ticks(packets[:0], batches).shape == (0,)
