# SPDX-License-Identifier: Apache-2.0
"""The agent's file: what it says, and that everything that is wrong in it is named; what rules match."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_nfprobe.agent.processes import Process, read_process
from otel_nfprobe.agent.rules import Rule, read_configuration
from otel_nfprobe.cli.agent import check_attach_words
from otel_nfprobe.errors import UsageError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/agent/agent.yaml"
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
        ("[", "no YAML"),
        ("- a", "the file is no mapping"),
        ("rules: []", "there are no rules"),
        ("rule: []", "'rule', which is none of rules, look, listen"),
        ("rules: [{match: {}}]", "needs at least one of process"),
        ("rules: [{match: {name: x}}]", "'name', which is none of process"),
        ("rules: [{match: {process: 7}}]", "each a pattern"),
        ("rules: [{match: {process: a}, options: [x]}]", "options of rule 1 is no mapping"),
        ("rules: [{match: {process: a}, options: {slowerthan: 5us}}]", "--slowerthan"),
        ("rules: [{match: {process: a}, options: {slower-than: fast}}]", "slower-than"),
        ("rules: [{match: {process: a}, options: {json: true}}]", "must not set json"),
        ("rules: [{match: {process: a}, name: x}, {match: {process: b}, name: x}]", "two rules are called 'x'"),
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
    assert read_process(2**22 + 1) is None
