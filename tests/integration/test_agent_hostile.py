# SPDX-License-Identifier: Apache-2.0
"""An agent whose rules take hostile processes and a good one: the good one is measured as if it were alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agents import PATIENCE_S, RunningAgent
from tests.support.hostile import PEAK_BYTES, Bait, assert_lives, has_probes
from tests.support.metrics_receiver import MetricsReceiver
from tests.support.probed import Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

NAME = f"hostile-{os.getpid()}x"  # of a program that nobody else runs
# Who is good runs as root, who is hostile has become nobody.
RULES = """
listen: 127.0.0.1:0
look: 0.2
rules:
  - name: good
    match: {{process: {name}}}
    options: {{adapter: none, functions: "hostile-*:step", ring-size: 64KiB, endpoint: "http://127.0.0.1:{port}"}}
    environment: {{OTEL_METRIC_EXPORT_INTERVAL: "300"}}
  - name: bad
    match: {{process: {name}}}
    user: nobody
    options: {{adapter: none, functions: "hostile-*:step", ring-size: 64KiB, counters: task-clock}}
"""
FAILING = {
    "library-read-only": "is not the memory file for the probe library",
    "library-for-ever": "asks for the probe library more than once",
    "load-copy": "has loaded is not the probe library",
    "session-read-only": "The session of process",
    "session-unsealed": "The session of process",
    "session-full-tables": "the probe table of this target is full",
    "arena-overlapping": "The arena table in process",
}
GOING_ON = ("session-absurd-counts", "counters-device")  # their sessions begin
CALLS = 100
PAUSE_S = 5.0  # of the agent, before it tries again; doubled each time


class Watched(RunningAgent):
    """An agent and the most memory that it and its sessions had, as far as somebody looked."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.peaks: dict[int, int] = {}

    def look(self) -> None:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            peak = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), "0")
            self.peaks[pid] = max(self.peaks.get(pid, 0), int(peak) << 10)

    def lines(self, talker: Talker, words: str) -> list[str]:
        return [line for line in list(self.said) if f" {talker.pid}: " in line and words in line]

    def tells(self, talker: Talker, words: str) -> bool:
        def told() -> bool:
            self.look()
            return bool(self.lines(talker, words))

        return wait_until(told, PATIENCE_S)


@pytest.fixture
def agent(metrics_receiver: MetricsReceiver, tmp_path: Path) -> Iterator[Watched]:
    file = tmp_path / "agent.yaml"
    file.write_text(RULES.format(port=metrics_receiver.port, name=NAME))
    agent = Watched(file)
    yield agent
    agent.process.terminate()
    agent.process.wait(PATIENCE_S)


def receives(metrics_receiver: MetricsReceiver, calls: int) -> bool:
    """Waits until it has been told of all calls, and of no other."""

    def count() -> int:
        found = metrics_receiver.metrics().get("nf.function.duration") if metrics_receiver.exports else None
        return sum(point.count for point in found.exponential_histogram.data_points) if found else 0

    return wait_until(lambda: count() == calls, PATIENCE_S)


def attempts_max(seconds: float) -> int:
    """How often a process may have been tried in this time."""
    attempts, pause_s = 1, PAUSE_S
    while seconds >= pause_s:
        seconds, pause_s, attempts = seconds - pause_s, 2 * pause_s, attempts + 1
    return attempts


@pytest.mark.timeout(600)  # sessions wait for their targets by the clock, on a busy machine for minutes in all
def test_hostile_processes_beside_a_good_one(
    agent: Watched, metrics_receiver: MetricsReceiver, start_hostile: Callable[..., Talker], bait: Bait
) -> None:
    good = start_hostile("behaves", turned=False, name=NAME)
    assert agent.tells(good, "attached to")
    called = 0
    since: dict[str, float] = {}
    talkers: dict[str, Talker] = {}
    for mode in (*FAILING, *GOING_ON):
        since[mode] = time.monotonic()  # an attempt may be made as soon as it runs
        talkers[mode] = start_hostile(mode, name=NAME, as_nobody=True)  # a look at root's would find a good one
        assert agent.tells(talkers[mode], FAILING.get(mode, "attached to")), "".join(agent.said)
        assert good.ask(f"step {CALLS}") == "right"
        called += CALLS
        assert receives(metrics_receiver, called), mode
        assert agent.ask("/healthz")[0] == 200
        bait.assert_untouched()
    assert agent.shows('nf_agent_sessions{rule="good"}', 1.0)

    agent.process.terminate()
    assert agent.process.wait(PATIENCE_S) == 0
    for mode, words in FAILING.items():
        # One for each attempt; who is tried again while he still awaits an answer says another one.
        sentences = [line for line in agent.lines(talkers[mode], "") if ": next: " not in line]
        assert any(words in line for line in sentences)
        assert len(sentences) <= attempts_max(time.monotonic() - since[mode]), (mode, sentences)
    assert not any(word in line for line in agent.said for word in ("Traceback", "unexpected"))
    assert max(agent.peaks.values()) < PEAK_BYTES, agent.peaks
    bait.assert_untouched()
    assert good.ask(f"step {CALLS}") == "right"
    assert not has_probes(good.pid)
    for talker in talkers.values():
        assert_lives(talker)
    assert len(agent.lines(good, "attached to")) == 1
