# SPDX-License-Identifier: Apache-2.0
"""The clock: conversion is exact, never runs backwards, survives steps of CLOCK_REALTIME."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_nfprobe._core import ffi
from otel_nfprobe.base.clock import ANCHOR, Clock, ClockPair, sample_pair
from otel_nfprobe.base.errors import UsageError

TICKS_PER_NS = 2.5
SECOND_TICKS = 2_500_000_000
START_TICKS = 10**15
START_NS = 1_700_000_000 * 10**9


def make_pair(seconds: float, offset_ns: int = 0, rate: float = 1.0) -> ClockPair:
    return ClockPair(
        START_TICKS + round(seconds * SECOND_TICKS), START_NS + round(seconds * rate * 1e9) + offset_ns, 50
    )


def make_clock(rate: float = 1.0) -> Clock:
    return Clock.from_pairs([make_pair(i / 1000, rate=rate) for i in range(51)])


def test_anchor_layout_is_that_of_c() -> None:
    assert ffi.sizeof("struct nfp_anchor") == ANCHOR.itemsize
    for name in ANCHOR.names or ():
        assert ffi.offsetof("struct nfp_anchor", name) == ANCHOR.fields[name][1]  # type: ignore[index]


def convert_exactly(anchors: list[tuple[int, int, int]], ticks: int) -> int:
    anchor = anchors[0]
    for candidate in anchors:
        if candidate[0] <= ticks:
            anchor = candidate
    return (anchor[1] + ((ticks - anchor[0]) * anchor[2] >> 32)) % 2**64


@given(
    starts=st.lists(st.integers(0, 2**62), min_size=1, max_size=8, unique=True),
    rates=st.lists(st.integers(2**28, 2**36), min_size=8, max_size=8),
    ticks=st.lists(st.integers(0, 2**63), min_size=1, max_size=30),
)
def test_convert_is_exact(starts: list[int], rates: list[int], ticks: list[int]) -> None:
    anchors = [(start, 2**60 + i, rate) for i, (start, rate) in enumerate(zip(sorted(starts), rates, strict=False))]
    clock = Clock.from_anchors(np.array(anchors, dtype=ANCHOR), 0)
    ticks += [start + delta for start in starts for delta in (-1, 0, 1) if start + delta >= 0]
    assert clock.convert(ticks).tolist() == [convert_exactly(anchors, value) for value in ticks]


def test_convert_back_is_the_inverse() -> None:
    clock = make_clock()
    for second in range(1, 30):
        clock.advance(make_pair(second, second * 100))
    ticks = START_TICKS + np.random.default_rng(5).integers(-SECOND_TICKS, 40 * SECOND_TICKS, 10_000)
    back = clock.convert_back(clock.convert(ticks))
    # One ns is 2.5 ticks.
    assert np.max(np.abs(back.astype(np.int64) - ticks)) <= 3


def test_convert_keeps_the_shape_and_takes_none() -> None:
    clock = make_clock()
    assert clock.convert(np.zeros((3, 4), dtype=np.uint64)).shape == (3, 4)
    assert clock.convert(np.zeros(0, dtype=np.uint64)).shape == (0,)


def test_start_agrees_with_the_system_clock() -> None:
    clock = Clock.start()
    before = time.time_ns()
    pair = sample_pair()
    after = time.time_ns()
    converted = int(clock.convert([pair.ticks])[0])
    # 1 ms: far more than an anchor's error after milliseconds, far less than any wrong rate or epoch would
    # give.
    assert before - 10**6 <= converted <= after + 10**6
    assert clock.error_ns > 0
    assert 1e8 < clock.ticks_per_second < 1e10


def test_advance_keeps_earlier_conversions_and_never_runs_backwards() -> None:
    clock = make_clock()
    random = np.random.default_rng(1)
    ticks = START_TICKS + np.sort(random.integers(0, 60 * SECOND_TICKS, 5000))
    live = np.zeros(len(ticks), dtype=np.uint64)
    done = 0
    for second in range(1, 61):
        ready = int(np.searchsorted(ticks, START_TICKS + second * SECOND_TICKS))
        live[done:ready] = clock.convert(ticks[done:ready])
        done = ready
        clock.advance(make_pair(second, int(random.integers(-500, 500))))
    assert done == len(ticks)
    assert np.array_equal(live, Clock.from_anchors(clock.anchors.copy(), clock.error_ns).convert(ticks))
    assert np.all(np.diff(live.astype(np.int64)) >= 0)
    assert len(clock.anchors) == 61


def test_advance_follows_a_rate_that_the_start_had_wrong() -> None:
    clock = make_clock(rate=1.0)
    residuals = []
    for second in range(1, 120):
        pair = make_pair(second, rate=1.00002)
        residuals.append(abs(pair.unix_ns - int(clock.convert([pair.ticks])[0])))
        clock.advance(pair)
    assert residuals[0] == pytest.approx(20_000, rel=0.1)
    assert max(residuals[-20:]) < 200
    assert clock.error_ns >= max(residuals)


@pytest.mark.parametrize("interval_s", [0.2, 1, 30])
def test_advance_settles_at_any_interval(interval_s: float) -> None:
    clock = make_clock()
    for i in range(1, 100):
        clock.advance(make_pair(i * interval_s, 5000))
    pair = make_pair(100 * interval_s, 5000)
    assert abs(pair.unix_ns - int(clock.convert([pair.ticks])[0])) < 100


@pytest.mark.parametrize("step_ns", [-3600 * 10**9, -20_000_000, 20_000_000, 10**12])
def test_a_step_is_counted_and_not_followed(step_ns: int) -> None:
    clock = make_clock()
    clock.advance(make_pair(1))
    clock.advance(make_pair(2, step_ns))
    clock.advance(make_pair(3, step_ns))
    ticks = START_TICKS + np.arange(0, 5 * SECOND_TICKS, SECOND_TICKS // 100)
    steps = np.diff(clock.convert(ticks).astype(np.int64))
    assert np.all(np.abs(steps - 10_000_000) < 10_000)
    assert abs(clock.stepped_ns - step_ns) < 1000
    assert clock.error_ns < 1000


def test_advance_ignores_a_pair_before_the_newest_anchor() -> None:
    clock = make_clock()
    clock.advance(make_pair(2))
    clock.advance(make_pair(1))
    assert len(clock.anchors) == 2


@pytest.mark.parametrize(
    "anchors",
    [[], [(5, 1, 2**31), (5, 2, 2**31)], [(6, 1, 2**31), (5, 2, 2**31)], [(5, 1, 0)], [(5, 1, 2**40)]],
)
def test_damaged_anchors_are_refused(anchors: list[tuple[int, int, int]]) -> None:
    with pytest.raises(UsageError):
        Clock.from_anchors(np.array(anchors, dtype=ANCHOR), 0)
