# SPDX-License-Identifier: Apache-2.0
"""Receive calls are counted as other calls are, and empty polls are left out of what is counted around them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import CallFlag, Columns
from otel_nfprobe.counters.sums import batch_counts
from tests.integration.test_counter_compensation import ROUNDS, Stepped, read_truth
from tests.support.probed import Probed, Talker, counters_by_call

pytestmark = pytest.mark.integration

TARGETS = Path(__file__).resolve().parent.parent / "targets"
OPEN_INSTRUCTIONS = 54  # that the template executes for an empty poll of a thread without counters


@pytest.fixture
def stepper(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    return Talker(spawn(compile_target("stepped"), stdin=subprocess.PIPE))


class Polling(Stepped):
    """As Stepped, of receive functions and those around and inside them."""

    command = "poll"

    def __init__(self, talker: Talker, strategy: str, count: int) -> None:
        globs = ["stepped*:loop", "stepped*:around"]
        Probed.__init__(self, talker.pid, globs, TARGETS / "stepped.yaml", strategy, ring_bytes=1 << 20)
        self.talker, self.count = talker, count


@pytest.mark.parametrize(("strategy", "count"), [("relocated", 2), ("in-stack", 6)])
def test_instructions_are_exact(stepper: Talker, strategy: str, count: int) -> None:
    """Of receive calls with calls and empty polls inside, of calls with empty polls inside: to the instruction."""
    truth = read_truth(stepper, "truth_of_polls")
    assert {name: len(calls) for name, calls in truth.items()} == {"loop": 11, "take": 2, "around": 2, "take_all": 1}
    truth["take_idle"] = []
    with Polling(stepper, strategy, count) as polling:
        assert stepper.ask(f"poll {ROUNDS}") == "done"
    polling.assert_exact()
    # A stepped call with more readings in it may last for longer than 32 bits can count.
    assert polling.compare(truth) >= {"take", "around"} | ({"take_all"} if count == 2 else set())
    assert all(thread.batches == 3 * (ROUNDS + 1) for thread in polling.threads)
    check_batches(polling.keep.columns())


def check_batches(columns: Columns) -> None:
    """What a batch counted is that of its receive call and of the outermost calls behind it."""
    rows = counters_by_call(columns)
    receives = (columns.calls["flags"] & CallFlag.RECEIVE) != 0
    whole, counted = batch_counts(columns)
    without = replace(columns, calls=columns.calls.copy())
    without.calls["flags"][receives] |= np.uint16(CallFlag.CLIPPED)  # those are left out
    before, counted_before = batch_counts(without)
    valid = counted & counted_before
    assert valid.any()
    alone = np.zeros_like(whole)
    alone[columns.calls["batch"][receives]] = rows["self"][receives]
    assert np.array_equal(whole[valid], before[valid] + alone[valid])


def test_without_counters_nothing_is_paid(stepper: Talker) -> None:
    """An empty poll of a thread that has none executes what it did before receive calls could be counted."""
    polls = 100
    bare = int(stepper.ask(f"steps {polls}"))
    with Probed(stepper.pid, [], TARGETS / "stepped.yaml") as probed:
        stepper.ask("poll 1")  # a thread's first poll takes a ring
        with_probe = int(stepper.ask(f"steps {polls}"))
        jumps = next(2 if plan.island else 1 for plan in probed.choice.plans if plan.name == "take_idle")
    # The template, the jumps to it, and the one back behind the displaced instructions.
    assert with_probe - bare == polls * (OPEN_INSTRUCTIONS + jumps + 1)
