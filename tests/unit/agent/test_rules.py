# SPDX-License-Identifier: Apache-2.0
"""The agent's file: what it says, and that everything that is wrong in it is named; what rules match."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_nfprobe.agent.agent import TOLD_MAX, Agent, Strangers
from otel_nfprobe.agent.processes import Process, find_container, find_unit, read_process
from otel_nfprobe.agent.rules import Configuration, Rule, read_configuration
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.agent import check_attach_words

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/agent/agent.yaml"
CONTAINER = "0123456789abcdef" * 4
PROCESS = Process(
    7, 99, "vpp_main", "vpp", f"/system.slice/docker-{CONTAINER}.scope", f"docker-{CONTAINER}.scope", CONTAINER
)


def accept(words: Sequence[str]) -> None:
    assert words


def test_the_example_is_understood() -> None:
    configuration = read_configuration(str(EXAMPLE), check_attach_words)
    assert [rule.name for rule in configuration.rules] == ["vpp", "switch", "upf"]
    assert configuration.listen == ("127.0.0.1", 9465)
    vpp = configuration.rules[0]
    assert list(vpp.options)[:2] == ["--max-share-of-core", "3%"]
    assert vpp.environment["OTEL_METRIC_EXPORT_INTERVAL"] == "10000"
    assert "--max-share-of-core" in configuration.rules[1].options


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "not YAML"),
        ("- a", "the file is not a mapping"),
        ("rules: []", "there are no rules"),
        ("rule: []", "'rule', which is none of rules, look, listen, max"),
        ("rules: [{match: {}}]", "needs at least one of process"),
        ("rules: [{match: {name: x}}]", "'name', which is none of process"),
        ("rules: [{match: {process: 7}}]", "each a pattern"),
        ("rules: [{match: {process: a}, options: [x]}]", "options of rule 1 is not a mapping"),
        ("rules: [{match: {process: a}, options: {slowerthan: 5us}}]", "--slowerthan"),
        ("rules: [{match: {process: a}, options: {slower-than: fast}}]", "slower-than"),
        ("rules: [{match: {process: a}, options: {json: true}}]", "must not set json"),
        ("rules: [{match: {process: a}, name: x}, {match: {process: b}, name: x}]", "two rules are called 'x'"),
        (
            "rules: [{match: {process: a}, user: nobody-knows-me}]",
            "'nobody-knows-me', who does not exist on this machine",
        ),
        ("rules: [{match: {process: a}, user: -1}]", "user -1"),
        ("rules: [{match: {process: a}, user: [root, {}]}]", "user {}"),
        ("{rules: [{match: {process: a}}], max-sessions: 0}", "max-sessions is 0"),
        ("{rules: [{match: {process: a}}], starts-per-minute: many}", "starts-per-minute is 'many'"),
        ("{rules: [{match: {process: a}}], look: 0}", "look is 0"),
        ("{rules: [{match: {process: a}}], listen: here}", "HOST"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_configuration(str(file), check_attach_words)
    assert sentence in raised.value.sentence
    assert str(file) in raised.value.sentence or "slower" in sentence


def test_options_become_words(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("rules: [{match: {process: a}, options: {functions: [x, y], no-stop: true, correlate: false}}]")
    (rule,) = read_configuration(str(file), accept).rules
    assert rule.options == ["--max-share-of-core", "5%", "--functions", "x", "--functions", "y", "--no-stop"]


def test_all_patterns_must_match() -> None:
    assert Rule("r", {"process": "vpp"}).matches(PROCESS)
    assert Rule("r", {"process": "vpp_m*"}).matches(PROCESS)
    assert Rule("r", {"container": CONTAINER[:12], "unit": "docker-*"}).matches(PROCESS)
    assert Rule("r", {"cgroup": "/system.slice/*"}).matches(PROCESS)
    assert not Rule("r", {"process": "vpp", "unit": "vpp.service"}).matches(PROCESS)
    assert not Rule("r", {"container": "*"}).matches(replace(PROCESS, container=""))


def test_a_process_is_read_from_proc() -> None:
    mine = read_process(os.getpid())
    assert mine is not None
    assert mine.executable == os.path.basename(os.readlink("/proc/self/exe"))
    assert mine == read_process(os.getpid())
    assert mine.path == os.readlink("/proc/self/exe")
    assert mine.users == set(os.getresuid())
    assert read_process(2**22 + 1) is None


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("/system.slice/vpp.service", "vpp.service"),
        ("/system.slice/system-vpp.slice/vpp@a.service", "vpp@a.service"),
        ("/system.slice/vpp.service/worker.service", "vpp.service"),
        (f"/system.slice/docker-{CONTAINER}.scope/system.slice/vpp.service", f"docker-{CONTAINER}.scope"),
        ("/machine.slice/machine-a.scope/payload", "machine-a.scope"),
        ("/../../nf.slice/vpp.service", "vpp.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/vpp.service", ""),
        ("/user.slice/user-1000.slice/session-3.scope", ""),
        (f"/kubepods/pod1/{CONTAINER}/system.slice/vpp.service", ""),
        ("/vpp.service", "vpp.service"),
        ("/", ""),
    ],
)
def test_only_units_of_the_system_count(cgroup: str, unit: str) -> None:
    assert find_unit(cgroup) == unit


def test_a_container_is_what_its_runtime_named() -> None:
    other = "f" * 64
    for name in (CONTAINER, f"docker-{CONTAINER}.scope", f"cri-containerd-{CONTAINER}.scope", f"libpod-{CONTAINER}"):
        assert find_container(f"/a.slice/{name}/docker-{other}.scope") == CONTAINER
    assert find_container(f"/a.slice/{CONTAINER}0/x{CONTAINER}.service") == ""


def rule_of(tmp_path: Path, text: str) -> Rule:
    file = tmp_path / "agent.yaml"
    file.write_text(f"rules: [{text}]")
    (rule,) = read_configuration(str(file), accept).rules
    return rule


def test_whose_processes_a_rule_takes(tmp_path: Path) -> None:
    eve, mixed = replace(PROCESS, users=frozenset({1000})), replace(PROCESS, users=frozenset({0, 1000}))
    by_name = rule_of(tmp_path, "{match: {process: vpp}}")
    assert by_name.takes(PROCESS)
    assert not by_name.takes(eve)
    assert not by_name.takes(mixed)  # a set-user-id program that eve has started
    for match in ("unit: vpp.service", "unit: vpp@*.service"):
        assert rule_of(tmp_path, f"{{match: {{{match}}}}}").takes(eve)
    for match in ("unit: '*'", "unit: '*.service'", "container: '*'", "cgroup: '*/vpp.service'"):
        assert not rule_of(tmp_path, f"{{match: {{{match}}}}}").takes(eve)
    assert not rule_of(tmp_path, "{match: {unit: vpp.service}, user: root}").takes(eve)
    assert rule_of(tmp_path, "{match: {process: vpp}, user: any}").takes(eve)
    assert rule_of(tmp_path, "{match: {process: vpp}, user: [root, 1000]}").takes(mixed)
    assert not rule_of(tmp_path, "{match: {process: vpp}, user: 1000}").takes(PROCESS)


def test_a_stranger_is_told_of_once_and_nobody_fills_the_log() -> None:
    said: list[str] = []
    strangers = Strangers(said.append)
    rules = [Rule("switch", {"process": "ovs-vswitchd"})]
    eve = replace(PROCESS, name="ovs-vswitchd", executable="sh\x1b[2J", users=frozenset({12345}))
    for _ in range(3):
        strangers.tell(rules, [eve, PROCESS])
    assert len(said) == 1
    assert "switch: process 7" in said[0]
    assert "12345" in said[0]
    assert said[0].isprintable()
    strangers.tell(rules, [replace(eve, pid=pid) for pid in range(100, 1100)])
    assert len(said) == TOLD_MAX + 1
    strangers.tell([*rules, Rule("all", {"process": "*"}, users=None)], [replace(eve, pid=5000)])
    assert len(said) == TOLD_MAX + 1


class NeverEnding:
    """A session that only goes on."""

    def __init__(self, process: Process, rule: Rule, _: object) -> None:
        self.process, self.rule = process, rule
        self.status: int | None = None
        self.started_at = float(process.pid)


class EndsWhenAsked(NeverEnding):
    """And then has ended in order."""

    was_refused, was_too_dear, summary = False, False, None

    def end(self) -> None:
        self.status = 0


class FailsAtOnce:
    """A session that cannot begin."""

    started_at, status, was_refused, was_too_dear, summary = 0.0, 1, False, False, None

    def __init__(self, process: Process, rule: Rule, _: object) -> None:
        self.process, self.rule = process, rule


def test_who_starts_again_and_again_keeps_only_himself_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of his processes is another one at each look: no pause holds them."""
    flapping, good = frozenset({1000}), replace(PROCESS, pid=99)
    begun: list[int] = []
    now_s = [0.0]

    class Session(FailsAtOnce):
        def __init__(self, process: Process, rule: Rule, _: object) -> None:
            super().__init__(process, rule, _)
            begun.append(process.pid)

    def find() -> Iterator[Process]:
        others = [replace(PROCESS, pid=pid, executable=f"vpp{now_s[0]}", users=flapping) for pid in range(10)]
        return iter([*others, good] if now_s[0] > 100 else others)

    monkeypatch.setattr("otel_nfprobe.agent.agent.find_processes", find)
    monkeypatch.setattr("otel_nfprobe.agent.agent.Attached", Session)
    monkeypatch.setattr("otel_nfprobe.agent.agent.time.monotonic", lambda: now_s[0])
    agent = Agent(Configuration([Rule("all", {"process": "vpp*"}, users=None)], starts_per_minute=6), lambda _: None)
    for now_s[0] in range(0, 200, 2):
        agent.look()
    assert len(begun) <= 6 * (200 // 60 + 1)
    assert good.pid in begun


def test_sessions_and_their_starts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    processes = [replace(PROCESS, pid=pid) for pid in range(100)]
    monkeypatch.setattr("otel_nfprobe.agent.agent.find_processes", lambda: iter(processes))
    monkeypatch.setattr("otel_nfprobe.agent.agent.Attached", NeverEnding)
    rules = [Rule("all", {"process": "vpp"})]
    agent = Agent(Configuration(rules, sessions_max=7, starts_per_minute=5), said.append)
    agent.look()
    agent.look()
    counts = agent.counts()
    assert (counts.sessions["all"], counts.waiting["all"]) == (5, 95)
    assert len(said) == 1
    assert "max-sessions" in said[0]
    monkeypatch.setattr("otel_nfprobe.agent.agent.MINUTE_S", 0.0)
    agent.look()
    assert agent.counts().sessions["all"] == 7


def look_often(agent: Agent, monkeypatch: pytest.MonkeyPatch, processes: list[Process]) -> None:
    monkeypatch.setattr("otel_nfprobe.agent.agent.find_processes", lambda: iter(processes))
    monkeypatch.setattr("otel_nfprobe.agent.agent.Attached", EndsWhenAsked)
    for _ in range(20):
        agent.look()


def users_of(agent: Agent) -> list[int]:
    return sorted(min(attached.process.users) for attached in agent._attached.values())


def of_user(user: int, pids: range) -> list[Process]:
    return [replace(PROCESS, pid=pid, users=frozenset({user})) for pid in pids]


def test_one_user_does_not_keep_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one rule users share alike, whoever came first; who has one of his own is not asked to give it away."""
    said: list[str] = []
    agent = Agent(
        Configuration([Rule("all", {"process": "*"}, users=None)], sessions_max=4, starts_per_minute=1000), said.append
    )
    eve = of_user(1000, range(100, 150))
    look_often(agent, monkeypatch, eve)
    assert users_of(agent) == [1000] * 4
    look_often(agent, monkeypatch, [*eve, *of_user(7, range(200, 201))])
    assert users_of(agent) == [7, 1000, 1000, 1000]
    look_often(agent, monkeypatch, [*eve, *of_user(7, range(200, 250))])
    assert users_of(agent) == [7, 7, 1000, 1000]
    assert "ends for vpp 200 (all) (max-sessions)" in "".join(said)
    told = len(said)
    look_often(agent, monkeypatch, [*eve, *of_user(7, range(200, 250))])
    assert len(said) == told  # nobody's sessions come and go


def test_rules_that_stand_earlier_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may match a later one gets none of their sessions, and keeps none from them."""
    rules = [Rule("own", {"process": "*"}), Rule("all", {"process": "*"}, users=None)]
    agent = Agent(Configuration(rules, sessions_max=4, starts_per_minute=1000), lambda _: None)
    eve, root = of_user(1000, range(100, 150)), of_user(0, range(200, 203))
    look_often(agent, monkeypatch, eve)
    assert users_of(agent) == [1000] * 4
    look_often(agent, monkeypatch, [*eve, *root])
    assert users_of(agent) == [0, 0, 0, 1000]
    look_often(agent, monkeypatch, [*eve, *of_user(0, range(200, 250))])
    assert users_of(agent) == [0] * 4
    look_often(agent, monkeypatch, [*eve, *of_user(0, range(200, 250)), *of_user(1001, range(300, 350))])
    assert users_of(agent) == [0] * 4


def test_no_session_ends_for_one_that_may_not_begin_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [Rule("all", {"process": "*"}, users=None)]
    agent = Agent(Configuration(rules, sessions_max=4, starts_per_minute=4), lambda _: None)
    eve = of_user(1000, range(100, 150))
    look_often(agent, monkeypatch, eve)
    look_often(agent, monkeypatch, [*eve, *of_user(7, range(200, 250))])
    assert users_of(agent) == [1000] * 4
