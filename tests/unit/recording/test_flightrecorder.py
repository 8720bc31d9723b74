# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: what is too old is forgotten, what is written is whole, named and bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.clock import ANCHOR
from otel_nfprobe.base.columns import BATCH, PACKET, Columns
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.profiling.samples import AddressRange
from otel_nfprobe.recording import flightrecorder, recording
from otel_nfprobe.recording.flightrecorder import ASKED, TRIGGERED, FlightWriter
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader
from otel_nfprobe.recording.replay import read_facts
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo, ThreadTotals
from otel_nfprobe.report.report import build_report
from tests.support.synthetic_recording import BATCH_SIZE, START_NS, make_batch
from tests.support.synthetic_records import RECEIVE, TRANSMIT, records

HEADER = RecordingHeader("0.1.0", "00000000000000aa", 42, "/bin/nf", "host", START_NS, 2e9, {}, {})
SECONDS = 5


class Session:
    """A flight recorder, fed with a batch a second of a clock that the test sets."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **options: int) -> None:
        self.now = 1000.0
        self.batch = 0
        monkeypatch.setattr(flightrecorder.time, "monotonic", lambda: self.now)
        self.writer = FlightWriter(str(path), HEADER, SECONDS, **options)
        roles = ((0, RECEIVE, "nf_rx"), (1, 0, "nf_work"), (2, TRANSMIT, "nf_tx"))
        self.writer.functions([FunctionInfo(i, role, "/bin/nf", i, 64, name, "", "") for i, role, name in roles])
        self.writer.threads([ThreadInfo(0, 4711, "worker")])
        self.writer.places([AddressRange(1, 2, "/bin/nf", 0, "")])

    def run(self, seconds: int, latency_ticks: int = 100) -> None:
        for _ in range(seconds):
            self.now += 1
            self.writer.records(0, records(make_batch(self.batch)))
            self.writer.take(columns_of(latency_ticks))
            self.writer.clock(np.array([(self.batch * 100_000, START_NS + self.batch * 50_000, 1 << 31)], ANCHOR))
            self.writer.counters([ThreadTotals(0, batches=self.batch)])
            self.writer.flush()
            self.batch += 1


def columns_of(latency_ticks: int) -> Columns:
    packets, batches = np.zeros(1, PACKET), np.zeros(1, BATCH)
    batches["start_ticks"], packets["disposition"], packets["done_ticks"] = 1000, 1, 1000 + latency_ticks
    return Columns(batches=batches, packets=packets)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(tmp_path / "s.nfp", monkeypatch, trigger_ticks=500)


def test_every_file_knows_the_modules(session: Session, tmp_path: Path) -> None:
    for number in (1, 2):
        session.run(SECONDS)
        session.writer.ask()
        session.run(1)
        facts = read_facts(RecordingReader(tmp_path / f"s-{number}.nfp"))
        assert facts.places == [AddressRange(1, 2, "/bin/nf", 0, "")]
    session.writer.finish({})


def test_only_the_last_seconds_are_written(session: Session, tmp_path: Path) -> None:
    session.run(50)
    session.writer.threads([ThreadInfo(1, 4712, "late")])
    session.writer.ask()
    session.run(1)
    session.writer.finish({})
    assert session.writer.files == [str(path) for path in tmp_path.iterdir()] == [str(tmp_path / "s-1.nfp")]
    reader = RecordingReader(tmp_path / "s-1.nfp")
    report = build_report(reader).document
    assert SECONDS <= report["batches"]["count"] <= SECONDS + 2
    assert report["packets"]["transmitted"] == report["batches"]["count"] * BATCH_SIZE
    assert report["unpaired"] == {"entries": 0, "exits": 0}
    assert [function["name"] for function in report["functions"]] == ["nf_rx", "nf_work", "nf_tx"]
    assert [thread["tid"] for thread in report["threads"]] == [4711, 4712]  # the first was named long before
    assert reader.summary["flight"]["reason"] == ASKED
    anchors = [block for block in reader.blocks() if block.type == recording.CLOCK]
    assert len(anchors) == 1
    assert len(anchors[0].array(ANCHOR)) == SECONDS + 3
    assert session.writer.bytes_written == (tmp_path / "s-1.nfp").stat().st_size


def test_slow_packets_trigger_and_nothing_is_twice(session: Session, tmp_path: Path) -> None:
    session.run(10)
    session.run(8, latency_ticks=501)
    session.run(20)
    session.writer.complete()
    session.writer.finish({})
    words = []
    for file in session.writer.files:
        reader = RecordingReader(file)
        rows = [block.array(recording_dtype()) for block in reader.blocks() if block.type == recording.RECORDS]
        assert reader.summary["flight"]["reason"] == TRIGGERED
        words.append(np.concatenate(rows)["value"][::1])
    assert 2 <= len(words) <= 5
    entries = [rows[0] for rows in words]
    assert entries == sorted(entries)
    per_batch = len(make_batch(0))
    assert 8 * per_batch <= sum(map(len, words)) <= (SECONDS + 2 + 8) * per_batch


def recording_dtype() -> np.dtype:
    return np.dtype([("value", "<u8"), ("tag", "<u4"), ("sp", "<u4")])


def test_without_a_reason_nothing_is_written(session: Session, tmp_path: Path) -> None:
    session.run(20, latency_ticks=500)
    session.writer.finish({})
    assert list(tmp_path.iterdir()) == session.writer.files == []


def test_what_is_due_is_written_at_the_end(session: Session) -> None:
    session.run(3)
    session.writer.ask()
    session.writer.complete()
    session.writer.finish({})
    assert len(session.writer.files) == 1


def test_all_files_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path / "s.nfp", monkeypatch, trigger_ticks=1, max_bytes=70_000)
    session.run(200)
    assert session.writer.reached_max
    session.writer.finish({})
    assert 1 <= len(session.writer.files) < 20
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == session.writer.bytes_written <= 70_000
    assert all(RecordingReader(path).header.pid == 42 for path in tmp_path.iterdir())


def test_folders_that_are_not_there(tmp_path: Path, session: Session) -> None:
    with pytest.raises(UsageError, match="Cannot write"):
        FlightWriter(str(tmp_path / "none" / "s.nfp"), HEADER, SECONDS)
    (tmp_path / "s-1.nfp").mkdir()
    session.run(2)
    session.writer.ask()
    with pytest.raises(NfprobeError, match=r"s-1\.nfp"):
        session.run(2)
    assert session.writer.failed
    session.run(2)  # the session goes on
    session.writer.discard()
