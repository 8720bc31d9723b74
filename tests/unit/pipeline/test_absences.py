# SPDX-License-Identifier: Apache-2.0
"""Rows of what threads did not execute: names, bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.pipeline import absences
from otel_nfprobe.pipeline.absences import (
    AbsenceFlag,
    AbsenceKind,
    Absences,
    StealTime,
    keep_longest,
    name_absence,
    place_steal_time,
)
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


def told(rows: Rows) -> list[tuple[int, int, AbsenceKind, int]]:
    rows = rows[np.lexsort((rows["in_ticks"], rows["out_ticks"]))]
    return [
        (out, back, AbsenceKind(kind), part)
        for out, back, kind, part in rows[["out_ticks", "in_ticks", "kind", "part_ticks"]].tolist()
    ]


VECTOR, STEAL = AbsenceKind.VECTOR, AbsenceKind.STEAL


def test_an_interrupt_in_which_the_cpu_was_stolen_is_as_long_as_usual() -> None:
    timers = [make_interrupt(VECTOR, 0, at, at + 20) for at in range(0, 50_000, 10_000)]
    long = make_interrupt(VECTOR, 0, 50_000, 56_020)  # the next update of run times is in the next tick
    before = np.concatenate((long, *timers, make_steal(50_010, 60_010, 6_000), make_switches([(1, 90_000, 1, 0)])))
    after = place_steal_time(before)
    assert told(after[after["thread"] == 0])[-2:] == [(50_000, 50_020, VECTOR, 0), (50_020, 56_020, STEAL, 6_000)]
    assert len(after) == len(before)
    assert not len(StealTime(after).during(0, 0, 90_000))
    assert Absences(after).during(0, 50_020, 90_000).tolist() == [[50_020, 56_020]]
    assert Absences(after).interrupts(0, 50_000, 90_000).tolist() == [[50_000, 50_020]]
    assert Absences(before).interrupts(0, 50_000, 90_000).tolist() == [[50_000, 56_020]]


def test_what_an_interrupt_cannot_have_had_is_left_to_be_placed() -> None:
    rows = np.concatenate((make_interrupt(VECTOR, 2, 1_000, 4_000), make_steal(0, 10_000, 5_000)))
    assert told(place_steal_time(rows)) == [(0, 10_000, STEAL, 2_000), (1_000, 4_000, STEAL, 3_000)]
    short = np.concatenate((make_interrupt(VECTOR, 2, 1_000, 3_000), make_steal(0, 10_000, 5_000)))
    assert told(place_steal_time(short)) == told(short)


def test_an_interrupt_of_another_thread_or_time_has_nothing_to_do_with_steal_time() -> None:
    rows = np.concatenate(
        (
            make_interrupt(VECTOR, 2, 1_000, 9_000, thread=1),
            make_interrupt(VECTOR, 2, 20_000, 29_000),
            make_steal(0, 10_000, 5_000),
        )
    )
    assert told(place_steal_time(rows)) == told(rows)


def test_an_interrupt_that_reaches_into_two_ticks_gives_to_both() -> None:
    rows = np.concatenate(
        (make_interrupt(VECTOR, 0, 4_000, 9_000), make_steal(0, 7_000, 2_500), make_steal(7_000, 11_000, 2_000))
    )
    found = place_steal_time(rows)
    assert told(found[found["kind"] == VECTOR]) == [(4_000, 4_500, VECTOR, 0)]
    assert sorted(told(found[found["kind"] == STEAL])) == [(4_500, 7_000, STEAL, 2_500), (7_000, 9_000, STEAL, 2_000)]


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
