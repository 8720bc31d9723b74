# SPDX-License-Identifier: Apache-2.0
"""Targets that make processes, become another program, or switch stacks behave as without probes."""

from __future__ import annotations

import pytest

from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.target("processes"), pytest.mark.shared]

EVERYTHING = ["processes-*:*"]


@pytest.mark.parametrize("globs", [EVERYTHING, [*EVERYTHING, "libc.so*:*"]], ids=["program", "C library, too"])
def test_other_programs(talker: Talker, globs: list[str]) -> None:
    with Probed(talker.pid, globs) as probed:
        assert talker.ask("spawns 10") == "right"
        assert talker.ask("pipes 10") == "right"
    assert probed.not_restored == []
    assert (probed.calls["spawn_once"], probed.calls["read_once"]) == (10, 10)
    assert talker.ask("spawns 3") == talker.ask("pipes 3") == "right"


def test_child_on_its_parents_memory(talker: Talker) -> None:
    """What it calls is called by its parent's thread; the call that it ends in has no end."""
    with Probed(talker.pid, EVERYTHING) as probed:
        assert talker.ask("clones 50") == "right"
    assert probed.not_restored == []
    assert probed.calls["clone_once"] == 50
    assert probed.calls["step"] == 100
    assert probed.counts.unpaired_exits == 0


def test_stacks_switched_by_hand(talker: Talker) -> None:
    assert talker.ask("switches 10") == "right"
    with Probed(talker.pid, EVERYTHING) as probed:
        assert talker.ask("switches 3000") == "right"
        assert talker.ask("steps 5") == "right"
    assert probed.not_restored == []
    assert probed.calls["step"] == 3005
    assert probed.calls["visit"] == 3000
    # The first switch returns on a stack on which nothing was entered since the probes are there.
    assert probed.counts.unpaired_exits <= 1
    assert talker.ask("switches 10") == "right"


@pytest.mark.parametrize("from_thread", [0, 1], ids=["main thread", "another thread"])
def test_exec(talker: Talker, from_thread: int) -> None:
    """The new program is not touched; the session ends and says why."""
    with Probed(talker.pid, EVERYTHING) as probed:
        assert talker.ask("steps 30") == "right"
        assert talker.ask(f"exec {from_thread}") == "ready"
        assert wait_until(lambda: probed.monitor.attachment.has_gone)
        assert talker.ask("steps 1000") == "right"
    assert probed.not_restored == []
    assert [sentence for sentence in probed.said if "another program" in sentence]
    assert probed.calls["step"] == 30
    assert probed.counts.unpaired_exits == 0
    assert talker.process.poll() is None
    with Probed(talker.pid, ["processes-*:step"]) as again:
        assert talker.ask("steps 70") == "right"
    again.assert_exact()
    assert again.calls == {"step": 70}


def test_exec_while_detaching(talker: Talker) -> None:
    for _ in range(5):
        with Probed(talker.pid, ["processes-*:step"]) as probed:
            assert talker.ask("steps 3") == "right"
            talker.say("exec 0")
        assert talker.hear() == "ready"
        assert wait_until(talker.is_listening)
        assert probed.not_restored == []
        assert talker.ask("steps 3") == "right"
