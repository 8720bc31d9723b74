# SPDX-License-Identifier: Apache-2.0
"""otel_nfprobe.open: what Python programs see of a recording is what its report and its Parquet files say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import otel_nfprobe
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import main
from otel_nfprobe.recording.tables import TABLES
from otel_nfprobe.report.opened import Recording
from tests.support.synthetic_recording import BATCH_SIZE, BATCHES, PACKETS, SLOW_BATCH, START_NS, write_recording

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
FIREWALL = Path(__file__).resolve().parents[1] / "recording" / "recordings" / "firewall.nfp"


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return otel_nfprobe.open(write_recording(tmp_path / "session.nfp"))


def test_what_it_is_of(recording: Recording) -> None:
    assert (recording.pid, recording.executable, recording.start_unix_ns) == (42, "/bin/nf", START_NS)
    assert (recording.complete, recording.damage) == (True, "")
    assert repr(recording) == f"<Recording {recording.path}: process 42, /bin/nf>"


def test_the_report(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", "--json", recording.path])
    assert recording.report == json.loads(capsys.readouterr().out)
    assert recording.functions == recording.report["functions"]


@pytest.mark.parametrize("path", ["made up", FIREWALL], ids=["made up", "firewall"])
def test_tables_are_those_of_the_files(path: Path | str, tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r") if path == "made up" else path
    assert main(["tables", str(path), "-o", str(tmp_path / "out"), "--slower-than", "10us"]) == 0
    opened = otel_nfprobe.open(path, slower_than_ns=10_000)
    for name in TABLES:
        (file,) = (tmp_path / "out" / name).iterdir()
        table, expected = getattr(opened, name), pq.read_table(file)
        assert table.to_arrow().to_pylist() == expected.to_pylist()
        assert len(table) == expected.num_rows
        assert pa.concat_tables(list(table.batches()), promote_options="permissive").to_pylist() == expected.to_pylist()
        assert table.to_polars().rows(named=True) == expected.to_pylist()
        if sys.version_info >= (3, 11):  # as pandas
            frame = table.to_pandas()
            assert list(frame.columns) == expected.column_names
            assert len(frame) == expected.num_rows
    assert len(opened.packets) > 0 < len(opened.causes)


def test_a_timeline(recording: Recording) -> None:
    packets = recording.packets.to_arrow().to_pylist()
    slow = max(packets, key=lambda packet: packet["latency_ns"])
    for name in ("packet_id", "packet_content_id"):
        (timeline,) = recording.timeline(slow[name])
        assert timeline.own_batch_id == slow["batch"]
        assert timeline.done_ns == slow["latency_ns"]
        own = [call for call in timeline.calls if call.batch_id == timeline.own_batch_id]
        assert [call.name for call in own] == ["nf_rx", "nf_work", "nf_tx"]
        assert [call.name for call in own if call.is_cause] == ["nf_work"]
    report = recording.report["packets"]["slowest"][0]
    assert recording.timeline(report["id"])[0].done_ns == report["latency_ns"]
    assert sum(packet["batch"] == slow["batch"] for packet in packets) == BATCH_SIZE
    assert len(packets) == PACKETS
    assert len(recording.batches) == BATCHES > SLOW_BATCH


@pytest.mark.parametrize("packet", ["00000000000000ff", "no number", "-1", "1" * 17])
def test_no_such_packet(recording: Recording, packet: str) -> None:
    with pytest.raises(NfprobeError, match=f"has the ID {packet}") as raised:
        recording.timeline(packet)
    assert raised.value.next_command == f"nfprobe report {recording.path}"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="pandas takes Python 3.11")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The program of docs/python.md runs."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    write_recording(tmp_path / "session.nfp")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
    said = capsys.readouterr().out
    assert "transmitted" in said
    assert [line.split()[2] for line in said.splitlines()[-3:]] == ["nf_rx", "nf_work", "nf_tx"]


def test_a_recording_that_was_cut(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r", finish=False)
    opened = otel_nfprobe.open(path)
    assert not opened.complete
    assert len(opened.packets) == PACKETS


def test_a_package_that_is_missing(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(NfprobeError, match="needs the package polars") as raised:
        recording.packets.to_polars()
    assert raised.value.next_command == "pip install polars"


def test_no_recording(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("text")
    for path in (tmp_path / "x", tmp_path / "absent"):
        with pytest.raises(NfprobeError):
            otel_nfprobe.open(path)
