# SPDX-License-Identifier: Apache-2.0
"""A target that starts another program at each of 50 moments of an attach and its detach.

The moments are those at which the monitor touches the target, counted by a library that the tests load into it
(tests/targets/moments.c). The oracle is the new program: it compares all code in its memory with the files, counts
its threads and checks the results of its functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.shared, pytest.mark.timeout(600)]

EACH = 50  # of each kind in the long run; every day, of all kinds together
PATIENCE_S = 550  # a session that hangs is an error, not one that is slow
HANGS_S = 50  # threads that wait for a processor are waited for 60 s; those that an exec has ended are not
ROOT = Path(__file__).resolve().parents[2]
REPLACED = "has started another program (exec), which has no probes."
LINKS = {"PIE": (), "no PIE": ("-no-pie", "-fno-pie")}
NOBODY = 65534


def check(library: Path, how: str, count: int, command: list[object], answer: str) -> None:
    words = [sys.executable, "-m", "tests.integration.exec_moments", library, how, count, "--", *command]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        list(map(str, words)),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (done.stderr, found[-1:])
    *rehearsals, sessions = found[0], found[1], found[2:]
    assert len(sessions) == count
    for session in (*rehearsals, *sessions):
        assert (session["answer"], session["status"], session["left"]) == (answer, None, []), session
        assert session["error"] == "" or (session["made"] and session["error"].endswith(REPLACED)), session
        assert sum(REPLACED in sentence for sentence in session["said"]) <= 1, session
        assert session["took_s"] < HANGS_S, session
    assert not any(session["error"] for session in rehearsals)
    made = [session["plan"] for session in sessions if session["made"]]
    assert len(made) > count * 3 // 4, "many moments did not come"
    told = [session for session in sessions if session["error"] or any(REPLACED in said for said in session["said"])]
    assert len(told) > count // 3, "hardly an exec was one of a session"


@pytest.fixture
def library(compile_target: Callable[..., Path]) -> Path:
    return compile_target("moments", "-shared", "-fPIC")


@pytest.mark.parametrize("count", [26, pytest.param(EACH, marks=pytest.mark.long)])
@pytest.mark.parametrize("link", LINKS)
def test_attached(compile_target: Callable[..., Path], library: Path, link: str, count: int) -> None:
    """The program executes itself: without PIE the same functions are at the same addresses."""
    program = compile_target("renewed", *LINKS[link])
    check(library, "attached", count, [program, program], "whole")


@pytest.mark.parametrize("count", [12, pytest.param(EACH, marks=pytest.mark.long)])
@pytest.mark.parametrize("link", LINKS)
def test_launched(compile_target: Callable[..., Path], library: Path, link: str, count: int) -> None:
    """A thread that a library's constructor has made executes, while the program is held and afterwards."""
    trigger = compile_target("renewed", "-shared", "-fPIC", "-DTRIGGER=1")
    program = compile_target("renewed", "-DTRIGGER=0", *LINKS[link], "-Wl,--no-as-needed", str(trigger))
    check(library, "launched", count, [program, program, "thread"], "whole")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may look into."""
    with tempfile.TemporaryDirectory(prefix="renewed-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("count", [12, pytest.param(EACH, marks=pytest.mark.long)])
def test_set_user_id(compile_target: Callable[..., Path], library: Path, open_folder: Path, count: int) -> None:
    """A program of nobody executes one that is root's."""
    program = compile_target("renewed", *LINKS["no PIE"])
    plain, raised = open_folder / "plain", open_folder / "raised"
    for copy, mode in ((plain, 0o755), (raised, 0o4755)):
        copy.write_bytes(program.read_bytes())
        copy.chmod(mode)
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    check(library, "attached", count, [*as_nobody, plain, raised], "whole, with rights of its file")
