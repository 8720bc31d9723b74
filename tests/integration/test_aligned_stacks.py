# SPDX-License-Identifier: Apache-2.0
"""Functions that align their stack run from trampolines, and do what they did: results, jumps, exceptions, walks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.arch.code_facts import RETURN_ADDRESS, STACK_ARGUMENTS
from otel_nfprobe.base.strategies import IN_STACK_CALL
from tests.support.probed import Probed, Talker

pytestmark = [pytest.mark.integration, pytest.mark.shared]

ALIGNED = ("aligned", "crowded", "hands_over", "branches", "rare", "recursive")
THROUGH = ("throws", "cleans", "catches", "jumps", "walks")
LOOKING = {"seventh": STACK_ARGUMENTS, "ninth_late": STACK_ARGUMENTS, "variable": STACK_ARGUMENTS}
LOOKING |= {"by_value": STACK_ARGUMENTS, "returns_to": RETURN_ADDRESS}
FLAGS = ("-O2", "-O3 -march=native", "-Os", "-O0")

Start = Callable[[str], Talker]


@pytest.fixture
def start(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Start:
    return lambda flags: Talker(spawn(compile_target("aligned", *flags.split()), stdin=subprocess.PIPE))


def strategies(probed: Probed) -> dict[str, tuple[str | None, str]]:
    return {plan.name: (plan.strategy, plan.reason) for plan in probed.choice.plans}


@pytest.mark.parametrize("flags", FLAGS)
def test_results(start: Start, flags: str) -> None:
    talker = start(flags)
    with Probed(talker.pid, ["aligned-*:*"], ring_bytes=64 << 20) as probed:
        for command in ("sums", "arguments"):
            assert talker.ask(f"{command} 1000") == "right"
    probed.assert_exact()
    found = strategies(probed)
    assert {name: found[name] for name in (*ALIGNED, *THROUGH)} == dict.fromkeys(
        (*ALIGNED, *THROUGH), (IN_STACK_CALL, "")
    )
    assert {name: found[name][1] for name in LOOKING} == LOOKING
    assert {found[name][0] for name in LOOKING}.isdisjoint({IN_STACK_CALL})
    once = {name: probed.calls[name] for name in ("crowded", "hands_over", "branches", "rare", "seventh", "by_value")}
    assert once == dict.fromkeys(once, 1000)
    assert probed.calls["recursive"] == 3000


@pytest.mark.parametrize("flags", FLAGS)
def test_exceptions_and_jumps(start: Start, flags: str) -> None:
    talker = start(flags)
    with Probed(talker.pid, ["aligned-*:*"]) as probed:
        assert talker.ask("throws 400") == "right"
        assert talker.ask("jumps 400") == "right"
    assert probed.not_restored == []
    assert probed.calls["catches"] == 400
    # throws as often as it is deep, and cleans; the frames that longjmp leaves.
    assert probed.counts.unpaired_entries == sum(i % 4 + 2 for i in range(400)) + sum(i % 4 + 1 for i in range(400))
    assert probed.counts.unpaired_exits == probed.counts.open == 0


@pytest.mark.parametrize("flags", FLAGS)
def test_stack_walk(start: Start, flags: str) -> None:
    """backtrace() sees all frames in order, and one more (ours) above each probed one."""
    talker = start(flags)
    before = talker.ask("walk 4").split()
    assert before[:6] == ["walks"] * 5 + ["run"]
    with Probed(talker.pid, ["aligned-*:walks"]):
        during = talker.ask("walk 4").split()
    assert during == ["walks", "?"] * 5 + before[5:]
    assert talker.ask("walk 4").split() == before
