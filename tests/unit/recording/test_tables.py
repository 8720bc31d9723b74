# SPDX-License-Identifier: Apache-2.0
"""`nfprobe tables` and `query`: what the Parquet files hold is what is exported as spans; DuckDB and Polars agree."""

from __future__ import annotations

import json
import re
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.base.columns import PACKET, TOPIC, Columns
from otel_nfprobe.cli.main import main
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.tables import TABLES, address_text, hex_text, topic_text
from otel_nfprobe.report.report import build_report
from tests.support.marks import in_parts
from tests.support.otlp_receiver import Receiver
from tests.support.synthetic_recording import BATCHES, PACKETS, START_NS, write_recording

FIREWALL = Path(__file__).with_name("recordings") / "firewall.nfp"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "tables.md"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    recording = write_recording(folder / "made up.nfp")
    assert main(["tables", str(recording), str(FIREWALL), "-o", str(folder / "out"), "--slower-than", "10us"]) == 0
    return folder / "out"


def query(capsys: pytest.CaptureFixture[str], sql: str, *paths: Path) -> Any:
    assert main(["query", sql, *map(str, paths), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def exported(recording: Path) -> list[tuple[str, int, int, str, str, int]]:
    """Packets as the C encoder writes them."""
    receiver, found = Receiver(), []
    try:
        assert main(["export", str(recording), "--endpoint", f"http://127.0.0.1:{receiver.port}"]) == 0
    finally:
        receiver.stop()
    for data in receiver.requests:
        for span in ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans:
            values = {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}
            if not span.parent_span_id:
                names = (
                    "nf.packet.id",
                    "nf.packet.latency_ns",
                    "nf.packet.length",
                    "source.address",
                    "destination.address",
                )
                found.append((*(values[name] for name in names), values["source.port"]))
    return sorted(found)


def test_packets_are_those_of_the_spans(capsys: pytest.CaptureFixture[str]) -> None:
    names = "packet_id, latency_ns, length, source, destination, source_port"
    rows = [tuple(row.values()) for row in query(capsys, f"SELECT {names} FROM packets ORDER BY ALL", FIREWALL)]
    spans = exported(FIREWALL)
    assert len(rows) == len(spans) == 64
    assert [(*row[:1], *row[2:]) for row in sorted(rows)] == [(*span[:1], *span[2:]) for span in spans]
    assert all(abs(row[1] - span[1]) <= 1 for row, span in zip(sorted(rows), spans, strict=True))  # rounding


def test_calls_and_batches_are_those_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT function AS name, count(*) AS calls FROM calls GROUP BY ALL ORDER BY ALL"
    report = build_report(RecordingReader(FIREWALL)).document
    assert query(capsys, sql, FIREWALL) == sorted(
        ({"name": row["name"], "calls": row["calls"]} for row in report["functions"] if row["calls"]),
        key=lambda row: row["name"],
    )
    sql = "SELECT count(*) AS count, max(duration_ns) AS longest FROM batches"
    assert query(capsys, sql, FIREWALL) == [{"count": 2, "longest": report["batches"]["latency_ns"]["max"]}]


def test_rows_join_and_nest(capsys: pytest.CaptureFixture[str], tables: Path) -> None:
    sql = """SELECT count(*) AS packets, count(DISTINCT batch) AS batches, bool_and(b.size = 8) AS sizes,
        min(b.start_unix_ns) AS first FROM packets JOIN batches b USING (session, batch)
        WHERE b.service = 'recorded-nf'"""
    first = START_NS + 1_000_000 // 2
    assert query(capsys, sql, tables) == [{"packets": PACKETS, "batches": BATCHES, "sizes": True, "first": first}]
    sql = "SELECT count(*) AS n FROM calls c LEFT JOIN calls p ON p.session = c.session AND p.call = c.parent WHERE"
    assert query(capsys, f"{sql} c.parent IS NOT NULL AND p.call IS NULL", tables) == [{"n": 0}]
    assert query(capsys, f"{sql} c.start_unix_ns < p.start_unix_ns", tables) == [{"n": 0}]


def test_causes(capsys: pytest.CaptureFixture[str], tables: Path) -> None:
    sql = "SELECT cause, function, count(*) AS n, any_value(cause_batch = batch) AS own FROM causes"
    found = query(capsys, f"{sql} WHERE service = 'recorded-nf' GROUP BY ALL", tables)
    assert found == [{"cause": "own", "function": "nf_work", "n": 8, "own": True}]
    sql = (
        "SELECT count(*) AS n FROM causes JOIN batches USING (session, batch) WHERE duration_ns BETWEEN 30000 AND 31000"
    )
    assert query(capsys, sql, tables) == [{"n": 8}]


def test_parts_are_the_excess(capsys: pytest.CaptureFixture[str], tables: Path) -> None:
    joined = "FROM causes c JOIN parts p USING (session, batch, packet_index)"
    same = "c.cause = p.cause AND c.function = p.function AND c.excess_ns = p.excess_ns"
    sql = f"SELECT count(*) AS n, bool_and({same}) AS same {joined} WHERE p.number = 1 AND c.cause != 'unknown'"
    (known,) = query(capsys, "SELECT count(*) AS n FROM causes WHERE cause != 'unknown'", tables)
    assert query(capsys, sql, tables) == [known | {"same": True}]
    each = f"SELECT any_value(late_ns) - sum(p.excess_ns) AS off {joined} GROUP BY session, batch, packet_index"
    (found,) = query(capsys, f"SELECT max(abs(off)) AS off, count(*) AS n FROM ({each})", tables)
    assert found["n"] >= known["n"] > 0
    assert found["off"] <= 4  # each is rounded from ticks


def test_polars_reads_the_same(capsys: pytest.CaptureFixture[str], tables: Path) -> None:
    import polars  # takes 0.3 s, and each process of the tests imports this file

    for table in TABLES:
        frame = polars.read_parquet(tables / table / "*.parquet")
        assert not any(isinstance(kind, polars.Categorical) for kind in frame.dtypes)
        assert query(capsys, f"SELECT count(*) AS n FROM {table}", tables) == [{"n": len(frame)}]
    frame = polars.read_parquet(tables / "packets" / "*.parquet").sort("packet_id", "packet_index", "batch")
    columns = ("packet_id", "source", "latency_ns", "done_unix_ns", "is_repeated")
    sql = f"SELECT {', '.join(columns)} FROM packets ORDER BY packet_id, packet_index, batch"
    assert query(capsys, sql, tables) == frame.select(columns).to_dicts()


def test_schema_is_plain_and_documented(tables: Path) -> None:
    """Signed integers, doubles, booleans and text only: what Spark and Athena can read, too."""
    text = DOCS.read_text()
    for table in TABLES:
        section = text.split(f"\n### {table}\n")[1].split("\n### ")[0]
        documented = re.findall(r"^[*|] `(\w+)`", section, re.MULTILINE)
        for path in (tables / table).iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
            columns = pq.ParquetFile(path).schema
            assert columns.names == documented, table
            kinds = {
                (columns.column(i).physical_type, str(columns.column(i).logical_type)) for i in range(len(columns))
            }
            plain = {
                ("INT64", "None"),
                ("INT32", "None"),
                ("DOUBLE", "None"),
                ("BOOLEAN", "None"),
                ("BYTE_ARRAY", "String"),
            }
            assert kinds <= plain
    assert not [path for path in tables.rglob("*") if path.name.endswith(".part")]


addresses = st.one_of(st.ip_addresses(), st.none())


@in_parts(4)
@settings(max_examples=25)
@given(st.lists(st.tuples(addresses, addresses, st.integers(0, 2**64 - 1)), max_size=20))
def test_text_of_columns(part: int, rows: list[tuple[Any, Any, int]]) -> None:
    packets = np.zeros(len(rows), PACKET)
    for packet, (source, destination, digest) in zip(packets, rows, strict=True):
        version = source.version if source else 0
        if destination is not None and destination.version != version:
            destination = ip_address(bytes(4 if version == 4 else 16))
        packet["ip_version"], packet["digest"] = version, digest
        for name, address in (("source", source), ("destination", destination)):
            packed = address.packed if address else b""
            packet[name][: len(packed)] = list(packed)
    assert hex_text(packets["digest"]).to_pylist() == [f"{digest:016x}" for _, _, digest in rows]
    assert address_text(packets, "source").to_pylist() == [str(row[0]) if row[0] else None for row in rows]
    assert address_text(packets, "destination").null_count == sum(row[0] is None for row in rows)


def test_topics() -> None:
    packets, topics = np.zeros(3, PACKET), np.zeros(2, TOPIC)
    packets["digest"] = [7, 9, 3]
    topics["digest"], topics["size"] = [3, 7], [1, 2]
    topics["text"][:, :2] = [[97, 0], [98, 99]]
    assert topic_text(Columns(packets=packets, topics=topics)).to_pylist() == ["bc", None, "a"]


def test_a_cut_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = write_recording(tmp_path / "cut.nfp", finish=False)
    assert query(capsys, "SELECT count(*) AS n FROM packets", recording) == [{"n": PACKETS}]
    assert main(["query", "SELECT 1 AS one, NULL AS nothing", str(recording)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "one  nothing\n1    -\n"
    assert "is incomplete" in captured.err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["query", "SELEKT 1", "{old}"], 2, "syntax error"),
        (["query", "SELECT 1", "{folder}"], 2, "has no tables"),
        (["query", "SELECT 1", "{folder}/none"], 2, "Cannot read"),
        (["query", "SELECT * FROM flows", "{old}"], 2, "flows"),
        (["tables", "{old}", "-o", "{old}/x"], 1, "Cannot write tables"),
        (["tables", "{folder}", "-o", "x"], 2, "Cannot read"),
    ],
)
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str) -> None:
    assert main([word.format(old=FIREWALL, folder=tmp_path) for word in words]) == status
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.startswith("nfprobe: ")
    assert "\nnext: nfprobe" in errors or "\nnext: ls" in errors
    assert "unexpected" not in errors


@pytest.mark.parametrize("verb", ["tables", "query"])
def test_packages_that_are_missing(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_tables = ("otel_nfprobe.recording.table", "otel_nfprobe.recording.tables")
    for name in [name for name in sys.modules if name.startswith(of_tables)]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pyarrow", "pyarrow.parquet", "duckdb"):
        monkeypatch.setitem(sys.modules, name, None)
    words = {"tables": ["tables", str(FIREWALL), "-o", "x"], "query": ["query", "SELECT 1", str(FIREWALL)]}[verb]
    assert main(words) == 1
    errors = capsys.readouterr().err
    assert "which is not installed." in errors
    assert "next: pip install 'otel-nfprobe[tables]'\n" in errors
