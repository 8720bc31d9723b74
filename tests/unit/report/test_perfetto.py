# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces of recordings that were made up, read back with Perfetto's own schema."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from otel_nfprobe.base.columns import concatenate, latency_ticks
from otel_nfprobe.cli.main import main
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.report.perfetto import TraceRequest, write_trace
from otel_nfprobe.report.trace_packets import Marks, PacketKind, Packets, arrange
from tests.support.absences import make_interrupt, make_steal, make_switches
from tests.support.perfetto_trace import PerfettoTrace, read_trace
from tests.support.synthetic_recording import BATCH_SIZE, BATCHES, PACKETS, SLOW_BATCH, START_NS, write_recording


def batch_start(number: int) -> int:
    return 1_000_000 + number * 100_000


def write(path: Path, *recordings: Path, request: TraceRequest | None = None) -> PerfettoTrace:
    readers = [RecordingReader(recording) for recording in recordings]
    with open(path, "wb") as output:
        write_trace([(reader, read_facts(reader)) for reader in readers], request or TraceRequest(), output.write)
    return read_trace(path)


def ns(ticks: int) -> int:
    return START_NS + ticks // 2


def test_calls_batches_and_packets_are_those_of_the_recording(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "r")
    trace = write(tmp_path / "t", recording)
    facts = read_facts(reader := RecordingReader(recording))
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(replay(reader, facts, pipeline))
    names = facts.function_names
    expected = [
        (names[call["function"]], ns(int(call["start_ticks"])), ns(int(call["end_ticks"]))) for call in columns.calls
    ]
    calls = trace.of("worker")
    assert sorted((call.name, call.start_ns, call.end_ns) for call in calls) == sorted(expected)
    assert {call.track for call in calls} == {("recorded-nf", "worker")}
    batches = trace.of("batches")
    assert [(batch.start_ns, batch.end_ns) for batch in batches] == [
        (ns(int(batch["start_ticks"])), ns(int(batch["end_ticks"]))) for batch in columns.batches
    ]
    assert [batch.arguments["nf.batch.id"] for batch in batches] == columns.batches["id"].tolist()
    packets = trace.of("packets")
    assert Counter(packet.arguments["nf.packet.id"] for packet in packets) == Counter(
        f"{id:016x}" for id in columns.packets["id"].tolist()
    )
    assert sorted(packet.end_ns - packet.start_ns for packet in packets) == sorted(
        (latency_ticks(columns) // 2).tolist()
    )
    assert all(packet.arguments["nf.packet.latency_ns"] == packet.end_ns - packet.start_ns for packet in packets)
    assert all(packet.above is None for packet in packets)  # those of one row do not overlap
    assert set(trace.clocks.values()) == {START_NS}
    sizes = trace.counters["recorded-nf", "worker", "batch size"]
    assert sorted(sizes) == sorted(
        pair for batch in batches for pair in ((batch.start_ns, BATCH_SIZE), (batch.end_ns, 0))
    )


def test_a_late_packet_leads_to_its_culprit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = write_recording(tmp_path / "r")
    trace = write(tmp_path / "t", recording)
    late = [packet for packet in trace.of("packets") if "nf.tail.cause" in packet.arguments]
    main(["report", "--json", str(recording)])
    report = json.loads(capsys.readouterr().out)["packets"]
    assert len(late) == report["late"]["packets"] > 0
    said = Counter((packet.arguments["nf.tail.cause"], packet.arguments["nf.tail.function"]) for packet in late)
    assert said == {(cause["kind"], cause["function"]): cause["packets"] for cause in report["causes"]}
    (batch,) = [batch for batch in trace.of("batches") if batch.flows]
    assert batch.start_ns == ns(batch_start(SLOW_BATCH))
    assert sorted(batch.flows) == sorted(flow for packet in late for flow in packet.flows)
    assert {packet.arguments["nf.tail.batch"] for packet in late} == {batch.arguments["nf.batch.id"]}
    assert {packet.arguments["nf.flow"] for packet in late} >= {report["slowest"][0]["flow"]}


def test_what_the_cpu_did_instead_has_rows_of_its_own(tmp_path: Path) -> None:
    reader = RecordingReader(write_recording(tmp_path / "r"))
    facts = read_facts(reader)
    at = batch_start(3)
    switch = make_switches([(at + 600, at + 1600, 0, AbsenceFlag.PREEMPTED)])
    switch["name"], switch["code"] = b"the hog", 99
    interrupt = make_interrupt(AbsenceKind.SOFTIRQ, 3, at + 1700, at + 1900)
    facts.absences = np.concatenate((switch, interrupt, make_steal(at + 4000, at + 8000, 3000)))
    with open(tmp_path / "t", "wb") as output:
        counts = write_trace([(reader, facts)], TraceRequest(), output.write)
    trace = read_trace(tmp_path / "t")
    (away,) = trace.of("off the CPU")
    assert (away.start_ns, away.end_ns) == (ns(at + 600), ns(at + 1600))
    assert "the hog" in away.name
    assert [(row.name, row.end_ns - row.start_ns) for row in trace.of("interrupts")] == [("softirq NET_RX", 100)]
    assert [row.arguments for row in trace.of("steal time")] == [{"steal_ns": 1500}]
    assert counts.absences == 3


def test_what_ran_around_some_packets(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "r")
    whole = write(tmp_path / "t", recording)
    slowest = write(tmp_path / "s", recording, request=TraceRequest(slowest=1, window_ns=0))
    (batch,) = slowest.of("batches")
    assert batch.start_ns == ns(batch_start(SLOW_BATCH))
    assert len(slowest.of("packets")) == BATCH_SIZE
    assert [call.name for call in slowest.of("worker")] == ["nf_rx", "nf_work", "nf_tx"]
    packet = whole.of("packets")[7 * BATCH_SIZE]
    for name in ("nf.packet.id", "nf.packet.content_id"):
        request = TraceRequest(around=int(packet.arguments[name], 16), window_ns=60_000)
        around = write(tmp_path / "a", recording, request=request)
        assert [batch.start_ns for batch in around.of("batches")] == [ns(batch_start(number)) for number in (6, 7, 8)]
    assert not write(tmp_path / "a", recording, request=TraceRequest(around=1)).slices


def test_the_same_packet_in_two_network_functions(tmp_path: Path) -> None:
    """Arrows have the packet's content ID as their number in both, so they lead from one to the other."""
    first = write_recording(tmp_path / "1")
    second = write_recording(tmp_path / "2", start_ns=START_NS + 500_000, session="00000000000000bb")
    trace = write(tmp_path / "t", first, second)
    flows = Counter(flow for packet in trace.of("packets") for flow in packet.flows if flow > 2 * PACKETS)
    assert len(flows) == PACKETS
    assert set(flows.values()) == {2}
    for packet in trace.of("packets"):
        assert int(packet.arguments["nf.packet.content_id"], 16) in packet.flows
    assert len(trace.of("batches")) == 2 * BATCHES


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, output = write_recording(tmp_path / "r"), tmp_path / "x.pftrace"
    for verb in ("report", "export"):
        assert main([verb, str(recording), "-o", str(output)]) == 0
        said = capsys.readouterr().err
        assert f"{3 * BATCHES} calls, {BATCHES} batches and {PACKETS} packets" in said
        assert len(read_trace(output).of("packets")) == PACKETS
        assert main([verb, str(recording), "-o", str(output), "--slowest", "1", "--window", "0"]) == 0
        assert f"1 batches and {BATCH_SIZE} packets" in capsys.readouterr().err
        assert main([verb, str(recording), "-o", str(output), "--around", "00000000000000ff"]) == 0
        assert "No packet" in capsys.readouterr().err
    refused = (
        ["report", str(recording), "--window", "1ms"],
        ["report", str(recording), "-o", str(output), "--window", "1ms"],
        ["report", str(recording), "--format", "perfetto"],
        ["report", str(recording), "-o", str(output), "--flow", "udp"],
        ["export", str(recording), "-o", str(tmp_path / "x.html")],
        ["export", "-o", str(output)],
        ["export", str(recording), "-o", str(output), "--slowest", "0.1%"],
        ["export", str(recording), "-o", str(output), "--endpoint", "http://localhost:4317"],
        ["export", str(recording), "--endpoint", "http://localhost:4317", "--slowest", "10"],
        ["report", str(recording), "-o", str(output), "--around", "x"],
    )
    for arguments in refused:
        assert main(arguments) == 2, arguments
        assert "nfprobe" in capsys.readouterr().err
    assert main(["report", str(recording), "-o", "/no/such/place.pftrace"]) == 1
    assert "Cannot write" in capsys.readouterr().err


def test_values_of_every_size_are_read_back() -> None:
    marks = Marks()
    event = TrackEvent(track_uuid=marks.number("track", 4), counter_value=marks.number("value", 9))
    event.flow_ids.append(marks.fixed("flow"))
    event.debug_annotations.add(name="id", string_value=marks.text("id", 4))
    kind = PacketKind(TracePacket(timestamp=marks.number("ns", 9), track_event=event), marks)
    rng = np.random.default_rng(5)
    tracks = rng.integers(0, 1 << 28, 200, np.uint64)
    values, times, flows = (
        rng.integers(0, 1 << 63, 200, np.uint64) >> rng.integers(0, 63, 200, np.uint64) for _ in range(3)
    )
    texts = np.array([f"{number:04d}" for number in range(200)], "S4")
    packets = kind.encode(200, track=tracks, value=values, flow=flows, id=texts, ns=times)
    order = rng.permutation(200)
    halves = [Packets(packets.data[: 100 * packets.sizes[0]], packets.sizes[:100]),
              Packets(packets.data[100 * packets.sizes[0] :], packets.sizes[100:])]  # fmt: skip
    read = Trace.FromString(arrange(halves, order)).packet
    assert [packet.timestamp for packet in read] == times[order].tolist()
    assert [packet.track_event.track_uuid for packet in read] == tracks[order].tolist()
    assert [packet.track_event.counter_value for packet in read] == values[order].tolist()
    assert [packet.track_event.flow_ids[0] for packet in read] == flows[order].tolist()
    assert [packet.track_event.debug_annotations[0].string_value for packet in read] == [f"{n:04d}" for n in order]
    with pytest.raises(AssertionError):
        kind.encode(1, track=np.array([1 << 28]), value=values[:1], flow=flows[:1], id=texts[:1], ns=times[:1])
