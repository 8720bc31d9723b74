# SPDX-License-Identifier: Apache-2.0
"""Probes leave every register, the vector and x87 state and the stack as they were, wherever they run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from probed import Probed, Talker

pytestmark = pytest.mark.integration

ADAPTER = Path(__file__).resolve().parent.parent / "targets" / "registers.yaml"
GLOBS = ["registers*:touch_nothing", "registers*:use_red_zone"]
ROUNDS = 5000


@pytest.fixture
def talker(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    return Talker(spawn(compile_target("registers"), stdin=subprocess.PIPE))


def test_the_target_itself(talker: Talker) -> None:
    assert [talker.ask(f"{where} 20") for where in ("main", "threads", "signals")] == ["equal"] * 3


def test_main_thread(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ADAPTER) as probed:
        assert talker.ask(f"main {ROUNDS}") == "equal"
    probed.assert_exact()
    polls = [(thread.empty_polls, thread.batches) for thread in probed.threads]
    assert polls == [(ROUNDS // 2, ROUNDS // 2)]
    assert probed.calls["touch_nothing"] == probed.calls["use_red_zone"] == ROUNDS
    assert probed.calls["tx_burst"] == probed.calls["drop_burst"] == ROUNDS
    assert probed.counts.received == ROUNDS // 2 * 4


def test_first_calls_of_fresh_threads(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ADAPTER) as probed:
        assert talker.ask("threads 200") == "equal"
    probed.assert_exact()
    assert probed.calls["touch_nothing"] == 200 * 3


def test_signal_handler(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ADAPTER, ring_bytes=4 << 20) as probed:
        assert talker.ask("signals 2000") == "equal"
    assert probed.lost == probed.unregistered == (0, 0, 0)
    assert probed.counts.invalid == probed.torn == 0
    assert (probed.counts.unpaired_entries, probed.counts.unpaired_exits) == (0, 0)


@pytest.mark.parametrize("where", ["main 2000", "threads 10", "signals 1000"])
def test_full_ring(talker: Talker, where: str) -> None:
    """Nobody drains: the slow path refuses the records, and counts them."""
    with Probed(talker.pid, GLOBS, ADAPTER, ring_bytes=64 << 10, drained=False) as probed:
        assert talker.ask(where) == "equal"
        assert talker.ask(where) == "equal"
    assert probed.not_restored == []
    if not where.startswith("threads"):
        assert all(probed.lost), "the ring was not full"
