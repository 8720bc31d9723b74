# SPDX-License-Identifier: Apache-2.0
"""`nfprobe doctor --fix-hints` on machines and users that are made up."""

from __future__ import annotations

import json

import pytest

from otel_nfprobe.cli import doctor
from otel_nfprobe.cli.doctor import CAPABILITIES, WANTED, describe_machine, find_hints
from otel_nfprobe.cli.main import main

ALL = sum(1 << bit for bit in CAPABILITIES.values())


def hints(monkeypatch: pytest.MonkeyPatch, held: int, **advised: tuple[str, str]) -> dict[str, str]:
    """What is said of a machine where these facts, by name with underscores, are (value, advice)."""
    monkeypatch.setattr(doctor, "_effective_capabilities", lambda: held)
    machine = {name: {"value": "yes", "advice": ""} for name in describe_machine()}
    for name, (value, advice) in advised.items():
        machine[name.replace("_", " ")] = {"value": value, "advice": advice}
    return {hint["allows"]: hint["do"] for hint in find_hints(machine)}


def test_nothing_where_all_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hints(monkeypatch, ALL) == {}


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    memfd = ("refused (Permission denied)", "sysctl vm.memfd_noexec=0 (it is 2)")
    assert hints(monkeypatch, ALL, executable_memfd=memfd) == {"executable memfd": "sudo sysctl vm.memfd_noexec=0"}
    scope = hints(monkeypatch, ALL, ptrace_scope=("1: own children only", "sudo nfprobe ..."))
    assert scope == {"ptrace scope": "sudo sysctl kernel.yama.ptrace_scope=0"}
    assert not hints(monkeypatch, ALL, ptrace_scope=("3: nobody", "attaching is impossible until a reboot"))
    forbidden = ("none: this user may not", "sysctl kernel.perf_event_paranoid=2")
    found = hints(monkeypatch, ALL, performance_counters=forbidden)
    assert found == {"performance counters": "sudo sysctl kernel.perf_event_paranoid=2"}
    missing = ("none: this virtual machine's hypervisor exposes none", "--counters software")
    assert not hints(monkeypatch, ALL, performance_counters=missing)
    symbols = hints(monkeypatch, ALL, kernel_symbols=("no", "in which system calls threads sleep is not recorded"))
    assert symbols == {"kernel symbols": "sudo sysctl kernel.kptr_restrict=0"}


def test_tasks_of_cpus_take_a_setting_only_without_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_read", lambda path: "2")
    tasks = ("no", "of tasks that run instead, the first is named")
    assert "tasks of whole CPUs" not in hints(monkeypatch, ALL, tasks_of_whole_CPUs=tasks)
    found = hints(monkeypatch, 0, tasks_of_whole_CPUs=tasks)
    assert found["tasks of whole CPUs"] == "sudo sysctl kernel.perf_event_paranoid=-1"
    monkeypatch.setattr(doctor, "_read", lambda path: "-1")
    assert "tasks of whole CPUs" not in hints(monkeypatch, 0, tasks_of_whole_CPUs=tasks)


def test_capabilities_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    some = ALL & ~(1 << CAPABILITIES["CAP_SYS_PTRACE"]) & ~(1 << CAPABILITIES["CAP_PERFMON"])
    command, container, kubernetes = hints(monkeypatch, some).values()
    assert "--inh-caps=+sys_ptrace,+perfmon --ambient-caps=+sys_ptrace,+perfmon nfprobe" in command
    assert container == "--cap-add=SYS_PTRACE --cap-add=PERFMON"
    assert kubernetes.splitlines()[-1] == "    add: [SYS_PTRACE, PERFMON]"


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_effective_capabilities", lambda: 0)
    assert main(["doctor", "--fix-hints"]) == 0
    text = capsys.readouterr().out
    assert "to allow more" in text
    assert f"--cap-add={' --cap-add='.join(name.removeprefix('CAP_') for name in WANTED)}" in text
    assert main(["doctor", "--fix-hints", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["fix_hints"]) >= 3
    assert main(["doctor"]) == 0
    assert "to allow more" not in capsys.readouterr().out
