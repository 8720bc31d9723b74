# SPDX-License-Identifier: Apache-2.0
"""`--follow-forks`: what forked children do is counted exactly, each for itself, and their code is restored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.monitor import forks
from otel_nfprobe.target.target import Target
from tests.support.forking import OWN, PATIENCE_S, Following, code_of, fork, is_as_before
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.target("forks"), pytest.mark.shared]


@pytest.mark.parametrize(
    ("globs", "strategy", "name"),
    [
        (OWN, None, "step"),
        (OWN, "relocated", "step"),
        ([*OWN, "libc.so*:getppid"], "got", "getppid"),
    ],
    ids=["default", "relocated body", "GOT slot"],
)
def test_children_and_grandchildren(talker: Talker, globs: list[str], strategy: str | None, name: str) -> None:
    before = code_of(talker.pid)
    with Following(talker.pid, globs, strategy=strategy) as probed:
        children = fork(talker, "fork 3")
        probed.wait_for(children)
        assert talker.ask("go 1000") == "right"
        grandchildren = fork(talker, "grow")
        probed.wait_for(children + grandchildren)
        assert talker.ask("go 500") == "right"
    probed.assert_exact()
    assert probed.calls.get(name, 0) == 0
    assert (sorted(probed.children), probed.forks.missed) == (sorted(children + grandchildren), 0)
    for number, pid in enumerate(children + grandchildren, start=1):
        child = probed.children[pid]
        is_first = pid in children
        expected = {name: 500 + number + (1000 + number) * is_first}
        if name == "step":
            expected["mixed"] = 500 + 1000 * is_first
        assert child["calls"] == expected
        assert (child["exact"], child["not_restored"], child["target_ended"]) == ((0, 0, 0, 0), [], False)
        assert is_as_before(pid, before)
    assert {child["parent"] for child in probed.children.values()} == {talker.pid, *children}
    assert talker.ask("go 10") == talker.ask("end") == "right"


def test_counters_of_children(talker: Talker) -> None:
    """Counters of the kernel that no processor counts: each process has its own pages, and none takes another's."""
    probed = Following(talker.pid, OWN)
    probed.monitor.counters = choose_counters("task-clock,page-faults").counters

    def pages(pid: int) -> int:
        return Path(f"/proc/{pid}/maps").read_text().count("[perf_event]")

    with probed:
        children = fork(talker, "fork 2")
        probed.wait_for(children)
        for pid in children:
            assert wait_until(lambda pid=pid: talker.ask("go 100") == "right" and pages(pid) >= 2, PATIENCE_S)
        assert fork(talker, "grow")
        assert talker.ask("go 100") == "right"
        # A thread that lost its processor while it worked may have been given pages, too, until it is seen to end.
        assert wait_until(lambda: [pages(pid) for pid in children] == [2, 2], PATIENCE_S)
    probed.assert_exact()
    assert all(probed.children[pid]["exact"] == (0, 0, 0, 0) for pid in children)
    assert wait_until(lambda: [pages(pid) for pid in children] == [1, 1])  # so that rdpmc stays allowed
    assert talker.ask("end") == "right"


def test_other_programs_and_short_lives(talker: Talker) -> None:
    with Following(talker.pid, [*OWN, "libc.so*:*"]) as probed:
        others = fork(talker, "exec 3")
        assert talker.ask("short 30") == "right"
        for pid in others:
            assert wait_until(lambda pid=pid: os.readlink(f"/proc/{pid}/exe").endswith("sleep"))
        children = fork(talker, "fork 1")
        probed.wait_for(children)
        assert talker.ask("go 100") == "right"
    assert probed.not_restored == []
    assert probed.children[children[0]]["calls"]["step"] == 101
    for pid in others:  # one that came to its exec late may have been measured until then
        assert pid not in probed.children or probed.children[pid]["target_ended"]
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
        assert not any("nfprobe" in mapping.path for mapping in Target(pid).maps())
    assert talker.ask("end") == "right"


def test_killed_child(talker: Talker) -> None:
    with Following(talker.pid, OWN) as probed:
        children = fork(talker, "fork 2")
        probed.wait_for(children)
        assert talker.ask("go 1000") == "right"
        os.kill(children[0], signal.SIGKILL)
        assert talker.ask("wait") == "right"
        probed.wait_for(children[1:])
        assert talker.ask("go 1000") == "right"
    killed, other = (probed.children[pid] for pid in children)
    assert (killed["target_ended"], killed["not_restored"]) == (True, [])
    assert killed["calls"] == {"step": 1001, "mixed": 1000}
    assert (other["calls"], other["exact"]) == ({"step": 2004, "mixed": 2000}, (0, 0, 0, 0))
    assert talker.ask("end") == "right"


def test_more_children_than_can_be_measured(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is taken when one ends; who never had a turn is counted."""
    monkeypatch.setattr(forks, "CHILDREN_MAX", 1)
    with Following(talker.pid, OWN) as probed:
        fork(talker, "fork 3")
        assert wait_until(lambda: len(probed.forks.measured) == 1, PATIENCE_S)
        (first,) = probed.forks.measured
        assert wait_until(lambda: any("others wait" in sentence for sentence in probed.said))
        os.kill(first, signal.SIGKILL)
        assert talker.ask("wait") == "right"
        assert wait_until(lambda: len(probed.forks.measured) == 1 and probed.forks.measured != [first], PATIENCE_S)
    assert (len(probed.children), probed.forks.missed) == (2, 1)
    assert any("1 forked children were not measured" in sentence for sentence in probed.said)
    assert talker.ask("end") == "right"


def test_silent_when_not_followed(talker: Talker) -> None:
    """A session of its own later on makes nothing of the probes that a child has kept."""
    with Probed(talker.pid, OWN) as probed:
        (child,) = fork(talker, "fork 1")
        assert talker.ask("go 200") == "right"
    probed.assert_exact()
    assert (probed.calls, probed.threads) == ({}, [])
    with Probed(child, ["libc.so*:getppid"], strategy="got") as probed:
        assert talker.ask("go 300") == "right"
    probed.assert_exact()
    assert probed.calls == {"getppid": 301}
    assert talker.ask("end") == "right"
