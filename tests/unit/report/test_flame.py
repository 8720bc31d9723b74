# SPDX-License-Identifier: Apache-2.0
"""Folded stacks of a recording that was made up: 40 batches, one of them slow."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind
from otel_nfprobe.profiling.samples import SAMPLE, AddressRange
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import RecordingFacts, read_facts
from otel_nfprobe.report.flame import FlameRequest, fold, render_folded, render_speedscope
from tests.support.absences import make_interrupt, make_steal, make_switches
from tests.support.synthetic_recording import BATCHES, SLOW_BATCH, TICKS_PER_NS, write_recording

SLOW_NS = 60_000 // TICKS_PER_NS
PLACES = [
    AddressRange(0x1000, 0x100, "/bin/nf", 0, "nf_work"),
    AddressRange(0x1100, 0x100, "/bin/nf", 0x100, "helper; odd"),
    AddressRange(0x1000, 0x1000, "/bin/nf", 0, ""),
]


def batch_start(number: int) -> int:
    return 1_000_000 + number * 100_000


def sample(ticks: int, address: int, thread: int = 0) -> tuple[int, ...]:
    return (ticks, address, thread, 0, 1, 0)


def read(path: Path, samples: list[tuple[int, ...]]) -> tuple[RecordingReader, RecordingFacts]:
    reader = RecordingReader(write_recording(path))
    facts = read_facts(reader)
    facts.samples, facts.places = np.array(samples, SAMPLE), PLACES
    return reader, facts


def test_own_times_without_samples(tmp_path: Path) -> None:
    reader, facts = read(tmp_path / "r", [])
    found = fold(reader, facts, FlameRequest())
    work_ns = ((BATCHES - 1) * 2000 + 60_000) // TICKS_PER_NS
    assert found["batch;nf_work"] == work_ns
    assert found["batch;nf_tx"] == BATCHES * 300 // TICKS_PER_NS
    assert set(found) == {"batch", "batch;nf_rx", "batch;nf_work", "batch;nf_tx"}
    slow = fold(reader, facts, FlameRequest(slow_only=True, slower_ns=SLOW_NS))
    assert slow["batch;nf_work"] == SLOW_NS
    assert slow["batch;nf_tx"] == 300 // TICKS_PER_NS


def test_preemption_is_not_the_functions_time(tmp_path: Path) -> None:
    reader, facts = read(tmp_path / "r", [])
    before = fold(reader, facts, FlameRequest())
    at = batch_start(SLOW_BATCH)
    facts.absences = make_switches(
        [
            (at + 1000, at + 21_000, 0, AbsenceFlag.PREEMPTED),  # inside nf_work
            (at + 30_000, at + 31_000, 0, 0),  # it slept
            (at + 32_000, at + 33_000, 1, AbsenceFlag.PREEMPTED),  # another thread
        ]
    )
    after = fold(reader, facts, FlameRequest())
    assert after.pop("batch;nf_work;[preempted]") == 20_000 // TICKS_PER_NS
    assert after.pop("batch;nf_work") == before.pop("batch;nf_work") - 20_000 // TICKS_PER_NS
    assert after == before


def test_interrupts_and_the_hypervisor_have_their_own_frames(tmp_path: Path) -> None:
    reader, facts = read(tmp_path / "r", [])
    before = fold(reader, facts, FlameRequest())
    at = batch_start(SLOW_BATCH)
    facts.absences = np.concatenate(
        (
            make_switches([(at + 1000, at + 5000, 0, AbsenceFlag.PREEMPTED)]),
            make_interrupt(AbsenceKind.SOFTIRQ, 3, at + 6000, at + 8000),
            make_interrupt(AbsenceKind.VECTOR, 0, at + 8000, at + 9000),
            make_steal(at - 50_000, at + 70_000, 30_000),  # only nf_work of this batch took so long
            make_steal(at - 50_000, at + 70_000, 30_000, thread=1),
            make_steal(at + 70_000, at + 150_000, 60_000),  # no call: it fell into a time without packets
        )
    )
    after = fold(reader, facts, FlameRequest())
    for frame, ticks in (("[preempted]", 4000), ("[interrupt]", 3000), ("[hypervisor]", 30_000)):
        assert after.pop(f"batch;nf_work;{frame}") == ticks // TICKS_PER_NS
    assert after.pop("batch;nf_work") == before.pop("batch;nf_work") - 37_000 // TICKS_PER_NS
    assert after == before


def test_samples_by_call_and_class(tmp_path: Path) -> None:
    samples, expected, slow = [], Counter(), Counter()
    for number in range(BATCHES):
        at = batch_start(number)
        rows = [
            (at + 1000, 0x1010, "batch;nf_work"),
            (at + 1500, 0x1110, "batch;nf_work;helper: odd"),
            (at + 450, 0x1210, "batch;nf+0x210"),  # between two calls
            (at - 10_000, 0x1110, "outside batches;helper: odd" if not number else None),
        ]
        for ticks, address, stack in rows:
            if stack is None:
                continue
            samples.append(sample(ticks, address))
            expected[stack] += 1
            if number == SLOW_BATCH:
                slow[stack] += 1
    samples.append(sample(batch_start(3) + 1000, 0x1010, thread=5))  # of a thread that nothing is known of
    expected["outside batches;nf_work"] += 1
    reader, facts = read(tmp_path / "r", samples)
    assert fold(reader, facts, FlameRequest()) == dict(expected)
    assert fold(reader, facts, FlameRequest(slow_only=True, slower_ns=SLOW_NS)) == dict(slow)
    assert sum(fold(reader, facts, FlameRequest(by_time=True)).values()) > len(samples)


def test_recordings_keep_samples_and_places(tmp_path: Path) -> None:
    rows = np.array([sample(5, 1), sample(9, 2, 1)], SAMPLE)
    writer = RecordingWriter(tmp_path / "r", RecordingHeader())
    writer.samples(rows)
    writer.samples(rows[:0])
    writer.places(PLACES)
    writer.places([])
    writer.finish({})
    facts = read_facts(RecordingReader(tmp_path / "r"))
    assert facts.samples.tolist() == rows.tolist()
    assert facts.places == PLACES
    assert facts.complete


def test_speedscope_has_the_same_stacks(tmp_path: Path) -> None:
    path, output = write_recording(tmp_path / "r"), tmp_path / "r.speedscope.json"
    assert main(["report", str(path), "--format", "flame", "--by", "time", "-o", str(tmp_path / "folded")]) == 0
    assert main(["report", str(path), "-o", str(output), "--by", "time"]) == 0
    document = json.loads(output.read_text())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    (profile,) = document["profiles"]
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "nanoseconds", 0)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    stacks = [";".join(names[frame] for frame in sample) for sample in profile["samples"]]
    lines = [f"{stack} {weight}" for stack, weight in zip(stacks, profile["weights"], strict=True)]
    assert lines == (tmp_path / "folded").read_text().splitlines()
    assert profile["endValue"] == sum(profile["weights"]) > SLOW_NS
    assert len(names) == len(set(names)) > 2
    assert json.loads(render_speedscope({"a;b": 2}, False, "x"))["profiles"][0]["unit"] == "none"


def test_lines_are_what_flame_graphs_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render_folded({"a;b c": 3, "a": 1}) == "a;b c 3\na 1\n"
    path = write_recording(tmp_path / "r")
    assert main(["report", str(path), "--format", "flame", "--class", "slow", "--slower-than", f"{SLOW_NS}ns"]) == 0
    printed = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert printed["batch;nf_work"] == str(SLOW_NS)
    assert main(["report", str(path), "--class", "slow"]) == 2
    assert main(["report", str(path), "--format", "flame", "--slower-than", "1us"]) == 2
    assert "--class slow" in capsys.readouterr().err
