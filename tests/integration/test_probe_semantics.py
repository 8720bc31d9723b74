# SPDX-License-Identifier: Apache-2.0
"""A probed program does what it did before: results, non-local jumps, exceptions, stack walks, ended threads."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.arch.x86_64.sites import BRANCH_INSIDE
from otel_nfprobe.base.strategies import RELOCATED_BODY
from tests.support.probed import Probed, Talker

pytestmark = [pytest.mark.integration, pytest.mark.shared]

Start = Callable[..., Talker]


@pytest.fixture
def start(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Start:
    def start_(name: str, *flags: str) -> Talker:
        return Talker(spawn(compile_target(name, *flags), stdin=subprocess.PIPE, stderr=subprocess.PIPE))

    return start_


def reasons(probed: Probed) -> dict[str, str]:
    """Why each refused function is refused, by name."""
    return {plan.name: plan.reason for plan in probed.choice.plans if plan.strategy is None}


@pytest.mark.parametrize("optimise", ["-O2", "-O3", "-Os", "-O0"])
def test_results_and_arguments(start: Start, optimise: str) -> None:
    talker = start("semantics", optimise)
    for command in ("calls", "registers"):
        assert talker.ask(f"{command} 200") == "right"
    with Probed(talker.pid, ["semantics-*:*"]) as probed:
        for command in ("calls", "registers"):
            assert talker.ask(f"{command} 1000") == "right"
    probed.assert_exact()
    assert set(reasons(probed).values()) <= {BRANCH_INSIDE}
    strategies = {plan.name: plan.strategy for plan in probed.choice.plans}
    once = ("seven", "sum_variable", "sum_large", "find_caller")
    assert {strategies[name] for name in once} == {RELOCATED_BODY}
    once += ("return_two", "return_two_doubles", "return_mixed", "return_large", "return_long_double")
    once += ("return_complex", "return_128", "use_alloca")
    assert {name: probed.calls[name] for name in once} == dict.fromkeys(once, 1000)
    assert probed.calls["count_vectors"] == 3000
    assert probed.calls["leaf"] == 12 * 1000
    assert probed.calls["keep_registers"] == 1000


@pytest.mark.parametrize("optimise", ["-O2", "-Os"])
def test_recursion_and_tail_calls(start: Start, optimise: str) -> None:
    talker = start("semantics", optimise)
    with Probed(talker.pid, ["semantics-*:*"], ring_bytes=64 << 20) as probed:
        assert talker.ask("tails 100") == "right"
    probed.assert_exact()
    assert probed.calls["fibonacci"] == 177 * 100
    assert [probed.calls[f"tail_{part}"] for part in ("start", "middle", "end")] == [200, 100, 200]


def test_jumps_out_of_probed_functions(start: Start) -> None:
    talker = start("semantics")
    with Probed(talker.pid, ["semantics-*:*"]) as probed:
        assert talker.ask("jumps 300") == "right"
    assert probed.not_restored == []
    assert probed.calls["with_setjmp"] == 300
    assert probed.counts.unpaired_entries == sum(i % 3 + 3 for i in range(300))
    assert probed.counts.unpaired_exits == probed.counts.open == 0


def test_setjmp_runs_as_a_copy(start: Start) -> None:
    """It saves its caller's place, which a call from a trampoline would change."""
    talker = start("semantics")
    globs = ["semantics-*:with_setjmp", "libc.so*:_setjmp", "libc.so*:setjmp", "libc.so*:getcontext"]
    with Probed(talker.pid, globs) as probed:
        assert talker.ask("jumps 10") == "right"
        assert talker.ask("coroutines 10") == "right"
    strategies = {plan.name: (plan.strategy, plan.reason) for plan in probed.choice.plans}
    assert {strategies[name] for name in ("_setjmp", "setjmp", "getcontext")} == {(RELOCATED_BODY, "returns twice")}
    assert probed.calls["_setjmp"] >= 10
    assert probed.counts.unpaired_exits == 0


def test_changed_stacks(start: Start) -> None:
    talker = start("semantics")
    with Probed(talker.pid, ["semantics-*:*"]) as probed:
        assert talker.ask("coroutines 500") == "right"
    assert probed.not_restored == []
    assert probed.lost == (0, 0, 0)
    assert probed.calls["alternate"] == 500
    assert probed.calls["suspend"] == 2000
    assert probed.counts.unpaired_exits == 0


def test_cancelled_and_ended_threads(start: Start) -> None:
    talker = start("semantics")
    with Probed(talker.pid, ["semantics-*:*"]) as probed:
        assert talker.ask("ends 50") == "right"
    assert probed.not_restored == []
    assert probed.calls["run_ends"] == 1
    # wait_for_cancel and exit_thread and who called them never return.
    assert probed.counts.open == 4 * 50
    assert probed.counts.unpaired_exits == probed.counts.unpaired_entries == 0


# ---- C++ ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimise", ["-O2", "-O0"])
def test_exceptions(start: Start, optimise: str) -> None:
    talker = start("unwinding", optimise)
    with Probed(talker.pid, ["unwinding-*:*"]) as probed:
        assert talker.ask("throws 500") == "right"
    assert probed.not_restored == []
    assert probed.calls["around_catch"] == 500
    if optimise == "-O2":  # it begins with the call whose exception it catches
        assert reasons(probed)["catch_inside"] == "call among the displaced instructions"
    thrown_through = sum(i % 5 + 2 for i in range(500)) + 500
    assert probed.counts.unpaired_entries == thrown_through
    assert probed.counts.unpaired_exits == 0


def test_exception_through_displaced_call(start: Start) -> None:
    """The copy of the first instructions restores the registers that it saved."""
    talker = start("unwinding")
    with Probed(talker.pid, ["unwinding-*:call_first", "unwinding-*:around_keep"]) as probed:
        assert talker.ask("call_first 100") == "right"
    assert probed.calls == {"around_keep": 100}
    assert probed.counts.unpaired_entries == 100


def test_stack_walk(start: Start) -> None:
    """backtrace() sees all frames in order, and one more (ours) above each probed one."""
    talker = start("unwinding")
    before = talker.ask("walk 4").split()
    assert before[:6] == ["walk"] * 5 + ["run"]
    with Probed(talker.pid, ["unwinding-*:walk"]):
        during = talker.ask("walk 4").split()
    assert during == ["walk", "?"] * 5 + before[5:]
    assert talker.ask("walk 4").split() == before


def test_uncaught_exception(start: Start) -> None:
    ends = []
    for is_probed in (False, True):
        talker = start("unwinding")
        if is_probed:
            with Probed(talker.pid, ["unwinding-*:*"]):
                talker.say("let_go")
                talker.process.wait(120)
        else:
            talker.say("let_go")
        _, message = talker.process.communicate(timeout=120)
        ends.append((talker.process.returncode, message))
    assert ends[0] == ends[1]
    assert "nobody catches this" in ends[0][1]
