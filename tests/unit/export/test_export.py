# SPDX-License-Identifier: Apache-2.0
"""`nfprobe export`: what a recording holds arrives, the same each time; what cannot be sent is said."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.cli.main import main
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.span import EncodedRequest
from otel_nfprobe.export.spool import Spool, SpoolSettings, describe_endpoint
from tests.support.otlp_receiver import Receiver, find_dead_endpoint
from tests.support.synthetic_recording import BATCH_SIZE, BATCHES, PACKETS, START_NS, TICKS_PER_NS, write_recording

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "session.nfp")


def export(receiver: Receiver, recording: Path, *options: str) -> int:
    return main(["export", str(recording), "--endpoint", f"http://127.0.0.1:{receiver.port}", *options])


def roots_of(spans: list[Span]) -> list[Span]:
    return [span for span in spans if not span.parent_span_id]


def read_summary(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def attributes_of(span: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}


def test_everything_is_sent(receiver: Receiver, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(receiver, recording, "--json") == 0
    spans = receiver.spans()
    roots = roots_of(spans)
    assert len(roots) == len({span.trace_id for span in spans}) == PACKETS
    assert {attributes_of(span)["nf.packet.disposition"] for span in roots} == {"transmitted"}
    assert {span.name for span in spans} == {"packet", "batch", "nf_rx", "nf_work", "nf_tx"}
    starts = {span.start_time_unix_nano for span in roots}
    expected = {START_NS + (1_000_000 + number * 100_000) // TICKS_PER_NS for number in range(BATCHES)}
    assert starts == expected
    summary = read_summary(capsys)
    assert summary["spans"] == {"exported": len(spans), "dropped": 0, "dropped_reasons": {}, "dropped_traces": {}}
    assert (summary["packets"], summary["requests"]) == (PACKETS, len(receiver.requests))


def test_the_resource_is_that_of_the_session(receiver: Receiver, recording: Path) -> None:
    assert export(receiver, recording) == 0
    resource = attributes_of(ExportTraceServiceRequest.FromString(receiver.requests[0]).resource_spans[0].resource)
    assert (resource["service.name"], resource["host.name"], resource["process.pid"]) == (
        "recorded-nf",
        "far-away",
        42,
    )
    receiver.requests.clear()
    assert export(receiver, recording, "--service", "renamed") == 0
    resource = attributes_of(ExportTraceServiceRequest.FromString(receiver.requests[0]).resource_spans[0].resource)
    assert resource["service.name"] == "renamed"


def test_it_is_the_same_each_time(receiver: Receiver, recording: Path) -> None:
    export(receiver, recording)
    first = list(receiver.requests)
    receiver.requests.clear()
    export(receiver, recording)
    assert receiver.requests == first


def test_sample(receiver: Receiver, recording: Path) -> None:
    export(receiver, recording, "--sample", "25%")
    sampled = roots_of(receiver.spans())
    # A quarter of 320; six standard deviations are 47.
    assert abs(len(sampled) - PACKETS / 4) < 48
    assert {span.trace_state for span in sampled} == {"ot=th:c"}
    assert all(int.from_bytes(span.trace_id[-7:], "big") >= 0xC << 52 for span in sampled)
    receiver.requests.clear()
    export(receiver, recording)
    assert {span.trace_id for span in sampled} < {span.trace_id for span in receiver.spans()}


def test_slow_packets_are_named_after_their_cause(receiver: Receiver, recording: Path) -> None:
    assert export(receiver, recording, "--slower-than", "10us") == 0
    roots = roots_of(receiver.spans())
    assert len(roots) == BATCH_SIZE
    assert {span.name for span in roots} == {"late packet: nf_work"}
    attributes = attributes_of(roots[0])
    assert (attributes["nf.tail.cause"], attributes["nf.sampling.reason"]) == ("own", "slow")
    # 58,000 ticks over the median of nf_work, which is exact to 1/64.
    assert attributes["nf.tail.excess_ns"] == pytest.approx(58_000 / TICKS_PER_NS, rel=0.01)


def test_slowest(receiver: Receiver, recording: Path) -> None:
    assert export(receiver, recording, "--slowest", "3%") == 0
    assert {attributes_of(span)["nf.sampling.reason"] for span in roots_of(receiver.spans())} == {"slowest"}


def test_a_cut_recording_is_sent_as_far_as_it_goes(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(receiver, write_recording(tmp_path / "cut.nfp", finish=False)) == 0
    assert len(roots_of(receiver.spans())) == PACKETS
    assert "is incomplete" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_dead_endpoint_is_said_in_bounded_time(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_nfprobe.cli.export.RETRY_TOTAL_S", 1.0)
    size = recording.stat().st_size
    began = time.monotonic()
    target = find_dead_endpoint().target
    assert main(["export", str(recording), "--endpoint", f"http://{target}", "--json"]) == 1
    assert time.monotonic() - began < 30
    output = capsys.readouterr()
    summary = json.loads(output.out.splitlines()[-1])
    assert summary["spans"]["exported"] == 0
    assert summary["spans"]["dropped"] == sum(summary["spans"]["dropped_reasons"].values()) > 0
    assert "UNAVAILABLE" in output.err
    assert f"next: nfprobe export {recording}" in output.err
    assert recording.stat().st_size == size


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--endpoint", "htp://x"], 2, "scheme"),
        ([], 2, "No endpoint is configured"),
        (["--endpoint", "http://127.0.0.1:1", "/none"], 2, None),
    ],
)
def test_mistakes(
    recording: Path, arguments: list[str], status: int, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if said is None:
        assert main(["export", "/none", "--endpoint", "http://127.0.0.1:1"]) == status
    else:
        assert main(["export", str(recording), *arguments]) == status
        output = capsys.readouterr().err
        assert said in output
        assert "next: " in output


def test_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("not a recording")
    assert main(["export", str(path), "--endpoint", "http://127.0.0.1:1"]) == 2


def test_what_is_spooled_is_sent(receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead, folder = find_dead_endpoint(), tmp_path / "spool"
    exporter = Exporter(dead, spool=Spool(SpoolSettings(folder), describe_endpoint(dead)))
    exporter.submit(EncodedRequest(b"request", 3, 1))
    assert exporter.close(0.0).spooled_spans == 3
    words = ["export", "--spool", str(folder), "--json", "--endpoint"]
    for expected in (3, 0):
        assert main([*words, f"http://127.0.0.1:{receiver.port}"]) == 0
        output = capsys.readouterr()
        assert json.loads(output.out.splitlines()[-1])["spans"]["exported"] == expected
        assert f"{expected} spooled spans were sent." in output.err
    assert receiver.requests == [b"request"]


@pytest.mark.thorough
def test_what_is_spooled_stays_when_nobody_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_nfprobe.cli.export.RETRY_TOTAL_S", 0.5)
    dead, folder = find_dead_endpoint(), tmp_path / "spool"
    words = ["export", "--spool", str(folder), "--endpoint", f"http://{dead.target}"]
    assert main(words) == 2
    assert "There is no spool in" in capsys.readouterr().err
    exporter = Exporter(dead, spool=Spool(SpoolSettings(folder), describe_endpoint(dead)))
    exporter.submit(EncodedRequest(b"request", 3, 1))
    exporter.close(0.0)
    for _ in range(2):
        assert main(words) == 1
        assert "3 still wait (UNAVAILABLE" in capsys.readouterr().err
    assert main(["export", str(tmp_path), *words[1:]]) == 2
    assert f"next: nfprobe export {tmp_path} --endpoint" in capsys.readouterr().err
