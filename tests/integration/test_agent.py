# SPDX-License-Identifier: Apache-2.0
"""The agent measures what matches, follows restarts, reads its file anew, and leaves everything as it was."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.target.target import Target
from tests.support.agents import PATIENCE_S, RunningAgent
from tests.support.probed import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

NOBODY = 65534
RULES = """
listen: 127.0.0.1:0
look: 0.2
rules:
  - name: long
    match: {{process: {name}}}
    options: {{adapter: none, functions: "libc.so*:mem*", service: {service}}}
  - {{name: static, match: {{process: {name}-static}}}}
"""


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Of a copy of Debian's sleep that nobody else runs, at most 15 letters as a comm is; it is in tmp_path."""
    name = f"sl{os.getpid()}x"
    shutil.copy("/usr/bin/sleep", tmp_path / name)
    return name


@pytest.fixture
def file(name: str, tmp_path: Path) -> Path:
    file = tmp_path / "agent.yaml"
    file.write_text(RULES.format(name=name, service="one"))
    return file


@pytest.fixture
def agent(file: Path) -> Iterator[RunningAgent]:
    agent = RunningAgent(file)
    yield agent
    agent.process.terminate()
    agent.process.wait(PATIENCE_S)


def start(spawn: Callable[..., subprocess.Popen[str]], program: Path) -> subprocess.Popen[str]:
    process = spawn(program, "600")
    code = re.compile(r" r-xp .*/libc\.so")  # the last part of a library that is mapped is what is compared
    assert wait_until(lambda: code.search(Path(f"/proc/{process.pid}/maps").read_text()) is not None)
    return process


def text_of_libc(pid: int) -> list[str]:
    """Digests of its code as it stands in the process."""
    target = Target(pid)
    return list(text_digests(target, [module for module in target.modules() if "libc.so" in module.path]).values())


def test_life_of_an_agent(
    agent: RunningAgent,
    file: Path,
    name: str,
    tmp_path: Path,
    spawn: Callable[..., subprocess.Popen[str]],
    nfprobe: Any,
) -> None:
    assert wait_until(lambda: agent.ask("/readyz") == (200, "ok\n"), PATIENCE_S)
    assert agent.ask("/healthz") == (200, "ok\n")
    assert agent.ask("/")[0] == 404
    first = start(spawn, tmp_path / name)
    assert agent.has_said(f"long: {name} {first.pid}: attached to {first.pid}")
    assert agent.shows('nf_agent_sessions{rule="long"}', 1.0)
    first.kill()
    first.wait()
    second = start(spawn, tmp_path / name)
    assert agent.has_said(f"long: {name} {second.pid}: attached to {second.pid}")
    assert agent.shows('nf_agent_started_total{rule="long"}', 2.0)

    file.write_text("rules: nonsense")
    agent.process.send_signal(signal.SIGHUP)
    assert agent.has_said("The rules stay unchanged")
    assert nfprobe.run("status", second.pid).returncode == 0

    agent.said.clear()
    file.write_text(RULES.format(name=name, service="two"))
    agent.process.send_signal(signal.SIGHUP)
    assert agent.has_said("2 rules, 1 sessions ended")
    assert agent.has_said(f"long: {name} {second.pid}: attached to {second.pid}")

    agent.process.terminate()
    assert agent.process.wait(PATIENCE_S) == 0
    assert nfprobe.run("status", second.pid).returncode == 1
    assert second.poll() is None
    assert not any("records lost" in line for line in agent.said)  # the line a second that `attach` shows a person
    assert text_of_libc(second.pid) == text_of_libc(start(spawn, tmp_path / name).pid)


def test_what_cannot_be_probed_is_tried_once(
    agent: RunningAgent, name: str, tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    source = tmp_path / "waits.c"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    program = tmp_path / f"{name}-static"
    subprocess.run(["gcc", "-static", "-o", program, source], check=True)
    process = spawn(program)
    assert agent.has_said(f"static: {name}-static {process.pid}: .*static")
    assert agent.shows('nf_agent_refused_total{rule="static"}', 1.0)
    looks = agent.ask("/metrics")[1]
    assert 'nf_agent_started_total{rule="static"} 1.0' in looks


def test_who_only_calls_himself_so_is_left_alone(
    agent: RunningAgent, name: str, tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # that another user can look into
        os.chmod(folder, 0o755)
        shutil.copy(tmp_path / name, folder)
        words = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"{folder}/{name}", "600")
        stranger = spawn(*words)
        assert agent.has_said(f"long: process {stranger.pid}, named '{name}', is not attached to")
        first = start(spawn, tmp_path / name)
        assert agent.has_said(f"long: {name} {first.pid}: attached to {first.pid}")
    assert agent.shows('nf_agent_started_total{rule="long"}', 1.0)
    assert sum(re.search(rf"\b{stranger.pid}\b", line) is not None for line in agent.said) == 1
    assert "nfprobe" not in Path(f"/proc/{stranger.pid}/maps").read_text()
