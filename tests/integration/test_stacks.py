# SPDX-License-Identifier: Apache-2.0
"""Debuggers, unwinders and exceptions see the true stack through every strategy's trampolines.

The functions of deep.c (deep_a calls deep_b calls deep_c) are probed; what stands below and above is not.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.strategies import ENTRY_ONLY, RELOCATED_BODY
from tests.support.chain import CHAIN, OF_ALL, PROBED, Start, probe, start_chain
from tests.support.probed import Probed

pytestmark = [pytest.mark.integration, pytest.mark.shared]


@pytest.fixture
def start(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Start:
    return lambda *flags: start_chain(compile_target, spawn, flags)


def strategies(probed: Probed) -> dict[str, str]:
    """Strategy of each probed function."""
    plans = [probe.request.plan for probe in probed.monitor.attachment.probes]
    return {plan.name: plan.strategy or "" for plan in plans}


def expected_walk(by_function: dict[str, str]) -> list[str]:
    """The chain as a walker sees it: a frame of ours above each call that goes through a trampoline."""
    frames: list[str] = []
    for name in CHAIN:
        strategy = by_function.get(name, ENTRY_ONLY)
        if strategy == RELOCATED_BODY:
            frames.append("?")
        elif strategy == ENTRY_ONLY:
            frames.append(name)
        else:
            frames += [name, "?"]
    return frames


@pytest.mark.parametrize("strategy", OF_ALL)
def test_backtrace(start: Start, strategy: str) -> None:
    talker = start()
    before = talker.ask("walk").split()
    assert before[:5] == ["work_walk", *CHAIN, "-"]  # the commands themselves are static
    with probe(talker, strategy) as probed:
        by_function = strategies(probed)
        during = talker.ask("walk").split()
    assert set(by_function) == PROBED.get(strategy, set(CHAIN))
    assert during == [before[0], *expected_walk(by_function), *before[4:]]
    assert talker.ask("walk").split() == before
    probed.assert_exact()


@pytest.mark.parametrize("strategy", OF_ALL)
def test_libunwind(start: Start, strategy: str) -> None:
    talker = start("-DLIBUNWIND", "-lunwind")
    before = {command: talker.ask(command).split() for command in ("step", "trace")}
    assert [stack[1:4] for stack in before.values()] == [list(CHAIN)] * 2
    with probe(talker, strategy) as probed:
        chain = expected_walk(strategies(probed))
        during = {command: talker.ask(command).split() for command in before}
        assert talker.ask("throws 50") == "right"
    assert during == {command: [stack[0], *chain, *stack[4:]] for command, stack in before.items()}
    assert {command: talker.ask(command).split() for command in before} == before


@pytest.mark.parametrize("strategy", OF_ALL)
def test_unwinding(start: Start, strategy: str) -> None:
    """Exceptions, also in many threads at once, cancelled threads and forced unwinding."""
    talker = start()
    for command in ("throws 20", "threads 20", "cancels 5", "forces 20"):
        assert talker.ask(command) == "right"
    with probe(talker, strategy) as probed:
        for command in ("throws 300", "threads 200", "cancels 20", "forces 200"):
            assert talker.ask(command) == "right", command
    assert probed.not_restored == []
    assert talker.ask("throws 20") == "right"


@pytest.mark.parametrize("strategy", OF_ALL)
def test_uncaught(start: Start, strategy: str) -> None:
    ends = []
    for is_probed in (False, True):
        talker = start()
        if is_probed:
            with probe(talker, strategy):
                talker.say("uncaught 17")
                talker.process.wait(120)
        else:
            talker.say("uncaught 17")
        _, message = talker.process.communicate(timeout=120)
        ends.append((talker.process.returncode, message))
    assert ends[0] == ends[1]
    assert "what():  17" in ends[0][1]


# ---- gdb ---------------------------------------------------------------------------------------------------


def debugger_stack(pid: int, thread: int = 1) -> list[str]:
    """Function names of a thread's stack as gdb tells them, innermost first; ours with the suffix .nfprobe."""
    words = ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", f"thread apply {thread} bt"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    found = re.findall(r"^#\d+ +(?:0x[0-9a-f]+ in )?(\S+?)(?: \(|\()", done.stdout, re.MULTILINE)
    return [name.replace("[nfprobe]", ".nfprobe") for name in found]


def chain_in_debugger(by_function: dict[str, str]) -> list[str]:
    frames: list[str] = []
    for name in CHAIN:
        frames.append(name)
        if by_function.get(name, ENTRY_ONLY) not in (RELOCATED_BODY, ENTRY_ONLY):
            frames.append(f"{name}.nfprobe")
    return frames


def from_work_on(stack: list[str]) -> list[str]:
    return stack[stack.index("work_wait") :]


@pytest.mark.parametrize("strategy", OF_ALL)
def test_gdb(start: Start, strategy: str) -> None:
    """While the target is inside, and when the probes are gone while it still is."""
    talker = start()
    assert talker.ask("wait") == "inside"
    before = from_work_on(debugger_stack(talker.pid))
    assert before[1:4] == list(CHAIN)
    assert talker.ask("go on") == "right"
    with probe(talker, strategy) as probed:
        assert talker.ask("wait") == "inside"
        expected = [before[0], *chain_in_debugger(strategies(probed)), *before[4:]]
        assert from_work_on(debugger_stack(talker.pid)) == expected
    assert from_work_on(debugger_stack(talker.pid)) == expected
    assert talker.ask("go on") == "right"
