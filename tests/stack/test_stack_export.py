# SPDX-License-Identifier: Apache-2.0
"""Synthetic columns of 1,000 packets into the real Jaeger, directly and through the real Collector."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.clock import Clock, sample_pair
from otel_nfprobe.base.columns import Columns
from otel_nfprobe.cli.main import main
from otel_nfprobe.export.endpoint import find_endpoint
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.export.span import TAIL, TAIL_KINDS, SpanEncoder, Tails
from otel_nfprobe.pipeline.sampling import REASON_SAMPLE, REASON_SLOW
from tests.support.jaeger_client import JaegerClient, JaegerSpan
from tests.support.stack_services import Collector, Jaeger
from tests.support.synthetic_columns import make_columns, move_columns
from tests.support.synthetic_recording import BATCH_SIZE, BATCHES, write_recording
from tests.support.synthetic_recording import PACKETS as RECORDED_PACKETS

pytestmark = pytest.mark.stack

PACKETS = 1000
NAMES = ["pcap_rx", "macswap", "lookup", "pcap_tx"]


def make_recent_columns(clock: Clock, packets: int = PACKETS, **arguments: Any) -> Columns:
    """Columns that begin a second ago: Jaeger's search takes a window of time."""
    columns = make_columns(packets, seed=time.time_ns(), **arguments)
    move_columns(columns, sample_pair().ticks - clock.find_ticks(1e9))
    return columns


def export(endpoint_text: str, service: str, columns: Columns, clock: Clock, **arguments: Any) -> int:
    endpoint = find_endpoint(endpoint_text, {})
    assert endpoint is not None
    encoder = SpanEncoder(make_resource_attributes({}, service), NAMES, time.time_ns(), clock)
    encoder.set_threads([(11, "lcore-1"), (12, "lcore-2")])
    exporter = Exporter(endpoint)
    count = len(columns.packets)
    selected = np.arange(count, dtype=np.uint32)
    reasons = np.full(count, arguments.pop("reason", REASON_SAMPLE), dtype=np.uint8)
    sent = 0
    for request in encoder.encode(columns, selected, reasons, **arguments):
        assert exporter.submit(request)
        sent += request.spans
    counters = exporter.close(60)
    assert counters.exported_spans == sent, counters
    assert not counters.dropped_spans
    return sent


def check_ten_packets(client: JaegerClient, service: str, columns: Columns, clock: Clock) -> None:
    for index in np.random.default_rng(1).choice(PACKETS, 10, replace=False):
        packet = columns.packets[index]
        ids = client.find_trace_ids(service, {"nf.packet.id": f"{packet['id']:016x}"})
        assert len(ids) == 1
        check_packet(client.read_trace(ids[0]), columns, packet, clock)


def check_packet(spans: list[JaegerSpan], columns: Columns, packet: np.void, clock: Clock) -> None:
    batch = columns.batches[packet["batch"]]
    calls = columns.calls[batch["first_call"] : batch["first_call"] + batch["calls"]]
    by_name = {span.name: span for span in spans}
    root, batch_span = spans_named(spans, ("packet", "dropped packet")), by_name["batch"]
    believed = packet["flags"] & 1 and packet["arrival_ticks"] <= batch["start_ticks"]
    start = packet["arrival_ticks"] if believed else batch["earliest_ticks"] or batch["start_ticks"]
    end = packet["done_ticks"] or batch["end_ticks"]
    assert [root.start_ns, root.end_ns] == clock.convert([start, max(start, end)]).tolist()
    assert [batch_span.start_ns, batch_span.end_ns] == clock.convert(
        [batch["start_ticks"], batch["end_ticks"]]
    ).tolist()
    assert root.parent_span_id == ""
    assert batch_span.parent_span_id == root.span_id
    assert batch_span.attributes["nf.batch.id"] == batch["id"]
    expected = sorted(
        (NAMES[call["function"]], *clock.convert([call["start_ticks"], call["end_ticks"]]).tolist()) for call in calls
    )
    functions = [span for span in spans if "code.function.name" in span.attributes]
    assert sorted((span.name, span.start_ns, span.end_ns) for span in functions) == expected
    assert all(span.scope_name == "otel-nfprobe" for span in spans)
    assert len({span.span_id for span in spans}) == len(spans)


def spans_named(spans: list[JaegerSpan], names: tuple[str, ...]) -> JaegerSpan:
    (found,) = (span for span in spans if span.name in names)
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock.start()


@pytest.fixture
def service() -> str:
    return f"nf-{uuid.uuid4().hex[:12]}"


def test_into_jaeger(jaeger: Jaeger, clock: Clock, service: str) -> None:
    columns = make_recent_columns(clock)
    export(jaeger.otlp_endpoint, service, columns, clock)
    assert jaeger.client.await_traces(service, PACKETS) == PACKETS
    check_ten_packets(jaeger.client, service, columns, clock)


def test_through_the_collector(collector: Collector, clock: Clock, service: str) -> None:
    columns = make_recent_columns(clock)
    export(collector.otlp_endpoint, service, columns, clock)
    client = collector.jaeger.client
    assert client.await_traces(service, PACKETS) == PACKETS
    check_ten_packets(client, service, columns, clock)


def test_exporting_twice_makes_no_more_traces(jaeger: Jaeger, clock: Clock, service: str) -> None:
    columns = make_recent_columns(clock)
    columns.packets = columns.packets[:50]
    endpoint = find_endpoint(jaeger.otlp_endpoint, {})
    assert endpoint is not None
    exporter = Exporter(endpoint)
    for _ in range(2):
        encoder = SpanEncoder(make_resource_attributes({}, service), NAMES, 7, clock)
        for request in encoder.encode(columns, np.arange(50, dtype=np.uint32), np.ones(50, dtype=np.uint8)):
            exporter.submit(request)
    exporter.close(60)
    assert jaeger.client.await_traces(service, 50) == 50


