# SPDX-License-Identifier: Apache-2.0
"""Packets matched with a capture: exact cases, one rule each."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.causes.arrivals import (
    CAPTURED,
    RECEIVED,
    TRANSIT_NS,
    UNSEEN_WAIT_NS,
    Matches,
    estimate_offset_ns,
    match_by_id,
    match_by_order,
)

MS = 1_000_000
START = 1_700_000_000 * 10**9


def received(*rows: tuple[int, int, int]) -> np.ndarray:
    """Rows of digest, exit of the receive call and when the queue was seen empty (0: never), in ms."""
    packets = np.zeros(len(rows), RECEIVED)
    for number, (digest, latest, earliest) in enumerate(rows):
        empty = START + earliest * MS if earliest else 0
        packets[number] = (number << 16, digest, START + latest * MS, START + latest * MS, empty, 7, 60 + digest)
    return packets


def captured(*rows: tuple[int, int]) -> np.ndarray:
    packets = np.zeros(len(rows), CAPTURED)
    for number, (digest, at) in enumerate(rows):
        packets[number] = (digest, START + at * MS, 60 + digest)
    return packets


def arrivals(matches: Matches, count: int) -> list[int | None]:
    """By packet, ms or None."""
    found: list[int | None] = [None] * count
    for key, arrival in zip(matches.keys.tolist(), matches.arrival_ns.tolist(), strict=True):
        found[key >> 16] = (arrival - START) // MS
    return found


def test_by_digest() -> None:
    mine = received((5, 100, 90), (6, 100, 90), (7, 120, 0), (8, 130, 125))
    matches = match_by_id(mine, captured((7, 60), (5, 95), (9, 96), (6, 99)))
    assert arrivals(matches, 4) == [95, 99, 60, None]
    assert (matches.matched, matches.absent, matches.impossible, matches.captured) == (3, 1, 0, 4)


def test_nothing_arrives_after_its_poll_or_long_before_its_queue_was_empty() -> None:
    mine = received((5, 100, 90), (6, 100, 90), (7, 10_100, 0))
    matches = match_by_id(mine, captured((5, 101), (6, 90 - TRANSIT_NS // MS - 1), (7, 99)))
    assert arrivals(matches, 3) == [None, None, None]
    assert (matches.absent, matches.impossible) == (0, 3)
    assert UNSEEN_WAIT_NS == 10_000 * MS


def test_equal_digests_keep_their_order() -> None:
    mine = received((5, 100, 0), (5, 110, 0), (5, 120, 0), (5, 130, 0))
    sent = captured((5, 10), (5, 20), (5, 115), (5, 140))
    assert arrivals(match_by_id(mine, sent), 4) == [10, 20, 115, None]
    lost = received((5, 100, 90), (5, 110, 105))  # those sent at 10 and 20 never came
    assert arrivals(match_by_id(lost, captured((5, 10), (5, 20), (5, 95), (5, 107))), 2) == [95, 107]


def test_by_order() -> None:
    mine = received(*((1, 100 + 10 * number, 0) for number in range(30)))
    sent = captured(*((1, 95 + 10 * number) for number in range(30)))
    assert arrivals(match_by_order(mine, sent), 30) == [95 + 10 * number for number in range(30)]
    # One of another length was captured and lost; the first packets came before the capture began.
    sent = np.concatenate((sent[2:10], captured((9, 196)), sent[10:]))
    assert arrivals(match_by_order(mine, sent), 30) == [None, None, *(95 + 10 * number for number in range(2, 30))]


def test_order_that_does_not_fit_gives_nothing() -> None:
    mine = received(*((1, 100 + 10 * number, 90 + 10 * number) for number in range(30)))
    matches = match_by_order(mine, captured(*((1 + number % 2, 95 + 10 * number) for number in range(30))))
    assert (matches.matched, matches.absent) == (0, 30)
    mine["queue"][4] = 8
    with pytest.raises(ValueError, match="queue"):
        match_by_order(mine, captured())


def test_the_difference_of_two_clocks() -> None:
    mine = received(*((number, 100 + number, 0) for number in range(40)))
    sent = captured(*((number, 5100 + number - 3 - number % 7) for number in range(40)))
    offset_ns = estimate_offset_ns(mine, sent)
    assert offset_ns == -4997 * MS
    matches = match_by_id(mine, sent, offset_ns)
    assert arrivals(matches, 40) == [100 + number - number % 7 for number in range(40)]
    assert estimate_offset_ns(mine[:31], sent) is None
    assert estimate_offset_ns(received(*[(5, 1, 0)] * 40), sent) is None


def test_nothing_at_all() -> None:
    nothing = match_by_id(received(), captured())
    assert (nothing.packets, nothing.matched, nothing.absent, nothing.impossible) == (0, 0, 0, 0)
    assert match_by_order(received(), captured((1, 2))).matched == 0
