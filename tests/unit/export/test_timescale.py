# SPDX-License-Identifier: Apache-2.0
"""Stretched copies: the same traces once more, in a service of their own, every connection and value as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.cli.main import main
from otel_nfprobe.export.span import TAIL, EncodedRequest, SpanEncoder, Tails
from otel_nfprobe.export.timescale import TRUE_TIMES, TimeScale
from otel_nfprobe.metrics.exemplars import ExemplarEncoder
from tests.support.otlp_receiver import Receiver
from tests.support.span_expectation import NAMES, STATE, THREADS, attributes_of, make_clock
from tests.support.synthetic_columns import make_columns
from tests.support.synthetic_recording import PACKETS as RECORDED_PACKETS
from tests.support.synthetic_recording import write_recording

PACKETS = 300


def encode(scale: TimeScale, window_ns: int = 0, kind: type[SpanEncoder] = SpanEncoder) -> list[EncodedRequest]:
    columns, random = make_columns(PACKETS), np.random.default_rng(4)
    tails = np.zeros(PACKETS, dtype=TAIL)
    tails["kind"] = random.integers(0, 7, PACKETS)
    selected = np.arange(PACKETS, dtype=np.uint32)
    encoder = kind({"service.name": "nf", "x": 1}, NAMES, 99, make_clock(), STATE, window_ns, scale)
    encoder.set_threads(THREADS)
    links = encoder.find_batch_links(columns, selected[::-1].copy())
    for column, name in enumerate(("link_high", "link_low", "link_span")):
        tails[name] = links[:, column] * (np.arange(PACKETS) % 3 > 0)
    requests = list(encoder.encode(columns, selected, np.full(PACKETS, 3, np.uint8), Tails(tails)))
    assert encoder.bad_packets == 0
    return requests


def spans_of(requests: list[EncodedRequest], service: str) -> list[Span]:
    found = []
    for request in requests:
        message = ExportTraceServiceRequest.FromString(request.data)
        assert message.SerializeToString(deterministic=True) == request.data
        (part,) = message.resource_spans
        if attributes_of(list(part.resource.attributes)) == {"service.name": service, "x": 1}:
            found += part.scope_spans[0].spans
    return found


@pytest.mark.parametrize("window_ns", [0, 10**9])
def test_copies_are_the_same_but_for_times_and_ids(window_ns: int) -> None:
    requests = encode(TimeScale(1000), window_ns)
    plain = encode(TRUE_TIMES, window_ns)
    assert requests[: len(plain)] == plain
    assert sum(request.packets for request in requests) == PACKETS
    true, copies = spans_of(requests, "nf"), spans_of(requests, "nf (ns as us)")
    assert len(true) == len(copies) == sum(request.spans for request in requests) / 2
    origins = {span.trace_id: span.start_time_unix_nano for span in true if not span.parent_span_id}
    traces: dict[bytes, bytes] = {}
    ids: dict[bytes, bytes] = {b"": b""}
    for span, copy in zip(true, copies, strict=True):
        assert traces.setdefault(span.trace_id, copy.trace_id) == copy.trace_id
        assert ids.setdefault(span.span_id, copy.span_id) == copy.span_id
    for span, copy in zip(true, copies, strict=True):
        origin = origins[span.trace_id]
        assert copy.trace_id[:8] != span.trace_id[:8]
        assert copy.trace_id[8:] == span.trace_id[8:]  # what samplers compare with the trace state
        assert copy.trace_state == span.trace_state == STATE
        assert (copy.name, copy.kind, copy.flags) == (span.name, span.kind, span.flags)
        assert copy.start_time_unix_nano == origin + (span.start_time_unix_nano - origin) * 1000
        assert copy.end_time_unix_nano == origin + (span.end_time_unix_nano - origin) * 1000
        values = attributes_of(list(span.attributes))
        assert attributes_of(list(copy.attributes)) == {**values, "nf.time_scale": 1000}
        assert copy.parent_span_id == ids[span.parent_span_id]
        linked = [(traces[link.trace_id], ids[link.span_id]) for link in span.links]
        assert [(link.trace_id, link.span_id) for link in copy.links] == linked
    assert len(set(traces.values())) == len(origins)
    assert not set(traces) & set(traces.values())
    assert len(set(ids.values())) == len(ids)
    assert any(span.links for span in true)


def test_copies_only() -> None:
    both, only = encode(TimeScale(1000)), encode(TimeScale(1000, is_only=True))
    assert [request.data for request in only] == [request.data for request in both if not request.packets]
    assert sum(request.packets for request in only) == PACKETS


def test_exemplars_lead_to_what_is_written() -> None:
    for scale, service in ((TimeScale(1000, is_only=True), "nf (ns as us)"), (TimeScale(1000), "nf")):
        kept: list[Any] = []

        class Keeping(ExemplarEncoder):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                kept.append(self.keep_exemplars())  # noqa: B023

        written = {(span.trace_id, span.span_id) for span in spans_of(encode(scale, kind=Keeping), service)}
        exemplars = kept[0].take()
        for exemplar in [*exemplars.latencies, *exemplars.durations.values()]:
            assert (exemplar.trace_id.to_bytes(16, "big"), exemplar.span_id.to_bytes(8, "big")) in written
        assert exemplars.latencies


@pytest.mark.parametrize(
    ("factor", "name"), [(1000, "a (ns as us)"), (1_000_000, "a (ns as ms)"), (50, "a (time x 50)")]
)
def test_names_of_services(factor: int, name: str) -> None:
    assert TimeScale(factor).rename({"service.name": "a", "b": 1}) == {"service.name": name, "b": 1}


@pytest.mark.usefixtures("clean_environment")
def test_a_recording_with_copies(receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = write_recording(tmp_path / "session.nfp")
    words = ["export", str(recording), "--endpoint", f"http://127.0.0.1:{receiver.port}", "--json"]
    assert main([*words, "--time-scale", "1000"]) == 0
    output = capsys.readouterr()
    assert "stretched 1,000 times, a display aid, as service 'recorded-nf (ns as us)'" in output.err
    summary = json.loads(output.out.splitlines()[-1])
    assert (summary["packets"], summary["spans"]["exported"]) == (RECORDED_PACKETS, len(receiver.spans()))
    roots = [span for span in receiver.spans() if not span.parent_span_id]
    assert len(roots) == 2 * RECORDED_PACKETS == len({span.trace_id for span in roots})
    for wrong, said in ((["--time-scale-only"], "needs --time-scale"), (["--time-scale", "1"], "a whole number")):
        assert main([*words, *wrong]) == 2
        assert said in capsys.readouterr().err
