# SPDX-License-Identifier: Apache-2.0
"""Exact statistics of one function's calls, against NumPy on all of them."""

import numpy as np
import pytest

from otel_nfprobe.pipeline.durations import DISTINCT_MAX, WARM_UP_CALLS, Durations
from otel_nfprobe.report.views.distribution import render_distribution

NOTHING = np.zeros(1, np.int64)


def nearest_rank(values: np.ndarray, share: float) -> int:
    return int(np.sort(values)[max(1, int(np.ceil(share * len(values)))) - 1])


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_against_numpy(pieces: int) -> None:
    random = np.random.default_rng(pieces)
    ticks = (random.lognormal(7, 1.5, 20_000).astype(np.int64) + 1) * 26
    cost = random.integers(0, 40, len(ticks))
    durations = Durations()
    for part in np.array_split(np.arange(len(ticks)), pieces):
        durations.add(0, ticks[part], cost[part])
    assert durations.finish() == WARM_UP_CALLS
    kept = np.maximum(ticks - cost, 0)[WARM_UP_CALLS:]
    assert (durations.count, durations.min_ticks, durations.max_ticks) == (len(kept), kept.min(), kept.max())
    assert durations.mean_ticks == pytest.approx(kept.mean())
    for share in (0.5, 0.9, 0.95, 0.99, 1.0):
        assert durations.quantile(share) == nearest_rank(kept, share)
    assert durations.median_deviation() == nearest_rank(np.abs(kept - nearest_rank(kept, 0.5)), 0.5)
    assert durations.resolution_ticks == 26
    assert durations.step_ticks == 1
    uppers = [upper for upper, _ in durations.histogram()]
    assert uppers == sorted(set(uppers))
    before = -1
    for upper, count in durations.histogram():
        assert count == ((kept > before) & (kept <= upper)).sum()
        before = upper
    assert sum(count for _, count in durations.bins(24)) == len(kept)
    assert len(durations.bins(24)) <= 25


def test_few_calls_keep_nine_tenths() -> None:
    durations = Durations()
    durations.add(1, np.arange(100, 150), np.zeros(50, np.int64))
    durations.add(2, np.arange(7, 10), np.zeros(3, np.int64))
    assert durations.finish() == 5
    assert (durations.count, durations.min_ticks, durations.quantile(0.5)) == (48, 7, 125)


def test_without_calls() -> None:
    durations = Durations()
    durations.add(0, NOTHING[:0], NOTHING[:0])
    assert durations.finish() == 0
    assert (durations.count, durations.mean_ticks, durations.quantile(0.9), durations.median_deviation()) == (
        0,
        0,
        0,
        0,
    )
    assert durations.histogram() == durations.bins(10) == []


def test_memory_is_bounded_at_the_price_of_precision() -> None:
    durations = Durations()
    ticks = np.arange(1, 3 * DISTINCT_MAX, dtype=np.int64)
    durations.add(0, ticks, np.zeros(len(ticks), np.int64))
    durations.finish()
    assert durations.step_ticks == 4
    assert abs(durations.quantile(0.5) - nearest_rank(ticks[WARM_UP_CALLS:], 0.5)) <= 4
    assert durations.count == len(ticks) - WARM_UP_CALLS


def test_text_says_what_was_left_out() -> None:
    found = {f"{name}_ns": 50.0 for name in ("min", "mean", "p50", "p90", "p95", "p99", "max", "mad")} | {
        "function": "libz.so:crc32",
        "count": 30,
        "seconds": 2.0,
        "counters": {"cycles": {"mean": 1234.5, "invalid": 2}, "ipc": 1.5},
        "warm_up": 3,
        "resolution_ns": 10.0,
        "probe_ns": {"inside": 10.0, "whole": 19.0},
        "below_resolution": True,
        "lost": {"call": 4},
    }
    text = render_distribution(found, [(40.0, 20), (60.0, 10)])
    assert "40.0 ns            20  ################################   66.7%" in text
    assert "100.0%" in text
    for words in ("30 calls in 2.0 s", "warm-up: 3 calls", "resolution of the clock: 10.00 ns", "below resolution"):
        assert words in text
    for words in ("cycles: 1,234.5 a call, 2 calls not counted", "ipc: 1.500", "4 records were lost"):
        assert words in text
