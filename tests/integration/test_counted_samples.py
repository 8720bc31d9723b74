# SPDX-License-Identifier: Apache-2.0
"""Counters in samples, on a program of two functions that run equally long, of which one touches fresh pages.

How many faults that makes the kernel says itself (getrusage); how many samples hold is compared with it.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.counters.choice import Counter, choose_counters
from otel_nfprobe.profiling.profiler import Way
from otel_nfprobe.profiling.samples import describe_counts
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts
from otel_nfprobe.report.report import build_report
from tests.support.changing import Changing, OfTheKernel
from tests.support.probed import Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.target("faulting")]

TURNS = 8  # 80 ms each
FUNCTIONS = "--functions", "faulting*:touch_pages", "--functions", "faulting*:compute", "--adapter", "none"
KNOWN = 0.8  # of all faults at least: not those before a thread's first sample, and behind samples that were lost
OTHERS = 100  # faults at most: of the command that is read and answered


class Session:
    """`nfprobe attach` with a profile."""

    def __init__(self, nfprobe: Any, talker: Talker, recording: Path, *options: str) -> None:
        words = "attach", talker.pid, *FUNCTIONS, "--record", recording, "--profile", "997", "--json", *options
        self.monitor = nfprobe.start(*words)
        self.hear("attached to")

    def hear(self, words: str) -> None:
        """Waits until the monitor says so."""
        while words not in (line := self.monitor.stderr.readline()):
            assert line, "nfprobe has ended"

    def end(self) -> dict[str, Any]:
        self.monitor.send_signal(signal.SIGINT)
        output, errors = self.monitor.communicate(timeout=120)
        assert self.monitor.returncode == 0, errors
        summary: dict[str, Any] = json.loads(output.splitlines()[-1])
        return summary


def folded(recording: Path, by: str, capfd: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Of each function how much is in its stacks."""
    capfd.readouterr()
    assert main(["report", str(recording), "--format", "flame", "--by", by]) == 0
    stacks = [line.rsplit(" ", 1) for line in capfd.readouterr().out.splitlines()]
    sums = {"touch_pages": 0, "compute": 0, "all": 0}
    for stack, weight in stacks:
        for name in sums:
            sums[name] += int(weight) if name == "all" or name in stack.split(";") else 0
    return sums


def check_total(found: int, faults: int) -> None:
    assert KNOWN * faults <= found <= faults + OTHERS


def test_faults_are_where_they_happen(
    nfprobe: Any, talker: Talker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "r.nfp"
    session = Session(nfprobe, talker, recording, "--counters", "page-faults,task-clock")
    faults, share = (int(word) for word in talker.ask(f"run {TURNS}").split())
    profile = session.end()["profile"]
    assert profile["counters"] == ["page-faults", "task-clock"]
    assert 0 < profile["counted"] < profile["samples"]
    by_faults = folded(recording, "page-faults", capfd)
    assert by_faults["touch_pages"] >= 0.9 * by_faults["all"], by_faults
    check_total(by_faults["all"], faults)
    for by in ("samples", "task-clock"):  # what else is told apart is told apart by faults only
        found = folded(recording, by, capfd)
        both = found["touch_pages"] + found["compute"]
        assert both > 0.9 * found["all"], (by, found)
        assert abs(found["touch_pages"] / both - share / 1000) < 0.2, (by, found, share)
    counters = build_report(RecordingReader(recording)).document["profile"]["counters"]
    assert counters["page-faults"] == {"samples": profile["counted"], "total": by_faults["all"]}


def test_changed_while_the_session_runs(
    nfprobe: Any, talker: Talker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Faults are counted while that is asked for: in the second of three runs."""
    recording = tmp_path / "r.nfp"
    session = Session(nfprobe, talker, recording)
    talker.ask("run 2")
    assert main(["counters", str(talker.pid), "page-faults,context-switches"]) == 0
    session.hear(" hold page-faults, context-switches.")
    faults = int(talker.ask("run 5").split()[0])
    assert main(["counters", str(talker.pid), "context-switches"]) == 0
    session.hear(" hold context-switches.")
    talker.ask("run 2")
    profile = session.end()["profile"]
    assert profile["counters"] == ["page-faults", "context-switches"]
    assert profile["counted"] < profile["samples"]
    check_total(folded(recording, "page-faults", capfd)["all"], faults)
    counters = build_report(RecordingReader(recording)).document["profile"]["counters"]
    assert counters["page-faults"]["samples"] < counters["context-switches"]["samples"] == profile["counted"]


def test_in_the_group_that_probes_read(talker: Talker, tmp_path: Path) -> None:
    """Events of the kernel instead of a processor's: handed to the target, and read with each sample; then others."""
    recording = RecordingWriter(tmp_path / "r.nfp", RecordingHeader())
    session = Changing(talker, recording, has_own_counters=False, globs=("faulting*:touch_pages",))
    session.monitor.profile_hertz = 997

    def change(*names: str) -> None:
        """Counters, the last one read by the monitor; waits until samples hold them."""
        found = choose_counters(",".join(names)).counters if names else ()
        session.change(Mixed(counters=found))
        assert wait_until(lambda: held() == (Way.JOINED if names else Way.ALONE, names))

    def held() -> tuple[Way, tuple[str, ...]] | None:
        profiler = session.monitor.drain.profiler
        assert profiler is not None
        group = profiler._groups.get(talker.pid)
        return (group.way, group.names) if group is not None else None

    with session:
        talker.ask("run 1")  # a thread has counters once it has written a record
        change("task-clock", "page-faults", "context-switches")
        faults = int(talker.ask("run 5").split()[0])
        change("task-clock", "context-switches")
        talker.ask("run 1")
        change()
        talker.ask("run 1")
    recording.finish({})
    said = [sentence for sentence in session.said if sentence.startswith("Samples")]
    assert [" hold task-clock, page-faults, context-switches" in sentence for sentence in said] == [True, False]
    found = describe_counts(read_facts(RecordingReader(tmp_path / "r.nfp")).sample_counts)
    check_total(found["page-faults"]["total"], faults)
    assert found["task-clock"]["samples"] == found["context-switches"]["samples"] > found["page-faults"]["samples"] > 0


class Mixed(OfTheKernel):
    """The last one is read by the monitor, the others by probes."""

    @property
    def hardware(self) -> tuple[Counter, ...]:
        return self.counters[:-1]

    @property
    def software(self) -> tuple[Counter, ...]:
        return self.counters[-1:]
