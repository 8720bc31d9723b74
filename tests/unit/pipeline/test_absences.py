# SPDX-License-Identifier: Apache-2.0
"""Rows of what threads did not execute: names, bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.pipeline import absences
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind, keep_longest, name_absence
from otel_nfprobe.recording import replay
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from tests.support.absences import make_interrupt, make_steal, make_switches

PREEMPTED = AbsenceFlag.PREEMPTED


def test_the_longest_rows_are_kept_in_their_order() -> None:
    rows = np.concatenate(
        (
            make_switches([(10, 900, 0, PREEMPTED)]),
            make_interrupt(AbsenceKind.VECTOR, 0, 1000, 1005),
            make_steal(0, 100_000, 3),
            make_steal(0, 100_000, 700),
            make_interrupt(AbsenceKind.SOFTIRQ, 3, 2000, 2400),
        )
    )
    assert keep_longest(rows, 3).tolist() == rows[[0, 3, 4]].tolist()
    assert keep_longest(rows, 5).tolist() == rows.tolist()


def test_a_long_recording_keeps_its_preemptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "ABSENCES_MAX", 50)
    writer = RecordingWriter(tmp_path / "r", RecordingHeader())
    for number in range(40):
        ticks = 10_000 * number
        interrupts = [make_interrupt(AbsenceKind.VECTOR, 0, ticks + at, ticks + at + 5) for at in range(0, 500, 10)]
        writer.absences(np.concatenate((*interrupts, make_switches([(ticks + 600, ticks + 900, 0, PREEMPTED)]))))
    writer.finish({})
    found = replay.read_facts(RecordingReader(tmp_path / "r")).absences
    assert len(found) == 50
    assert np.count_nonzero(found["kind"] == AbsenceKind.SWITCH) == 40
    assert np.all(np.diff(found["out_ticks"].astype(np.int64)) > 0)


@pytest.mark.parametrize(
    ("kind", "code", "name", "said"),
    [
        (AbsenceKind.SWITCH, 71, b"kworker/1:2", "kworker/1:2 (tid 71)"),
        (AbsenceKind.SWITCH, 0, b"swapper/1", "the idle task"),
        (AbsenceKind.SWITCH, 0, b"", ""),
        (AbsenceKind.SWITCH, 9, b"a\x1b[2J", "a\\x1b[2J (tid 9)"),
        (AbsenceKind.VECTOR, 0, b"", "interrupt local_timer"),
        (AbsenceKind.VECTOR, 999, b"", "interrupt"),
        (AbsenceKind.IRQ, 36, b"virtio1-req.0", "interrupt 36 virtio1-req.0"),
        (AbsenceKind.SOFTIRQ, 3, b"", "softirq NET_RX"),
        (AbsenceKind.SOFTIRQ, 77, b"", "softirq 77"),
        (AbsenceKind.NMI, 0, b"", "non-maskable interrupt"),
        (AbsenceKind.STEAL, 0, b"", "the hypervisor"),
    ],
)
def test_names(kind: AbsenceKind, code: int, name: bytes, said: str) -> None:
    row = make_switches([(1, 2, 0, PREEMPTED)])
    row["kind"], row["code"], row["name"] = kind, code, name
    assert name_absence(row[0]) == said


def test_softirqs_are_as_many_as_the_kernels() -> None:
    listed = [line.split(":")[0].strip() for line in Path("/proc/softirqs").read_text().splitlines()[1:]]
    assert list(absences.SOFTIRQS) == listed
