# SPDX-License-Identifier: Apache-2.0
"""A process by its name: of running processes, found, not there, and several, with a terminal and without."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.process_argument import find_processes, parse_process

LONG_NAME = "nfprobe-test-sleeper"  # longer than the kernel's name of a thread
Start = Callable[[str], int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process whose program has this name."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(name: str) -> int:
        program = tmp_path / name
        if not program.exists():
            shutil.copy(shutil.which("sleep") or "", program)
        started.append(subprocess.Popen([program, "60"]))
        return started[-1].pid

    yield start_one
    for process in started:
        process.kill()
        process.wait()


def unique(name: str) -> str:
    """Tests run side by side."""
    return f"{name}{os.getpid()}"


def test_a_number_is_itself() -> None:
    assert parse_process("17") == 17
    assert parse_process("-1") == -1  # refused where it is used


@pytest.mark.parametrize("name", ["nfpt", LONG_NAME])
def test_the_only_process_of_a_name(start: Start, name: str) -> None:
    pid = start(unique(name))
    assert parse_process(unique(name)) == pid
    with pytest.raises(UsageError, match=f"No process is named {unique(name)}x"):
        parse_process(unique(name) + "x")


def test_beginnings_of_names_are_no_names(start: Start) -> None:
    start(unique(LONG_NAME))
    assert find_processes(unique(LONG_NAME)[:15]) != []  # that is its name for the kernel
    assert find_processes(unique(LONG_NAME)[:14]) == []


def test_none_of_several_is_guessed(start: Start) -> None:
    name = unique("nfpt-two")
    pids = sorted([start(name), start(name)])
    done = subprocess.run(
        [sys.executable, "-m", "otel_nfprobe", "status", name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"nfprobe: 2 processes are named {name}: {pids[0]} (")
    assert f", {pids[1]} (" in done.stderr
    assert f"ps -fp {pids[0]},{pids[1]}" in done.stderr


@pytest.mark.parametrize("answers", ["{1}\n", "no\n{1}\n"])
def test_a_person_is_asked_for_one_of_several(start: Start, answers: str) -> None:
    name = unique("nfpt-ask")
    pids = sorted([start(name), start(name)])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "otel_nfprobe", "status", "--json", name]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.write(ours, answers.format(*pids).encode())
        said, _ = process.communicate(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert f"{pids[0]}  " in shown
    assert "Which one, by its ID?" in shown
    assert process.returncode == 1  # no session
    assert said.count("\n") == 1