def test_late_packets_are_found_by_their_cause(jaeger: Jaeger, clock: Clock, service: str) -> None:
    columns = make_recent_columns(clock)
    columns.packets = columns.packets[:20]
    tails = np.zeros(20, dtype=TAIL)
    tails["function"], tails["kind"] = 2, TAIL_KINDS.index("queue")
    export(jaeger.otlp_endpoint, service, columns, clock, reason=REASON_SLOW, tails=Tails(tails))
    assert jaeger.client.await_traces(service, 20) == 20
    found = jaeger.client.find_trace_ids(service, {"nf.tail.function": "lookup"}, "late packet: lookup", limit=100)
    assert len(found) == 20
    assert jaeger.client.find_trace_ids(service, {"nf.tail.function": "macswap"}) == []


def test_the_largest_request_is_taken(collector: Collector, clock: Clock, service: str) -> None:
    columns = make_recent_columns(clock, 3000, calls_per_batch=12)
    # Of a fair sample the Collector takes so many spans a second only; what was chosen for its latency it takes.
    assert export(collector.otlp_endpoint, service, columns, clock, reason=REASON_SLOW) > 3 * 8192
    assert collector.jaeger.client.await_traces(service, 3000) == 3000


def test_a_recording_is_exported_by_command(
    jaeger: Jaeger, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = write_recording(tmp_path / "session.nfp", start_ns=time.time_ns() - 10**9)
    arguments = ["export", str(recording), "--endpoint", jaeger.otlp_endpoint, "--service", service, "--json"]
    assert main(arguments) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["packets"] == RECORDED_PACKETS
    assert jaeger.client.await_traces(service, RECORDED_PACKETS) == RECORDED_PACKETS
    (trace_id,) = jaeger.client.find_trace_ids(service, {"nf.packet.content_id": f"{0x1000 * 3:016x}"})
    spans = jaeger.client.read_trace(trace_id)
    assert [span.name for span in spans] == ["packet", "batch", "nf_rx", "nf_work", "nf_tx"]
    assert spans[0].resource["service.name"] == service
    assert spans[0].resource["host.name"] == "far-away"


def write_own_recording(folder: Path) -> Path:
    """A recording whose trace ids no other test's export has."""
    now_ns = time.time_ns()
    return write_recording(folder / "session.nfp", start_ns=now_ns - 10**9, session=f"{now_ns:016x}")


def test_stretched_copies_are_readable_in_microseconds(
    jaeger: Jaeger, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = write_own_recording(tmp_path)
    words = ["export", str(recording), "--endpoint", jaeger.otlp_endpoint, "--service", service]
    assert main([*words, "--time-scale", "1000"]) == 0
    stretched = f"{service} (ns as us)"
    assert jaeger.client.await_traces(service, RECORDED_PACKETS) == RECORDED_PACKETS
    assert jaeger.client.await_traces(stretched, RECORDED_PACKETS) == RECORDED_PACKETS
    tags = {"nf.packet.content_id": f"{0x1000 * 3:016x}"}
    (true_id,) = jaeger.client.find_trace_ids(service, tags)
    (copy_id,) = jaeger.client.find_trace_ids(stretched, {**tags, "nf.time_scale": "1000"})
    true, copy = jaeger.client.read_trace(true_id), jaeger.client.read_trace(copy_id)
    assert true_id != copy_id
    assert [span.name for span in copy] == [span.name for span in true]
    for span, original in zip(copy, true, strict=True):
        assert span.start_ns - copy[0].start_ns == 1000 * (original.start_ns - true[0].start_ns)
        assert span.end_ns - span.start_ns == 1000 * (original.end_ns - original.start_ns)
        assert span.attributes == {**original.attributes, "nf.time_scale": 1000}
    # What its page shows: whole microseconds, which are the true ns.
    shown = {one["operationName"]: one["duration"] for one in jaeger.client.read_page_spans(copy_id)}
    calls = [span for span in copy if "nf.duration_ns" in span.attributes]
    assert {span.name: shown[span.name] for span in calls} == {
        span.name: span.attributes["nf.duration_ns"] for span in calls
    }


def test_packets_link_to_their_batch(jaeger: Jaeger, service: str, tmp_path: Path) -> None:
    recording = write_own_recording(tmp_path)
    words = ["export", str(recording), "--endpoint", jaeger.otlp_endpoint, "--service", service, "--spans", "links"]
    assert main(words) == 0
    client = jaeger.client
    assert client.await_traces(service, RECORDED_PACKETS + BATCHES) == RECORDED_PACKETS + BATCHES
    (packet_id,) = client.find_trace_ids(service, {"nf.packet.content_id": f"{0x1000 * 3:016x}"})
    references = [one for span in client.read_page_spans(packet_id) for one in span["references"]]
    (reference,) = [one for one in references if one["refType"] == "FOLLOWS_FROM"]
    batch = client.read_trace(reference["traceID"])
    assert [span.name for span in batch] == ["batch", "nf_rx", "nf_work", "nf_tx"]
    assert batch[0].span_id == reference["spanID"]
    tags = {"nf.batch.id": str(batch[0].attributes["nf.batch.id"])}
    found = client.find_trace_ids(service, tags, limit=100)
    assert len(found) == 1 + BATCH_SIZE
    assert {packet_id, reference["traceID"]} <= set(found)
