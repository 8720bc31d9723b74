# SPDX-License-Identifier: Apache-2.0
"""`attach --follow-forks` and `run --follow-forks` as a user runs them, and what a killed monitor leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.forking import OWN, code_of, fork, is_as_before
from tests.support.probed import Talker

pytestmark = [pytest.mark.integration, pytest.mark.target("forks"), pytest.mark.shared]


def wait_for_lines(process: subprocess.Popen[str], word: str, count: int) -> None:
    """Reads standard error until so many lines have the word."""
    assert process.stderr is not None
    while count:
        line = process.stderr.readline()
        assert line, f"{word!r} was not said"
        count -= word in line


def options(folder: Path, *more: str) -> list[str]:
    globs = [word for glob in OWN for word in ("--functions", glob)]
    return [*globs, "--ring-size", "1MiB", "--record", str(folder / "all"), "--json", *more]


def test_command_line(nfprobe: Any, talker: Talker, tmp_path: Path) -> None:
    """Each child has its own recording and its own summary inside that of the target."""
    process = nfprobe.start("attach", talker.pid, *options(tmp_path, "--follow-forks"))
    wait_for_lines(process, "attached to", 1)
    children = fork(talker, "fork 2")
    wait_for_lines(process, "is measured, too", 2)
    assert talker.ask("go 200") == "right"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert (summary["calls"], summary["children_missed"]) == (0, 0)
    assert {child["pid"]: child["calls"] for child in summary["children"]} == {children[0]: 401, children[1]: 402}
    for number, pid in enumerate(children, start=1):
        report = nfprobe.json("report", f"{tmp_path}/all.{pid}")
        assert {row["name"]: row["calls"] for row in report["functions"]} == {"step": 200 + number, "mixed": 200}
    assert talker.ask("end") == "right"


def test_run(nfprobe: Any, compile_target: Callable[..., Path], tmp_path: Path) -> None:
    command = ["run", *options(tmp_path, "--follow-forks"), "--", compile_target("forks")]
    process = nfprobe.start(*command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for line, answer, lines in (("fork 2", "", 2), ("go 300", "right\n", 0), ("end", "right\n", 0)):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(answer)
        wait_for_lines(process, "is measured, too", lines)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    summary = json.loads(errors.splitlines()[-1])
    assert sorted(child["calls"] for child in summary["children"]) == [601, 602]
    assert all(child["not_restored"] == [] for child in summary["children"])


@pytest.mark.parametrize("follow", [True, False], ids=["followed", "silent"])
def test_killed_monitor(nfprobe: Any, talker: Talker, tmp_path: Path, follow: bool) -> None:
    """Each process is restored by itself."""
    before = code_of(talker.pid)
    process = nfprobe.start("attach", talker.pid, *options(tmp_path, *["--follow-forks"] * follow))
    wait_for_lines(process, "attached to", 1)
    children = fork(talker, "fork 1")
    wait_for_lines(process, "is measured, too", int(follow))
    process.kill()
    process.communicate(timeout=120)
    assert talker.ask("go 100") == "right"
    for pid in (*children, talker.pid):
        assert not is_as_before(pid, before)
        assert nfprobe.json("detach", pid)["restored"] == 2
        assert is_as_before(pid, before)
    assert talker.ask("go 100") == talker.ask("end") == "right"
