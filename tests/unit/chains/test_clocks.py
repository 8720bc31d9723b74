# SPDX-License-Identifier: Apache-2.0
"""How far two clocks are apart is bounded by packets that go both ways; else only what can be said is said."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.chains.clocks import ClockLink, link_clocks
from otel_nfprobe.chains.hops import HOP

COUNT, SECOND = 4000, 10**9


def make_pair(skew_ns: int, rate: float = 0.0, back_share: float = 0.4, seed: int = 1) -> tuple[Rows, Rows]:
    """Hops of two recordings, the second with a clock that is wrong; some flows go from the second to the first."""
    rng = np.random.default_rng(seed)
    sent = np.sort(rng.integers(0, 4 * SECOND, COUNT))
    flow = rng.integers(0, 40, COUNT)
    is_back = flow < 40 * back_share
    stay, way = rng.exponential(3_000, COUNT).astype(np.int64) + 500, rng.exponential(20_000, COUNT).astype(np.int64)
    way += 4_000
    first, second = np.zeros(COUNT, HOP), np.zeros(COUNT, HOP)
    for hops, at in (
        (first, np.where(is_back, sent + stay + way, sent)),
        (second, np.where(is_back, sent, sent + stay + way)),
    ):
        hops["id"] = hops["content"] = hops["done_content"] = np.arange(1, COUNT + 1)
        hops["flow"] = flow
        hops["receive_ns"] = at
        hops["send_ns"] = at + stay
    for name in ("receive_ns", "send_ns"):
        true = second[name]
        second[name] = true + skew_ns + np.rint(rate * true).astype(np.int64)
    return first, second


def linked(first: Rows, second: Rows) -> ClockLink:
    link = link_clocks(first, second)
    assert link is not None
    return link


@pytest.mark.parametrize("skew_ns", [0, 7_000, -3_200_000_000, 5 * SECOND])
def test_both_ways_bound_the_difference(skew_ns: int) -> None:
    first, second = make_pair(skew_ns)
    link = linked(first, second)
    assert link.error_ns is not None
    assert abs(link.offset_ns + skew_ns) <= link.error_ns
    assert link.error_ns < 6_000  # the fastest took 4 us each way
    assert sum(link.pairs) == COUNT
    assert min(link.pairs) > 1000


def test_clocks_that_run_at_different_rates() -> None:
    first, second = make_pair(2 * SECOND, rate=40e-6)
    link = linked(first, second)
    true = make_pair(0)[1]["receive_ns"]
    assert link.error_ns is not None
    wrong = np.abs(link.convert(second["receive_ns"]) - true).max()
    assert wrong <= link.error_ns + 2_000
    assert np.abs(link.convert_back(link.convert(second["receive_ns"])) - second["receive_ns"]).max() <= 1


@pytest.mark.parametrize("skew_ns", [0, 1_000_000])
def test_one_way_gives_one_bound(skew_ns: int) -> None:
    first, second = make_pair(skew_ns, back_share=0)
    link = linked(first, second)
    assert link.error_ns is None
    assert link.pairs == (COUNT, 0)
    assert not link.is_order_known
    assert (link.convert(second["receive_ns"]) - first["send_ns"]).min() == 0


def test_a_function_that_rewrites_shows_who_was_first() -> None:
    first, second = make_pair(-5 * SECOND, back_share=0)
    first["content"] += 10**6  # by its clock the second one would have been first
    link = linked(first, second)
    assert link.is_order_known
    assert link.pairs == (COUNT, 0)


def test_too_few_packets() -> None:
    first, second = make_pair(0)
    assert link_clocks(first[:20], second) is None
    second["id"] += COUNT * 2
    second["content"] += COUNT * 2
    assert link_clocks(first, second) is None
