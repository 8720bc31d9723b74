# SPDX-License-Identifier: Apache-2.0
"""`nfprobe run`: programs that live for milliseconds are counted exactly, and end as they end without nfprobe."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.probes.launch import Launch

pytestmark = [pytest.mark.integration, pytest.mark.shared]

COUNT = 3000
SUM = sum(i * 3 + 1 for i in range(COUNT))
ANSWER_S = 120.0


@pytest.fixture
def brief(compile_target: Callable[..., Path]) -> Path:
    return compile_target("brief")


def run(nfprobe: Any, functions: str, *command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command under nfprobe to its end."""
    done: subprocess.CompletedProcess[str] = nfprobe.run("run", "--json", "--functions", functions, "--", *command)
    return done


def summary_of(errors: str) -> Any:
    return json.loads(errors.splitlines()[-1])


def assert_exact(summary: Any) -> None:
    assert not any(summary["records"]["lost"].values()), summary
    assert summary["unpaired"] == {"entries": 0, "exits": 0}
    assert summary["not_restored"] == []


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
    assert ready, "it does not answer"
    return process.stdout.readline().strip()


# ---- what is counted ---------------------------------------------------------------------------------------


def test_every_call_from_the_first_instruction(nfprobe: Any, brief: Path, tmp_path: Path) -> None:
    recording = tmp_path / "brief.nfprobe"
    globs = [word for name in ("main", "begin", "repeat", "work") for word in ("--functions", f"{brief.name}:{name}")]
    done = nfprobe.run("run", "--json", *globs, "--record", recording, "--", brief, "work", COUNT, 7)
    assert (done.returncode, done.stdout) == (7, f"{SUM}\n"), done.stderr
    summary = summary_of(done.stderr)
    assert_exact(summary)
    assert summary["program"] == {"exit_status": 7}
    assert summary["target_ended"] is True
    assert summary["records"]["read"] == 2 * summary["calls"] + summary["open"]
    functions = nfprobe.json("report", recording, "--format", "json")["functions"]
    calls = {function["name"]: function["calls"] for function in functions}
    assert calls == {"work": COUNT + 1, "repeat": 1, "begin": 1, "main": 1}
    content = recording.read_bytes()
    assert b"work" in content
    assert f"work {COUNT}".encode() not in content  # command lines hold secrets


def test_threads_of_library_constructors(nfprobe: Any, compile_target: Callable[..., Path]) -> None:
    library = compile_target("early_threads", "-shared", "-fPIC")
    program = compile_target("brief", "-Wl,--no-as-needed", str(library))
    done = run(nfprobe, f"{program.name}:work", program, "work", COUNT, 0)
    assert (done.returncode, done.stdout) == (0, f"{SUM}\n"), done.stderr
    summary = summary_of(done.stderr)
    assert_exact(summary)
    assert summary["calls"] == COUNT + 1


def test_time_ends_before_the_program(nfprobe: Any, brief: Path) -> None:
    words = ("run", "--json", "--functions", f"{brief.name}:*", "--for", "0.2s", "--", brief, "signals")
    started = nfprobe.start(*words, stdin=subprocess.PIPE)
    assert read_line(started) == "ready"
    said = ""
    while "the program continues" not in said:
        line = started.stderr.readline()
        assert line, said
        said += line
    output, errors = started.communicate("\n", timeout=ANSWER_S)
    assert (started.returncode, output) == (0, "0 interrupts, 0 terminations\n")
    summary = summary_of(errors)
    assert summary["not_restored"] == []
    assert summary["target_ended"] is False
    assert summary["functions"]["probed"] > 3


# ---- the program is as it is without nfprobe -----------------------------------------------------------------


def test_exit_statuses(brief: Path, capfd: pytest.CaptureFixture[str]) -> None:
    statuses = [*range(0, 256, 5), 1, 2, 3, 126, 127, 128, 129, 137]
    for status in statuses:
        with Launch([str(brief), "work", "1", str(status)]) as launch:
            launch.start()
            launch.release()
            assert launch.wait() == status
    assert capfd.readouterr().out == "1\n" * len(statuses)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_ends_by_the_same_signal(nfprobe: Any, brief: Path, number: signal.Signals) -> None:
    done = run(nfprobe, f"{brief.name}:work", brief, "die", int(number))
    assert done.returncode == -number, done.stderr
    summary = summary_of(done.stderr)
    assert summary["program"] == {"signal": int(number)}
    assert summary["calls"] == 2


def test_inherited_state(nfprobe: Any, brief: Path) -> None:
    plain = subprocess.run([brief, "state"], capture_output=True, text=True, check=True).stdout
    assert "death signal 0" in plain
    assert run(nfprobe, f"{brief.name}:work", brief, "state").stdout == plain


def test_input_and_output(nfprobe: Any, tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    words = [*nfprobe.command, "run", "--json", "--functions", "libc.so*:*write*", "--", "cat"]
    done = subprocess.run(words, input=content, capture_output=True, timeout=240, check=True)
    assert done.stdout == content
    assert summary_of(done.stderr.decode())["program"] == {"exit_status": 0}


def test_programs_that_nobody_here_wrote(nfprobe: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(100_000) + bytes(100_000))
    assert run(nfprobe, "libc.so*:mem*", "ls", "-a", "/").stdout.splitlines() == sorted([".", "..", *os.listdir("/")])
    digest = run(nfprobe, "libcrypto.so*:EVP_*", "openssl", "dgst", "-sha256", data)
    assert digest.stdout.split()[-1] == hashlib.sha256(data.read_bytes()).hexdigest()
    assert summary_of(digest.stderr)["calls"] > 10
    words = [*nfprobe.command, "run", "--json", "--functions", "libc.so*:mem*", "--", "gzip", "-c", str(data)]
    packed = subprocess.run(words, capture_output=True, timeout=240, check=True)
    assert gzip.decompress(packed.stdout) == data.read_bytes()
    python = run(nfprobe, "libc.so*:mem*", "/usr/bin/python3", "-c", "import sys; print(sum(range(9))); sys.exit(5)")
    assert (python.returncode, python.stdout) == (5, "36\n")


def test_scripts_and_options_of_the_program(nfprobe: Any, tmp_path: Path) -> None:
    """A script's interpreter is what is probed; what stands behind -- is never taken for an option of ours."""
    script = tmp_path / "script"
    script.write_text('#!/bin/sh\necho "$@"\nexit 6\n')
    script.chmod(0o755)
    done = run(nfprobe, "libc.so*:write", script, "a", "--", "--json", "-x", "--for", "9")
    assert (done.returncode, done.stdout) == (6, "a -- --json -x --for 9\n"), done.stderr
    assert summary_of(done.stderr)["calls"] >= 1
