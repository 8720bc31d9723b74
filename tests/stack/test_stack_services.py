# SPDX-License-Identifier: Apache-2.0
"""examples/collector/build and stack: what they say when something is missing, and that they clean up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jaeger_client import JaegerClient
from tests.support.stack_services import EXAMPLES, PORT_VARIABLES, Jaeger, Stack, find_free_ports

pytestmark = pytest.mark.stack

TOOLS = (
    "bash",
    "cat",
    "cut",
    "dirname",
    "env",
    "find",
    "flock",
    "grep",
    "mkdir",
    "sha256sum",
    "sort",
    "xargs",
)


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*([sys.executable] if script == "stack" else []), str(EXAMPLES / script), *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_without_go_the_build_says_what_to_do(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    done = run("build", PATH=str(tools), NFPROBE_STACK_DIR=str(tmp_path / "stack"))
    assert done.returncode == 1
    assert "there is no go command" in done.stderr
    assert "next: install Go" in done.stderr


def test_what_is_built_is_not_built_again(stack: Stack) -> None:
    done = run("build", **stack.environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_binaries_up_says_what_to_do(tmp_path: Path) -> None:
    done = run("stack", "up", NFPROBE_STACK_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "next: examples/collector/build" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["start"], ["up", "tempo"]])
def test_usage(arguments: list[str]) -> None:
    done = run("stack", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_up_twice_and_down_twice(stack: Stack, tmp_path: Path) -> None:
    ports = dict(zip(PORT_VARIABLES, map(str, find_free_ports(len(PORT_VARIABLES))), strict=True))
    environment = {**stack.environment, **ports, "NFPROBE_STACK_RUN_DIR": str(tmp_path)}
    try:
        assert run("stack", "status", **environment).returncode == 1
        assert run("stack", "up", **environment).returncode == 0
        first = (tmp_path / "jaeger.pid").read_text()
        again = run("stack", "up", **environment)
        assert again.returncode == 0
        assert (tmp_path / "jaeger.pid").read_text() == first
        assert run("stack", "status", **environment).stdout == again.stdout
        assert JaegerClient(int(ports["NFPROBE_JAEGER_QUERY_PORT"])).find_services() == []
    finally:
        assert run("stack", "down", **environment).returncode == 0
    assert run("stack", "down", **environment).returncode == 0
    assert not Path(f"/proc/{first.strip()}/exe").exists()


def test_a_port_that_is_taken(stack: Stack, jaeger: Jaeger, tmp_path: Path) -> None:
    environment = {**stack.environment, "NFPROBE_STACK_RUN_DIR": str(tmp_path)}
    free = dict(zip(PORT_VARIABLES, map(str, find_free_ports(len(PORT_VARIABLES))), strict=True))
    environment["NFPROBE_JAEGER_HEALTH_PORT"] = free["NFPROBE_JAEGER_HEALTH_PORT"]
    done = run("stack", "up", "jaeger", **environment)
    assert done.returncode == 1
    assert "address already in use" in done.stderr
    # The other one goes on.
    assert jaeger.client.find_services() is not None
