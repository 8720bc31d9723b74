# SPDX-License-Identifier: Apache-2.0
"""What probes count is taken off exactly: true trampolines on a processor that counts by single-stepping.

The oracle is the same program, stepped while nothing of ours is in it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import CountersFlag
from otel_nfprobe.base.strategies import ENTRY_ONLY, RELOCATED_BODY
from otel_nfprobe.counters.compensation import SHAPES, calibrate_counters, costs_of
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.probes.trampoline import COPY_SHAPES
from otel_nfprobe.shm.session import THREAD_COUNT
from tests.support.probed import KeepAll, Probed, Talker, counters_by_call, find_calls

pytestmark = pytest.mark.integration

ROUNDS = 3
Truth = dict[str, list[tuple[int, int, int, int]]]  # instructions, branches; of these in the call alone


@pytest.fixture
def talker(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    talker = Talker(spawn(compile_target("stepped"), stdin=subprocess.PIPE))
    talker.ask("run 1")  # what is bound lazily is bound
    return talker


def read_truth(talker: Talker, command: str = "truth") -> Truth:
    found: Truth = {}
    for word in talker.ask(command).split():
        name, _, numbers = word.partition(":")
        whole, branches, own, own_branches = (int(number) for number in numbers.split(","))
        found.setdefault(name, []).append((whole, branches, own, own_branches))
    return found


class Stepped(Probed):
    """As Probed, with the counters of the program's own processor, on its main thread and for calibration.

    Args:
        strategies: of the functions with these names; "" is of all others, None lets the analysis choose.
    """

    command = "run"  # has the functions called

    def __init__(self, talker: Talker, names: Iterable[str], strategies: dict[str, str | None], count: int) -> None:
        super().__init__(talker.pid, ["stepped*:loop"], ring_bytes=1 << 20)
        plans = []
        for name in names:
            module = "libc*" if name == "rand_r" else "stepped*"
            strategy = strategies.get(name, strategies[""])
            plans += choose(self.target, None, [f"{module}:{name}"], [], strategy).plans
        self.choice.plans = plans
        self.talker, self.count = talker, count

    def __enter__(self) -> Stepped:
        super().__enter__()
        self.keep = self.monitor.drain.statistics = KeepAll()
        self.talker.ask(f"{self.command} 1")  # a thread has an entry in the table once it has written a record
        session, pages = self.monitor.attachment.session, int(self.talker.ask("where 0"), 16)
        be_steppable = int(self.talker.ask("where 1"), 16)
        module = self.monitor.attachment.probes[0].request.plan.module
        # Calibration is a way to have the helper thread call a function of the target.
        assert session.ask(lib.NFP_COMMAND_CALIBRATE, be_steppable, be_steppable) == 0
        assert session.ask(lib.NFP_COMMAND_COUNT, THREAD_COUNT, self.count, pages) == 0
        arenas = self.monitor.attachment.arenas
        self.monitor.compensation = calibrate_counters(session, arenas, module, self.count, self.shapes(), rounds=1)
        assert session.ask(lib.NFP_COMMAND_COUNT, THREAD_COUNT, 0) == 0
        assert session.ask(lib.NFP_COMMAND_CALIBRATE, be_steppable, be_steppable) == 0
        session.leave_out_polls(self.monitor.compensation.of_empty_polls(self.monitor.attachment.probes))
        self.monitor.drain.pipeline.set_counter_costs(
            costs_of(self.monitor.attachment.probes, self.monitor.compensation)
        )
        index = next(c.index for c in session.threads.counts() if c.tid == self.talker.pid)
        assert session.ask(lib.NFP_COMMAND_COUNT, index, self.count, pages) == 0
        return self

    def shapes(self) -> set[int]:
        """Templates that are calibrated."""
        return {probe.request.template for probe in self.monitor.attachment.probes}

    def compare(self, truth: Truth) -> set[str]:
        """Every call that was counted, with the truth. Returns the functions of which some were."""
        columns, names = self.keep.columns(), self.monitor.attachment.names_by_id()
        rows = counters_by_call(columns)
        compared = set()
        for probe in self.monitor.attachment.probes:
            name = names[probe.id]
            chosen = find_calls(columns, probe.id)[len(truth[name]) :]
            assert len(chosen) == ROUNDS * len(truth[name])
            ends_early = name == "hand_on" and probe.request.plan.strategy == RELOCATED_BODY
            for row, true in zip(rows[chosen], truth[name] * ROUNDS, strict=True):
                if row["flags"] & CountersFlag.VALID:
                    compared.add(name)
                    whole = true[2:] if ends_early else true[:2]  # a relocated body ends at its tail jump
                    assert row["inclusive"].tolist() == self.of_counters(whole), name
                if row["flags"] & CountersFlag.SELF_VALID and self.knows_all_inside:
                    assert row["self"].tolist() == self.of_counters(true[2:]), name
        return compared

    def of_counters(self, counts: tuple[int, ...]) -> list[int]:
        """Instructions and branches in turn."""
        return [counts[i % 2] if i < self.count else 0 for i in range(6)]

    @property
    def knows_all_inside(self) -> bool:
        """Whether what every call does alone is known."""
        return all(probe.request.plan.strategy != ENTRY_ONLY for probe in self.monitor.attachment.probes)


STRATEGIES: list[tuple[dict[str, str | None], int]] = [
    ({"": "relocated", "rand_r": "got"}, 2),
    ({"": "in-stack", "many": "copied", "rand_r": "got"}, 6),
    ({"": None}, 1),
]


@pytest.mark.parametrize(("strategies", "count"), STRATEGIES)
def test_instructions_are_exact(talker: Talker, strategies: dict[str, str | None], count: int) -> None:
    """Nested calls, loops, recursion, tail jumps, several ways out: to the instruction, and to the branch."""
    truth = read_truth(talker)
    with Stepped(talker, truth, strategies, count) as stepped:
        assert talker.ask(f"run {ROUNDS}") == "done"
    stepped.assert_exact()
    assert {"loop", "many", "early", "rand_r"} <= stepped.compare(truth) <= set(truth)
    assert len(stepped.monitor.attachment.probes) == len(truth)


def test_marks_inside_calls(talker: Talker) -> None:
    """Functions of which only the entry is measured count nothing, and are taken off those around them."""
    truth = read_truth(talker)
    with Stepped(talker, truth, {"": "relocated", "loop": "entry", "rand_r": "entry"}, 2) as stepped:
        assert talker.ask(f"run {ROUNDS}") == "done"
    compared = stepped.compare(truth)
    assert {"many", "framed"} <= compared
    assert not {"loop", "rand_r"} & compared


class AllShapes(Stepped):
    """Every template is calibrated."""

    def shapes(self) -> set[int]:
        """See Stepped."""
        return set(SHAPES)


def test_every_template(talker: Talker) -> None:
    with AllShapes(talker, ["loop"], {"": "in-stack"}, 1) as stepped:
        found = stepped.monitor.compensation.by_shape
    counts = {shape: (cost.inside[0], cost.whole[0]) for shape, cost in found.items()}
    assert set(counts) == set(SHAPES)
    assert stepped.monitor.compensation.jump == (1,)
    for words in (4, 8, 16, 32, 64):  # one push for each word
        more = words // 2
        fewer, shape = counts[COPY_SHAPES[words // 2]], COPY_SHAPES[words]
        assert counts[shape] == (fewer[0] + more, fewer[1] + more)
    assert all(0 < inside < whole for shape, (inside, whole) in counts.items() if shape != lib.NFP_SHAPE_MARK)
    assert counts[lib.NFP_SHAPE_MARK][0] == 0
    for plain, value in (
        (lib.NFP_SHAPE_CALL, lib.NFP_SHAPE_CALL_VALUE),
        (lib.NFP_SHAPE_ENTER, lib.NFP_SHAPE_ENTER_VALUE),
    ):
        assert counts[value][0] > counts[plain][0]
