# SPDX-License-Identifier: Apache-2.0
"""Exact counts with many threads, short threads, signal handlers and child processes."""

from __future__ import annotations

import pytest

from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.target("threads")]

GLOBS = ["threads-*:step", "threads-*:two_steps", "threads-*:fork_inside"]


def assert_equals_own_count(probed: Probed, talker: Talker) -> None:
    probed.assert_exact()
    own = int(talker.ask("calls"))
    assert (probed.calls["two_steps"], probed.calls["step"]) == (own, 2 * own)


def test_sixty_four_threads(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ring_bytes=8 << 20) as probed:
        assert talker.ask("many 20000") == "right"
    assert_equals_own_count(probed, talker)
    assert 32 < len(probed.threads) <= 64  # one that has ended before another begins leaves its place to it


def test_storm_of_short_threads(talker: Talker) -> None:
    """Three times as many threads as the table has entries: rings of ended threads are used again."""
    with Probed(talker.pid, GLOBS, ring_bytes=64 << 10) as probed:
        for _ in range(12):
            assert talker.ask("storm 256") == "right"
            # Until the monitor has come to those that have ended.
            threads = probed.monitor.attachment.session.threads
            assert wait_until(lambda threads=threads: len(threads.claims().index) < 512)  # type: ignore[misc]
    assert_equals_own_count(probed, talker)
    assert len(probed.threads) < 1024


def test_more_threads_than_rings_are_counted(talker: Talker) -> None:
    """Nobody drains, so no ring is given back: who got none is counted."""
    with Probed(talker.pid, GLOBS, ring_bytes=64 << 10, drained=False) as probed:
        assert talker.ask("storm 1100") == "right"
    own = int(talker.ask("calls"))
    assert probed.lost == (0, 0, 0)
    assert 2 * probed.counts.calls + probed.unregistered[0] == own * 3 * 2
    assert probed.unregistered[0] == 76 * 3 * 3 * 2


def test_signal_handler_at_ten_kilohertz(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ring_bytes=128 << 20) as probed:
        assert talker.ask("signals 5000") == "right"
    assert_equals_own_count(probed, talker)


def test_signal_handler_while_the_ring_is_full(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ring_bytes=64 << 10, drained=False) as probed:
        assert talker.ask("signals 2000") == "right"
    own = int(talker.ask("calls"))
    paired = (
        probed.counts.calls * 2 + probed.counts.unpaired_entries + probed.counts.unpaired_exits + probed.counts.open
    )
    assert paired + probed.lost[0] == own * 3 * 2


def test_fork_inside_a_probed_function(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS) as probed:
        assert talker.ask("forks 50") == "right"
    assert_equals_own_count(probed, talker)
    assert probed.calls["fork_inside"] == 50
    assert len(probed.threads) == 1


def test_vfork_and_exec(talker: Talker) -> None:
    """The calls of a vfork child before its thread has a ring are lost and counted; nothing else is."""
    with Probed(talker.pid, GLOBS) as probed:
        assert talker.ask("vforks 20") == "right"
    own = int(talker.ask("calls"))
    assert probed.not_restored == []
    assert probed.calls["two_steps"] == own == 20
    assert probed.unregistered[0] == 20 * 2 * 3 * 2
    assert (probed.counts.unpaired_entries, probed.counts.unpaired_exits) == (0, 0)


def test_child_outlives_the_monitor(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS) as probed:
        child = int(talker.ask("child 1"))
        assert talker.ask("storm 4") == "right"
    assert_equals_own_count(probed, talker)
    talker.say("child 0")
    # The child and its parent write to the same pipe, in whichever order they run.
    assert {talker.hear(), talker.hear()} == {"let go", "child done"}
    assert child
