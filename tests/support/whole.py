# SPDX-License-Identifier: Apache-2.0
"""Whole programs: all functions of some modules probed at once while they work, and what must be true of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.probes.analysis import IN_LIBRARY, IN_LINKER, FunctionPlan
from tests.support.probed import Probed

RING_BYTES = 128 << 20  # more than any of the work here makes, should the monitor not run at all
LADDER = "ladder"  # instead of the name of one strategy
EVERY_WAY = (*STRATEGIES, LADDER)
SHARE_MIN = 0.99
UNWRITABLE = "its trampoline could not be written"


@dataclass
class Round:
    """One attach, some work, one detach.

    Attributes:
        strategy: a name of STRATEGIES, or LADDER.
        plans: one for each function that is one.
        probed: how many of them got a probe, by strategy.
        refused: how many did not, by reason.
        answer: of the work.
        session: what was counted.
    """

    strategy: str
    plans: list[FunctionPlan]
    probed: Counter[str]
    refused: Counter[str]
    answer: str
    session: Probed

    @property
    def share(self) -> float:
        """Of the functions that got a probe."""
        return sum(self.probed.values()) / len(self.plans)

    @property
    def is_complete(self) -> bool:
        """Whether no record was lost."""
        return not any((*self.session.lost, *self.session.unregistered))

    def describe(self) -> str:
        """A line of the table."""
        ways = ", ".join(f"{way} {100 * count / len(self.plans):.2f} %" for way, count in self.probed.most_common())
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.refused.most_common(5))
        counts = self.session.counts
        return (
            f"{self.strategy:10}{len(self.plans):7} functions {100 * self.share:6.2f} %  ({ways}) "
            f"{counts.calls} calls, {counts.marked} marks, "
            f"{counts.unpaired_entries + counts.open} without an end; {reasons}"
        )


def probe_everything(pid: int, globs: Sequence[str], strategy: str, work: Callable[[], str]) -> Round:
    """All functions of the modules, by one strategy or the default ladder, while `work` is done.

    Whatever was done, the target is as it was and every record has its place.
    """
    forced = None if strategy == LADDER else strategy
    with Probed(pid, globs, strategy=forced, ring_bytes=RING_BYTES) as probed:
        answer = work()
    chosen = {plan.address: plan for plan in probed.choice.plans if _is_function(plan)}
    done = {probe.request.plan.address: probe.request.plan.strategy or "" for probe in probed.monitor.attachment.probes}
    refused = Counter(plan.reason or UNWRITABLE for address, plan in chosen.items() if address not in done)
    whole = Round(strategy, list(chosen.values()), Counter(done.values()), refused, answer, probed)
    print(whole.describe())
    assert_consistent(whole)
    return whole


def _is_function(plan: FunctionPlan) -> bool:
    return not plan.is_part and plan.reason not in (IN_LINKER, IN_LIBRARY)


def assert_consistent(whole: Round) -> None:
    """Entries are exits and calls that never return; nothing is left of the probes."""
    session, counts = whole.session, whole.session.counts
    assert session.not_restored == []
    assert (session.torn, counts.invalid, counts.stray_packets) == (0, 0, 0)
    if whole.is_complete:
        without_end = counts.unpaired_entries + counts.unpaired_exits + counts.open
        assert counts.records == 2 * counts.calls + without_end + counts.marked


def probe_each_way(
    pid: int,
    globs: Sequence[str],
    work: Callable[[], str],
    ways: Sequence[str] = EVERY_WAY,
    ends_calls: bool = False,
    begun_before: int = 0,
) -> list[Round]:
    """Rounds in one process, one for each way, with the results of the work always those of the first time.

    Args:
        ends_calls: the work leaves frames by exceptions or jumps, so some calls have no exit.
        begun_before: calls whose entry may fall between the patching of the code and the opening of the gates,
            in threads that wait for nothing of ours.
    """
    expected = work()
    rounds: list[Round] = []
    still_open = 0  # calls of earlier rounds that may end in a later one
    for way in ways:
        rounds.append(probe_everything(pid, globs, way, work))
        counts = rounds[-1].session.counts
        assert rounds[-1].answer == expected
        assert rounds[-1].is_complete, rounds[-1].describe()
        assert counts.unpaired_exits <= still_open + begun_before
        assert ends_calls or counts.unpaired_entries == 0
        still_open += counts.open
        assert work() == expected
    return rounds


def assert_covered(rounds: Sequence[Round], share: float = SHARE_MIN) -> None:
    """The ladder leaves next to nothing out."""
    for whole in rounds:
        if whole.strategy == LADDER:
            assert whole.share >= share, whole.describe()
