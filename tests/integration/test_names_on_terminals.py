# SPDX-License-Identifier: Apache-2.0
"""A program whose function, process and thread names are escape sequences commands no terminal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PLACEHOLDER = "work_with_a_long_name_0123456789"
NAME = "work\x1b]0;mine\x07\x1b[2J\n\x9b31m\u202e"
PROGRAM = f"""
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
__attribute__((noinline)) int {PLACEHOLDER}(int a) {{ return a < 0 ? usleep(1) : getpid() + a % 7; }}
int main(void)
{{
	prctl(PR_SET_NAME, "\\033]0;title\\007\\nx");
	setvbuf(stdout, 0, _IONBF, 0);
	puts("ready");
	for (int number = 0;; usleep(1000))
		number = {PLACEHOLDER}(number);
}}
"""
RAW = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program\x1b[31m"
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", str(path)], input=PROGRAM, text=True, check=True)
    data = path.read_bytes()
    name = NAME.encode()
    assert data.count(PLACEHOLDER.encode()) == 1  # in .symtab's names
    assert len(name) <= len(PLACEHOLDER)
    path.write_bytes(data.replace(PLACEHOLDER.encode(), name.ljust(len(PLACEHOLDER), b"\0")))
    return path


def _check(done: subprocess.CompletedProcess[str], status: int = 0) -> str:
    shown = done.stdout + done.stderr
    assert done.returncode == status, shown
    assert not RAW.findall(shown), shown
    return shown


def test_nothing_raw_is_printed(
    program: Path, tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], nfprobe: Any
) -> None:
    process = spawn(str(program), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    pid, recording, glob = process.pid, tmp_path / "recording", "program*:work*"
    assert "\\x1b]0;mine\\x07\\x1b[2J\\x0a\\x9b31m\\u202e" in _check(nfprobe.run("functions", pid, "--functions", glob))
    assert "\\x1b]0;title" in _check(nfprobe.run("doctor", pid), 2)
    words = ["attach", pid, "--adapter", "none", "--functions", glob, "--for", "0.3s", "--record", recording]
    _check(nfprobe.run(*words))
    _check(nfprobe.run("status", pid), 1)
    assert "work\\x1b]0;mine" in _check(nfprobe.run("report", recording))
    _check(nfprobe.run("attach", pid, "--functions", "program*:nothing\x1b[2J"), 2)
    assert "\\x1b" in _check(nfprobe.run("diff", recording, recording))
    assert "work\\x1b]0;mine" in _check(nfprobe.run("stats", pid, glob, "--for", "0.3s"))


def test_json_has_the_exact_name(program: Path, nfprobe: Any) -> None:
    done = nfprobe.run("functions", program, "--functions", "*:work*", "--json")
    assert not RAW.findall(done.stdout)
    assert [row["name"] for row in json.loads(done.stdout)] == [NAME]


def test_sentences_about_such_a_process_are_printable(tmp_path: Path, program: Path, nfprobe: Any) -> None:
    plain = Path(shutil.copy(program, tmp_path / "cut\x1b[31m"))
    plain.write_bytes(plain.read_bytes()[:100])
    shown = _check(nfprobe.run("functions", plain), 2)
    assert "cut\\x1b[31m" in shown
