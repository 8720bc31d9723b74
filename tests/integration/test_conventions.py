# SPDX-License-Identifier: Apache-2.0
"""Arguments and results arrive in every way in which they travel, by each strategy that the analysis offers.

conventions.c is a library of functions, each called once a round by convention_calls.c, which knows the results.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.target.target import Target
from tests.support.probed import Probed, Talker

pytestmark = [pytest.mark.integration, pytest.mark.shared]

ROUNDS = 300
INTERNAL = {"leaf": 0, "take_eight": 1, "sum_array": 2, "count_down": 10}  # calls a round; 0: it depends
NEVER_MOVED = ("find_caller", "find_caller_of_frame")  # they look at their return address
LADDER = "ladder"

Start = Callable[[str], Talker]


@pytest.fixture
def start(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Start:
    def start_(optimise: str) -> Talker:
        flags = (optimise, "-Wno-psabi")
        library = compile_target("conventions", "-shared", "-fPIC", *flags)
        program = compile_target("convention_calls", "-fno-plt", *flags, str(library))
        return Talker(spawn(program, stdin=subprocess.PIPE))

    return start_


def exported(pid: int) -> set[str]:
    """Names that the library offers."""
    library = next(module for module in Target(pid).modules() if module.name.startswith("conventions-"))
    return {name for name, symbol in library.image.exports.items() if symbol.kind == 2}


def assert_right(talker: Talker, strategy: str, names: set[str]) -> Probed:
    """Everything is as without probes, and each function is counted as often as it is called."""
    forced = None if strategy == LADDER else strategy
    with Probed(talker.pid, ["conventions-*:*"], strategy=forced, ring_bytes=16 << 20) as probed:
        assert talker.ask(f"rounds {ROUNDS}") == "right", strategy
    assert probed.not_restored == []
    assert (probed.lost, probed.unregistered, probed.torn) == ((0, 0, 0), (0, 0, 0), 0)
    assert (probed.counts.invalid, probed.counts.unpaired_exits, probed.counts.open) == (0, 0, 0)
    done = {probe.request.plan.name for probe in probed.monitor.attachment.probes}
    for name in done & names:
        a_round = 1 if strategy == "got" else INTERNAL.get(name, 1)
        assert probed.calls[name] == a_round * ROUNDS, (strategy, name)
    assert talker.ask("rounds 10") == "right"
    return probed


@pytest.mark.parametrize("optimise", ["-O0", "-O2", "-O3", "-Os"])
def test_by_each_strategy(start: Start, optimise: str) -> None:
    talker = start(optimise)
    names = exported(talker.pid)
    assert talker.ask("rounds 20") == "right"
    for strategy, meaning in STRATEGIES.items():
        probed = assert_right(talker, strategy, names)
        chosen = {plan.name for plan in probed.choice.plans if plan.strategy == meaning}
        assert chosen, f"{strategy} is offered to no function"
        if strategy in ("in-stack", "copied", "got"):
            assert not chosen.intersection(NEVER_MOVED), strategy
        if strategy == "in-stack":
            assert not chosen.intersection(("take_ten", "take_words_25", "change_arguments"))
        if strategy == "got":
            assert "leaf" not in chosen


@pytest.mark.parametrize("optimise", ["-O1", "-O2"])
def test_by_the_ladder(start: Start, optimise: str) -> None:
    talker = start(optimise)
    assert talker.ask("rounds 20") == "right"
    probed = assert_right(talker, LADDER, exported(talker.pid))
    done = {probe.request.plan.name: probe.request.plan.strategy for probe in probed.monitor.attachment.probes}
    assert exported(talker.pid) <= set(done)
    assert set(done.values()) <= set(STRATEGIES.values())
    # jump_back and those that it leaves, again and again; nothing else is without an end.
    assert set(done) >= {"jump_back", "leaf", "nested.0"} - ({"nested.0"} if optimise == "-O0" else set())
    assert probed.counts.unpaired_entries == sum((i * 1000003 + 7) % 3 + 3 for i in range(ROUNDS))
