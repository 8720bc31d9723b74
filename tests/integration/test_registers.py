# SPDX-License-Identifier: Apache-2.0
"""Probes leave every register, the vector and x87 state and the stack as they were, wherever they run.

registers.c has functions of every kind of probe; those of entry_points.c, called by entries.c, look at what they
find at their entry, too: by each strategy they find what their caller left.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.counters.choice import choose_counters
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.target("registers"), pytest.mark.shared]

ADAPTER = Path(__file__).resolve().parent.parent / "targets" / "registers.yaml"
GLOBS = ["registers*:touch_nothing", "registers*:use_red_zone"]
ROUNDS = 5000
RING_BYTES = 16 << 20  # of all rounds: they are over before anybody may get a processor to drain them


def test_the_target_itself(talker: Talker) -> None:
    assert [talker.ask(f"{where} 20") for where in ("main", "threads", "signals")] == ["equal"] * 3


def test_main_thread(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ADAPTER, ring_bytes=RING_BYTES) as probed:
        assert talker.ask(f"main {ROUNDS}") == "equal"
    probed.assert_exact()
    polls = [(thread.empty_polls, thread.batches) for thread in probed.threads]
    assert polls == [(ROUNDS // 2, ROUNDS // 2)]
    assert probed.calls["touch_nothing"] == probed.calls["use_red_zone"] == ROUNDS
    assert probed.calls["tx_burst"] == probed.calls["drop_burst"] == ROUNDS
    assert probed.counts.received == ROUNDS // 2 * 4


def test_a_counted_thread(talker: Talker) -> None:
    """By pages of the kernel, whose counters no processor counts: all but rdpmc itself runs."""
    probed = Probed(talker.pid, GLOBS, ADAPTER, ring_bytes=RING_BYTES)
    probed.monitor.counters = choose_counters("task-clock,page-faults,context-switches").counters
    maps = Path(f"/proc/{talker.pid}/maps")
    with probed:
        assert talker.ask("main 2") == "equal"  # a thread has an entry in the table once it has written a record
        assert wait_until(lambda: maps.read_text().count("[perf_event]") >= 3)
        assert talker.ask(f"main {ROUNDS}") == "equal"
        assert talker.ask("signals 200") == "equal"
    assert probed.lost == probed.unregistered == (0, 0, 0)
    assert probed.counts.invalid == probed.torn == 0
    assert probed.counts.received >= ROUNDS // 2 * 4


def test_first_calls_of_fresh_threads(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ADAPTER, ring_bytes=RING_BYTES) as probed:
        assert talker.ask("threads 200") == "equal"
    probed.assert_exact()
    assert probed.calls["touch_nothing"] == 200 * 3


def test_signal_handler(talker: Talker) -> None:
    with Probed(talker.pid, GLOBS, ADAPTER, ring_bytes=RING_BYTES) as probed:
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


# ---- each strategy, and what the function itself finds ------------------------------------------------------------

LOOKERS = {"look_at_registers", "look_at_arguments", "touch_nothing", "jump_on", "loop_in_red_zone"}
CALLS_A_ROUND = {name: 2 if name == "look_at_registers" else 1 for name in LOOKERS}  # jump_on ends there
BY_STRATEGY = {
    "in-stack": LOOKERS - {"look_at_arguments"},
    "relocated": LOOKERS,
    "copied": {"look_at_arguments"},
    "got": LOOKERS,
    "entry": LOOKERS,
}
RING_STATES = ("main 1000", "threads 100", "signals 1000")


@pytest.fixture
def entries(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    library = compile_target("entry_points", "-shared", "-fPIC")
    program = compile_target("entries", str(library))
    return Talker(spawn(program, stdin=subprocess.PIPE))


def probe_lookers(talker: Talker, strategy: str, **options: Any) -> Probed:
    probed = Probed(talker.pid, [f"entry_points-*:{name}" for name in LOOKERS], strategy=strategy, **options)
    chosen = {plan.name for plan in probed.choice.plans if plan.strategy is not None}
    assert chosen == BY_STRATEGY[strategy]
    assert {plan.strategy for plan in probed.choice.plans} <= {STRATEGIES[strategy], None}
    return probed


def test_what_functions_find_without_probes(entries: Talker) -> None:
    assert [entries.ask(f"{where} 20") for where in ("main", "threads", "signals")] == ["equal"] * 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_functions_find_by_each_strategy(entries: Talker, strategy: str) -> None:
    """With a ring, in a thread's first records, which come before its ring, and under signals."""
    for where in RING_STATES:
        with probe_lookers(entries, strategy, ring_bytes=RING_BYTES) as probed:
            assert entries.ask(where) == "equal"
        assert probed.not_restored == []
        assert (probed.lost, probed.unregistered, probed.torn) == ((0, 0, 0), (0, 0, 0), 0)
        assert (probed.counts.unpaired_entries, probed.counts.unpaired_exits, probed.counts.invalid) == (0, 0, 0)
        if not where.startswith("signals"):
            rounds = 1000 if where.startswith("main") else 300
            through_slots = dict.fromkeys(LOOKERS, 1) if strategy == "got" else CALLS_A_ROUND
            expected = {name: through_slots[name] * rounds for name in BY_STRATEGY[strategy]}
            assert probed.calls == expected
            assert probed.counts.marked == (sum(expected.values()) if strategy == "entry" else 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_functions_find_with_a_full_ring(entries: Talker, strategy: str) -> None:
    with probe_lookers(entries, strategy, ring_bytes=64 << 10, drained=False) as probed:
        assert [entries.ask(where) for where in ("main 3000", "signals 1000")] == ["equal"] * 2
    assert probed.not_restored == []
    assert probed.lost[0] > 0, "the ring was not full"
