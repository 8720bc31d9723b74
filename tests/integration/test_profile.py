# SPDX-License-Identifier: Apache-2.0
"""--profile on a program that knows by the kernel's account how much of its time an unprobed function burns."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts
from otel_nfprobe.report.flame import FlameRequest, fold
from otel_nfprobe.report.report import build_report
from tests.support.firewall import fails
from tests.support.probed import Talker

pytestmark = [pytest.mark.integration, pytest.mark.target("burning")]

TURNS = 12_000
TOLERANCE = 0.15  # of some hundred samples
SAMPLES_MIN = 100
Start = Callable[..., subprocess.Popen[str]]


def folded(recording: Path, **request: Any) -> dict[str, int]:
    reader = RecordingReader(recording)
    return fold(reader, read_facts(reader), FlameRequest(**request))


def running(stacks: dict[str, int]) -> dict[str, int]:
    """Without what the scheduler took."""
    return {stack: weight for stack, weight in stacks.items() if not stack.endswith("[preempted]")}


def share(stacks: dict[str, int], frames: str) -> float:
    """Of samples in user mode: how many are of stacks that fit."""
    user = {stack: count for stack, count in stacks.items() if not stack.endswith("_[k]")}
    return sum(count for stack, count in user.items() if re.fullmatch(frames, stack)) / sum(user.values())


def record(nfprobe: Any, talker: Talker, recording: Path, *options: str) -> tuple[dict[str, Any], float]:
    """The summary of a session, and the true share of burn_heavy."""
    words = [
        "attach",
        talker.pid,
        "--record",
        recording,
        "--profile",
        "1999",
        "--ring-size",
        "64MiB",
        "--json",
        *options,
    ]
    monitor = nfprobe.start(*words, *options)
    while "attached to" not in (line := monitor.stderr.readline()):
        assert line, "nfprobe has ended"
    burned = int(talker.ask(f"run {TURNS}")) / 1000
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    return json.loads(output.splitlines()[-1]), burned


def test_unprobed_functions_are_seen(nfprobe: Any, talker: Talker, tmp_path: Path) -> None:
    recording = tmp_path / "r.nfp"
    options = "--batch-function", "burning-*:begin_turn", "--functions", "burning-*:work", "--packets", "all"
    summary, burned = record(nfprobe, talker, recording, *options)
    assert summary["profile"]["samples"] >= SAMPLES_MIN
    stacks = folded(recording)
    assert abs(share(stacks, "batch;work;burn_heavy") - burned) < TOLERANCE, (stacks, burned)
    assert share(stacks, "batch;work;burn_(heavy|light)") > 0.9, stacks
    # A turn that burns is slow, and takes most of its time there.
    slow = folded(recording, slow_only=True, slower_ns=300_000)
    assert share(slow, "batch;work;burn_heavy") > 0.8, slow
    assert sum(slow.values()) < sum(stacks.values())
    # The calls alone know of `work` only.
    times = running(folded(recording, by_time=True))
    assert max(times, key=times.__getitem__) == "batch;work"
    assert not any("burn" in stack for stack in times)
    check_report(build_report(RecordingReader(recording), 50).document, summary)


def check_report(document: dict[str, Any], summary: dict[str, Any]) -> None:
    profile = document["profile"]
    assert profile["samples"] == summary["profile"]["samples"]
    if profile["event"] == "cpu-clock":  # there are no counters here
        assert profile["precise"] == 0
    seen: dict[str, int] = {}
    for packet in document["packets"]["slowest"]:
        for name, count in packet["samples"].items():
            seen[name] = seen.get(name, 0) + count
    assert seen.get("burn_heavy", 0) > seen.get("burn_light", 0), seen


def test_relocated_functions_keep_their_names(nfprobe: Any, talker: Talker, tmp_path: Path) -> None:
    """The body of such a function runs in an arena."""
    recording = tmp_path / "r.nfp"
    functions = "--functions", "burning-*:burn_heavy", "--functions", "burning-*:burn_light"
    summary, burned = record(nfprobe, talker, recording, *functions, "--adapter", "none", "--strategy", "relocated")
    assert summary["functions"]["probed"] == 2
    stacks = folded(recording)
    assert abs(share(stacks, "outside batches;burn_heavy") - burned) < TOLERANCE, stacks
    times = running(folded(recording, by_time=True))
    assert abs(times["outside batches;burn_heavy"] / sum(times.values()) - burned) < TOLERANCE, times


def test_wrong_use(talker: Talker, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    attach = "attach", talker.pid, "--functions", "work"
    fails(capfd, 2, *attach, "--profile", "997", said="--record")
    fails(capfd, 2, *attach, "--profile", "0", "--record", tmp_path / "r", said="from 1 to")
    fails(capfd, 2, *attach, "--profile", "1GHz", "--record", tmp_path / "r", said="frequency")
