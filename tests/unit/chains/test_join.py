# SPDX-License-Identifier: Apache-2.0
"""Hops of one packet are joined, and only those; what could be meant of several is counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from otel_nfprobe.base.columns import DROPPED, TRANSMITTED, Rows
from otel_nfprobe.chains.hops import HOP
from otel_nfprobe.chains.join import join_hops, match_hops

SECOND = 10**9


def make_hops(ids: Sequence[int], times: Sequence[int], content: Sequence[int] | None = None) -> Rows:
    """Hops with these ids that were received at these times, and sent 100 ns later."""
    hops = np.zeros(len(ids), HOP)
    hops["id"], hops["receive_ns"], hops["disposition"] = ids, times, TRANSMITTED
    hops["content"] = hops["done_content"] = ids if content is None else content
    hops["start_ns"] = hops["begin_ns"] = hops["receive_ns"]
    hops["send_ns"], hops["done_ns"] = hops["receive_ns"] + 100, hops["receive_ns"] + 150
    return hops


def pairs_of(first: Rows, second: Rows, window_ns: int = SECOND) -> list[tuple[int, int]]:
    pairs = match_hops(first, second, window_ns)
    return sorted(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))


def test_equal_ids_are_one_packet_in_whatever_order_they_came() -> None:
    first, second = make_hops([7, 8, 9], [0, 10, 20]), make_hops([9, 5, 7], [500, 510, 520])
    assert pairs_of(first, second) == [(0, 2), (2, 0)]


def test_an_id_that_two_packets_have_is_counted_and_not_joined() -> None:
    first, second = make_hops([7, 7, 8], [0, 10, 20]), make_hops([7, 8], [500, 510])
    assert pairs_of(first, second) == [(2, 1)]
    assert match_hops(first, second).ambiguous == (2, 1)


def test_the_same_id_in_another_second_is_another_packet() -> None:
    first, second = make_hops([7, 7], [0, 5 * SECOND]), make_hops([7, 7], [500, 5 * SECOND + 500])
    assert pairs_of(first, second) == [(0, 0), (1, 1)]
    assert match_hops(first, second, 10 * SECOND).ambiguous == (2, 2)


def test_behind_address_translation_the_content_joins() -> None:
    first = make_hops([1, 2, 3], [0, 10, 20], content=[71, 72, 73])
    second = make_hops([11, 12, 13], [500, 510, 520], content=[72, 71, 73])
    assert pairs_of(first, second) == [(0, 1), (1, 0), (2, 2)]
    assert match_hops(first, second).by_content == 3


def test_equal_contents_of_other_flows_are_not_joined() -> None:
    first = make_hops([1, 2, 3], [0, 10, 20], content=[70, 70, 70])
    second = make_hops([1, 12, 3], [500, 510, 520], content=[70, 70, 70])
    assert pairs_of(first, second) == [(0, 0), (2, 2)]


def test_a_function_that_changes_the_content_is_passed() -> None:
    first = make_hops([1, 2], [0, 10], content=[71, 72])
    first["done_content"] = [81, 82]
    second = make_hops([11, 12], [500, 510], content=[81, 82])
    assert pairs_of(first, second) == [(0, 0), (1, 1)]
    assert pairs_of(second, first) == [(0, 0), (1, 1)]


def test_what_was_dropped_or_not_sent_yet_did_not_go_on() -> None:
    first, second = make_hops([7, 8], [0, 10]), make_hops([7, 8], [500, 60])
    first["disposition"][0] = DROPPED
    assert pairs_of(first, second) == []
    assert match_hops(first, second).impossible == 2


def test_a_chain_of_three_is_ordered_by_time() -> None:
    third, first, second = make_hops([7, 8], [900, 910]), make_hops([7, 8], [0, 10]), make_hops([7, 9], [500, 510])
    joined = join_hops([third, first, second])
    assert joined.packets == 2
    assert joined.lengths.tolist() == [3, 2]
    assert joined.recording.tolist() == [1, 2, 0, 1, 0]


def test_pairs_that_contradict_each_other_are_left_out() -> None:
    first = make_hops([7, 1], [0, 10], content=[70, 1])
    second = make_hops([7, 9, 1], [500, 600, 700], content=[75, 71, 1])
    third = make_hops([9], [900], content=[70])  # by its id the second of these, by its content the first
    joined = join_hops([first, second, third])
    assert joined.inconsistent == 1
    assert joined.packets == 1


@pytest.mark.thorough
def test_a_million_packets_are_joined_as_they_are() -> None:
    """With losses on the way, repeats, and packets of other traffic on both sides."""
    rng = np.random.default_rng(3)
    count = 1_000_000
    ids = rng.integers(1, 2**62, count, dtype=np.uint64)
    times = np.sort(rng.integers(0, 20 * SECOND, count))
    ids[1000:2000] = ids[:1000]  # repeats
    first = make_hops(ids, times)
    kept = np.flatnonzero(rng.random(count) < 0.9)
    second = make_hops(
        np.concatenate((ids[kept], rng.integers(2**62, 2**63, 5000, dtype=np.uint64))),
        np.concatenate((times[kept] + 700, rng.integers(0, 20 * SECOND, 5000))),
    )
    pairs = match_hops(first, second)
    assert np.array_equal(kept[pairs.second], pairs.first)
    alone = np.isin(kept, np.arange(2000), invert=True)
    assert len(pairs.first) >= alone.sum()
    assert pairs.ambiguous[0] <= 2000
    assert pairs.ambiguous[0] > 1900  # they came within 40 ms
