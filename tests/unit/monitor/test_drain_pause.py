# SPDX-License-Identifier: Apache-2.0
"""How long the monitor waits between two rounds of its drain."""

from __future__ import annotations

import pytest

from otel_nfprobe.monitor.drain import LONGEST_PAUSE_S, PAUSE_SHARE, PLENTY_SHARE, SHORTEST_PAUSE_S, find_pause_s

ROOM = 16 << 20 >> 5
SMALL = 64 << 10 >> 5


def test_a_ring_that_fills_quickly_is_drained_again_at_once() -> None:
    assert find_pause_s(ROOM // PLENTY_SHARE, 0.01, ROOM) == 0.0
    assert find_pause_s(ROOM // PLENTY_SHARE - 1, 0.01, ROOM) > 0.0


def test_the_longest_pause_while_next_to_nothing_comes() -> None:
    assert find_pause_s(0, 0.002, ROOM) == LONGEST_PAUSE_S
    assert find_pause_s(0, 0.002, ROOM, 0.02) == 0.02


@pytest.mark.parametrize("records_per_s", [5e6, 7e6, 12e6])
def test_a_pause_lets_a_ring_fill_by_a_small_part(records_per_s: float) -> None:
    pause_s = find_pause_s(round(0.004 * records_per_s), 0.004, ROOM)
    assert SHORTEST_PAUSE_S < pause_s < LONGEST_PAUSE_S
    assert pause_s * records_per_s == pytest.approx(ROOM / PAUSE_SHARE, rel=1e-3)


def test_rings_that_a_burst_would_fill_are_drained_often() -> None:
    assert find_pause_s(0, 0.01, SMALL) == SHORTEST_PAUSE_S
