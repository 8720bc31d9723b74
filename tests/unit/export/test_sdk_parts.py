# SPDX-License-Identifier: Apache-2.0
"""What any program of the OpenTelemetry SDK can use: exporter, ids, sampler, detector, found by their entry points."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.destination import NamedExporter, find_destination
from otel_nfprobe.export.endpoint import Endpoint
from otel_nfprobe.export.sdk_exporter import NfprobeSpanExporter
from otel_nfprobe.export.sdk_ids import PacketIdGenerator, packet_trace
from otel_nfprobe.export.sdk_resource import TargetResourceDetector
from otel_nfprobe.export.sdk_sampler import ConsistentSampler
from otel_nfprobe.export.sdk_transport import read_spans
from otel_nfprobe.export.span import SpanEncoder
from otel_nfprobe.pipeline.sampling import find_threshold
from tests.support.otlp_receiver import HttpReceiver, Receiver, find_dead_endpoint
from tests.support.span_expectation import NAMES, make_clock
from tests.support.synthetic_columns import make_columns
from tests.support.synthetic_recording import write_recording

GROUPS = {
    "opentelemetry_traces_exporter": NfprobeSpanExporter,
    "opentelemetry_resource_detector": TargetResourceDetector,
    "opentelemetry_id_generator": PacketIdGenerator,
    "opentelemetry_traces_sampler": ConsistentSampler,
    "opentelemetry_sampler": ConsistentSampler,
}


pytestmark = pytest.mark.usefixtures("clean_environment")


def random_context(dice: random.Random, state: bool = False) -> SpanContext:
    trace_state = TraceState([("ot", "th:8"), ("x", "y")]) if state else None
    ids = (dice.randrange(1, 2**128), dice.randrange(1, 2**64))
    return SpanContext(*ids, dice.choice([True, False]), TraceFlags(1), trace_state)


def test_entry_points_are_installed() -> None:
    for group, what in GROUPS.items():
        (entry,) = entry_points(group=group, name="nfprobe")
        assert entry.load() is what
    (entry,) = entry_points(group="opentelemetry_environment_variables", name="nfprobe")
    names = [name for name in vars(entry.load()) if name.startswith("NFPROBE_")]
    assert names == [getattr(entry.load(), name) for name in names]
    assert len(names) >= 4


def test_a_program_of_the_sdk(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
    exporter = NfprobeSpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "any"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=50_000))
    tracer = provider.get_tracer("test")
    for number in range(2000):
        with (
            tracer.start_as_current_span("outer", attributes={"number": number}),
            tracer.start_as_current_span("inner"),
        ):
            pass
    assert provider.force_flush()
    assert exporter.force_flush()
    counters = exporter.read_counters()
    provider.shutdown()
    assert (counters.exported_spans, counters.dropped_spans) == (4000, {})
    assert sum(len(list(read_spans(data))) for data in receiver.requests) == 4000


def test_parts_are_made_as_a_configuration_file_asks(receiver: Receiver) -> None:
    """`NAME: {key: value}` in the SDK's configuration file becomes a call of the entry point with these arguments."""

    def make(group: str, **arguments: str) -> Any:
        (entry,) = entry_points(group=group, name="nfprobe")
        return entry.load()(**arguments)

    exporter = make("opentelemetry_traces_exporter", endpoint=f"http://127.0.0.1:{receiver.port}")
    detected = make("opentelemetry_resource_detector").detect()
    sampler, generator = make("opentelemetry_sampler"), make("opentelemetry_id_generator")
    provider = TracerProvider(sampler, detected, id_generator=generator, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with packet_trace(7, 0) as trace_id, provider.get_tracer("x").start_as_current_span("send"):
        pass
    provider.shutdown()
    (span,) = read_spans(receiver.requests[0])
    assert span.get_span_context().trace_id == trace_id
    assert span.resource.attributes["process.pid"] == os.getpid()


def test_spans_are_split_into_requests(receiver: Receiver) -> None:
    one = ReadableSpan("one", random_context(random.Random(1)), attributes={"text": "x" * 5000})
    exporter = NfprobeSpanExporter(f"http://127.0.0.1:{receiver.port}")
    exporter.export([one] * 2000)
    exporter.export([])
    exporter.shutdown()
    assert sum(len(list(read_spans(data))) for data in receiver.requests) == 2000
    assert all(len(data) <= 3.5 * 2**20 for data in receiver.requests)


def test_a_span_that_cannot_be_encoded_takes_no_other_with_it(receiver: Receiver) -> None:
    context = random_context(random.Random(1))
    exporter = NfprobeSpanExporter(f"http://127.0.0.1:{receiver.port}")
    spans = [ReadableSpan("\udcff" if number == 5 else str(number), context) for number in range(9)]
    assert exporter.export(spans) is SpanExportResult.FAILURE
    exporter.shutdown()
    sent = [span.name for data in receiver.requests for span in read_spans(data)]
    assert sent == ["0", "1", "2", "3", "4", "6", "7", "8"]


@pytest.mark.thorough
def test_the_spool_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFPROBE_SPOOL", str(tmp_path / "spool"))
    exporter = NfprobeSpanExporter(f"http://{find_dead_endpoint().target}")
    exporter.export([ReadableSpan("one", random_context(random.Random(1)))])
    assert not exporter.force_flush(100)
    exporter.shutdown()
    assert exporter.read_counters().spooled_spans == 1


@pytest.mark.thorough
def test_a_program_that_is_configured_by_the_environment(receiver: Receiver) -> None:
    """The SDK's own configurator finds all parts by name."""
    program = (
        "from opentelemetry.sdk._configuration import _OTelSDKConfigurator\n"
        "_OTelSDKConfigurator().configure()\n"
        "from opentelemetry import trace\n"
        "from otel_nfprobe.export.sdk_ids import packet_trace\n"
        "with packet_trace(0xffffffffffffffff, 0), trace.get_tracer('x').start_as_current_span('send'): pass\n"
        "trace.get_tracer_provider().shutdown()\n"
    )
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "nfprobe",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_PYTHON_ID_GENERATOR": "nfprobe",
        "OTEL_TRACES_SAMPLER": "nfprobe",
        "OTEL_TRACES_SAMPLER_ARG": "0.9999",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "nfprobe,otel",
        "NFPROBE_TARGET_PID": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
    (span,) = read_spans(receiver.requests[0])
    with packet_trace(0xFFFFFFFFFFFFFFFF, 0) as trace_id:
        assert span.get_span_context().trace_id == trace_id
    assert span.get_span_context().trace_state["ot"].startswith("th:")
    assert span.resource.attributes["process.pid"] == 1


def test_packet_traces_are_those_of_correlated_monitors() -> None:
    columns = make_columns(50)
    encoder = SpanEncoder({}, NAMES, 5, clock := make_clock(), correlate_window_ns=10**6)
    columns.packets["flags"] = 0
    ids = encoder.find_trace_ids(columns, np.arange(50, dtype=np.uint32))
    generator = PacketIdGenerator()
    for packet, (high, low) in zip(columns.packets, ids.tolist(), strict=True):
        received_ns = int(clock.convert([packet["receive_ticks"]])[0])
        with packet_trace(int(packet["digest"]), received_ns, 10**6):
            assert generator.generate_trace_id() == high << 64 | low
    assert generator.generate_trace_id() != generator.generate_trace_id()
    assert generator.is_trace_id_random()


def test_the_sampler_keeps_what_monitors_keep() -> None:
    dice = random.Random(2)
    sampler = ConsistentSampler("0.25")
    kept = 0
    for _ in range(4000):
        trace_id = dice.randrange(2**128)
        result = sampler.should_sample(None, trace_id, "x")
        expected = trace_id & (1 << 56) - 1 >= find_threshold(0.25)
        assert result.decision.is_sampled() == expected
        assert not expected or result.trace_state["ot"] == "th:c"
        kept += expected
    assert abs(kept - 1000) < 6 * 28
    always = ConsistentSampler(None).should_sample(None, 1, "x")
    assert always.decision.is_sampled()
    assert "ot" not in always.trace_state
    assert not ConsistentSampler("0").should_sample(None, 2**128 - 1, "x").decision.is_sampled()
    with pytest.raises(ValueError):
        ConsistentSampler("2")


def test_the_detector_describes_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TargetResourceDetector().detect().attributes["process.pid"] == os.getpid()
    monkeypatch.setenv("NFPROBE_TARGET_PID", str(os.getppid()))
    assert TargetResourceDetector().detect().attributes["process.pid"] == os.getppid()
    monkeypatch.setenv("NFPROBE_TARGET_PID", "99999999")
    assert not TargetResourceDetector().detect().attributes


@pytest.mark.parametrize(
    ("exporter", "endpoint", "variable", "expected"),
    [
        (None, None, None, None),
        (None, None, "none", None),
        (None, None, "console", NamedExporter("console")),
        (None, None, "otlp", "localhost:4317"),
        (None, "http://a:1", "console", "a:1"),
        ("otlp", None, "console", "localhost:4317"),
        ("otlp", "http://a:1", None, "a:1"),
        ("console", None, "otlp", NamedExporter("console")),
        ("none", "http://a:1", None, None),
    ],
)
def test_destinations(exporter: str | None, endpoint: str | None, variable: str | None, expected: Any) -> None:
    environment = {"OTEL_TRACES_EXPORTER": variable} if variable else {}
    found = find_destination(exporter, endpoint, environment)
    assert (found.target if isinstance(found, Endpoint) else found) == expected
    assert find_destination(exporter, endpoint, environment | {"OTEL_SDK_DISABLED": "true"}) is None


def test_destinations_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="several exporters"):
        find_destination(None, None, {"OTEL_TRACES_EXPORTER": "otlp,console"})
    with pytest.raises(UsageError, match="--endpoint is for"):
        find_destination("console", "http://a:1", {})


@pytest.mark.thorough
def test_any_installed_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = write_recording(tmp_path / "session.nfp")

    def export(*options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "otel_nfprobe", "export", str(recording), "--sample", "2%", *options]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)

    done = export("--exporter", "console", "--json")
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.rstrip().rsplit("\n", 1)
    summary, decoder, text, spans = json.loads(last), json.JSONDecoder(), "".join(printed).lstrip(), []
    while text:
        span, end = decoder.raw_decode(text)
        spans.append(span)
        text = text[end:].lstrip()
    assert len(spans) == summary["spans"]["exported"] > 0
    assert {"packet", "batch", "nf_work"} <= {span["name"] for span in spans}
    assert any("nf.packet.id" in span["attributes"] for span in spans)

    receiver = HttpReceiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
    assert export("--exporter", "otlp_proto_http").returncode == 0
    receiver.stop()
    assert sum(len(list(read_spans(data))) for data in receiver.requests) == len(spans)
    done = export("--exporter", "no-such")
    assert done.returncode == 2
    assert "No exporter is installed under the name 'no-such'; there are otlp, console" in done.stderr
