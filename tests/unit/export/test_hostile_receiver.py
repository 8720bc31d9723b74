# SPDX-License-Identifier: Apache-2.0
"""Whatever a receiver answers, over real connections: the sender goes on, in bounded time and memory, and says why."""

from __future__ import annotations

import gzip
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_nfprobe.export.delivery import RETRY_AFTER_MAX_S, Outcome, OutcomeKind, read_retry_s
from otel_nfprobe.export.endpoint import Endpoint, find_endpoint
from otel_nfprobe.export.otlp import DROPPED_REJECTED, DROPPED_SENDER_ENDED, Exporter, open_transport
from otel_nfprobe.export.otlp_http import judge
from otel_nfprobe.export.span import EncodedRequest
from otel_nfprobe.metrics.metrics_sender import MetricsSender, open_exporter
from tests.support.otlp_receiver import Receiver

PATIENCE_S = 60.0
TEN_YEARS_S = 315_360_000
HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
Script = Callable[[socket.socket], None]


def say(*parts: bytes, forever: bytes = b"", pause_s: float = 0.0) -> Script:
    """Sends parts, then one of them again and again as long as the client listens."""

    def send(client: socket.socket) -> None:
        for part in parts:
            client.sendall(part)
        while forever:
            client.sendall(forever)
            time.sleep(pause_s)

    return send


def end(*parts: bytes) -> Script:
    """Sends parts and closes the connection."""

    def send(client: socket.socket) -> None:
        say(*parts)(client)
        client.close()

    return send


class RawReceiver:
    """Reads a request, then does what a script says; the last script again and again."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def endpoint(self, signal: str = "traces", **environment: str) -> Endpoint:
        found = find_endpoint(f"http://127.0.0.1:{self.port}", HTTP | environment, signal)
        assert found is not None
        return found

    def stop(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while _read_request(client):
                script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                script(client)


def _read_request(client: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        part = client.recv(65536)
        if not part:
            return b""
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    while len(body) < int(found[1] if found else 0):
        body += client.recv(65536)
    return head


@pytest.fixture
def raw() -> Iterator[Callable[..., RawReceiver]]:
    made: list[RawReceiver] = []

    def make(*scripts: Script) -> RawReceiver:
        made.append(RawReceiver(*scripts))
        return made[-1]

    yield make
    for receiver in made:
        receiver.stop()


def attempt(endpoint: Endpoint, timeout_s: float = 1.0) -> tuple[Outcome, float]:
    transport = open_transport(endpoint)
    began = time.monotonic()
    outcome = transport.attempt(b"x" * 100, timeout_s)
    took_s = time.monotonic() - began
    transport.close()
    return outcome, took_s


def status_of(seconds: int, nanos: int = 0) -> bytes:
    retry_info, detail = RetryInfo(), AnyMessage()
    retry_info.retry_delay.seconds, retry_info.retry_delay.nanos = seconds, nanos
    detail.Pack(retry_info)
    return Status(code=8, message="not now", details=[detail]).SerializeToString()


@pytest.mark.parametrize("seconds", [TEN_YEARS_S, 2**62, -1, -(2**62), 0])
@pytest.mark.parametrize("nanos", [0, 999_999_999, -(2**31), 2**31 - 1])
def test_any_duration_is_a_pause_that_ends(seconds: int, nanos: int) -> None:
    asked_s = read_retry_s(status_of(seconds, nanos))
    assert asked_s is not None
    assert 0 <= asked_s <= RETRY_AFTER_MAX_S


@pytest.mark.parametrize(
    "text",
    ["9" * 4000, "1e999", "nan", "inf", "-5", "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 -2359"],
)
def test_any_retry_after_is_a_pause_that_ends(text: str) -> None:
    assert 0 <= judge(503, text, b"").retry_after_s <= RETRY_AFTER_MAX_S


def throttle(status: bytes) -> Callable[[grpc.ServicerContext], bytes]:
    def answer(context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "come\x1b]0;back\x07 later")

    return answer


@pytest.mark.parametrize("seconds", [TEN_YEARS_S, 2**62, -5])
def test_who_asks_for_ten_years_gets_the_next_request_all_the_same(
    seconds: int, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_nfprobe.export.delivery.RETRY_AFTER_MAX_S", 0.2)
    receiver.answers = [throttle(status_of(seconds)), lambda _: b""]
    exporter = Exporter(receiver.endpoint())
    exporter.submit(EncodedRequest(b"x", 3, 1))
    assert exporter.wait(timeout_s=PATIENCE_S)
    counters = exporter.close()
    assert (counters.exported_spans, counters.retries) == (3, 1)
    assert counters.last_error.isprintable()


@pytest.mark.parametrize("rejected", [-(2**63), -1, 4, 2**63 - 1])
def test_more_cannot_be_rejected_than_was_sent(rejected: int, receiver: Receiver) -> None:
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = rejected
    response.partial_success.error_message = "a\x1b[2J\nb" + "c" * 100_000
    receiver.answers = [lambda _: response.SerializeToString()]
    exporter = Exporter(receiver.endpoint())
    exporter.submit(EncodedRequest(b"x", 3, 1))
    assert exporter.wait(timeout_s=PATIENCE_S)
    counters = exporter.close()
    assert counters.exported_spans == (3 if rejected < 0 else 0)
    assert counters.dropped_spans == ({} if rejected < 0 else {DROPPED_REJECTED: 3})
    (sentence,) = counters.sentences
    assert sentence.isprintable()
    assert len(sentence) < 500


@pytest.mark.parametrize(
    "status",
    [b"\xff" * 50, b"", b"\x1a\x05\x0a\x03abc", Status(details=[AnyMessage(type_url="x")]).SerializeToString()],
)
def test_a_status_that_is_none(status: bytes, receiver: Receiver) -> None:
    receiver.answers = [throttle(status)]
    outcome, _ = attempt(receiver.endpoint(), PATIENCE_S)
    assert (outcome.verdict, outcome.retry_after_s) == (OutcomeKind.RETRY, 0.0)
    assert outcome.message.isprintable()


@pytest.mark.thorough
def test_a_gzip_bomb_by_grpc(receiver: Receiver) -> None:
    def bomb(context: grpc.ServicerContext) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return bytes(256 << 20)

    receiver.answers = [bomb]
    outcome, _ = attempt(receiver.endpoint(), PATIENCE_S)
    assert outcome.verdict is not OutcomeKind.DELIVERED


ENDLESS = {
    "a body that drips": say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", forever=b"x", pause_s=0.2),
    "a status line that drips": say(b"HTTP/1.1 200 ", forever=b"x", pause_s=0.2),
    "headers that drip": say(b"HTTP/1.1 200 OK\r\n", forever=b"X-Y: z\r\n", pause_s=0.2),
    "100 Continue, again and again": say(forever=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunks that drip": say(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", forever=b"1\r\nx\r\n", pause_s=0.2
    ),
    "trailers, again and again": say(CHUNKED + b"0\r\n", forever=b"X-Y: z\r\n"),
    "silence": say(forever=b"", pause_s=0.2),
}


@pytest.mark.thorough
@pytest.mark.parametrize("script", ENDLESS.values(), ids=ENDLESS.keys())
def test_an_answer_that_does_not_end(script: Script, raw: Callable[..., RawReceiver]) -> None:
    outcome, took_s = attempt(raw(script).endpoint(), timeout_s=1.0)
    assert outcome.verdict in (OutcomeKind.RETRY, OutcomeKind.REFUSED)
    assert outcome.message.isprintable()
    assert took_s < 10


NONSENSE = {
    "no HTTP": say(b"\x00\x01\x02 rubbish\r\n\r\n"),
    "a line without end": say(b"HTTP/1.1 200 " + b"x" * (1 << 20)),
    "a thousand headers": say(b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 1000 + b"\r\n"),
    "lengths that differ": say(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"),
    "a length below zero": end(b"HTTP/1.1 503 No\r\nContent-Length: -7\r\n\r\n"),
    "a length of letters": end(b"HTTP/1.1 503 No\r\nContent-Length: \xb2\r\n\r\n"),
    "chunks of letters": say(CHUNKED + b"xyz\r\n"),
    "a status of 999": say(b"HTTP/1.1 999 \x1b[31mred\r\nContent-Length: 0\r\n\r\n"),
    "101": say(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"),
    "a redirect": say(b"HTTP/1.1 308 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
    "closed at once": lambda client: client.close(),
}


@pytest.mark.parametrize("script", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_no_delivery(script: Script, raw: Callable[..., RawReceiver]) -> None:
    outcome, _ = attempt(raw(script).endpoint(), PATIENCE_S)
    assert outcome.verdict in (OutcomeKind.RETRY, OutcomeKind.REFUSED)
    assert outcome.message
    assert outcome.message.isprintable()
    assert len(outcome.message) < 500


def test_an_early_hint_is_not_the_answer_to_the_next_request(raw: Callable[..., RawReceiver]) -> None:
    hint = say(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n")
    transport = open_transport(raw(hint, say(TAKEN)).endpoint())
    assert transport.attempt(b"x", PATIENCE_S).verdict is OutcomeKind.REFUSED
    assert transport.attempt(b"x", PATIENCE_S).verdict is OutcomeKind.DELIVERED
    transport.close()


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def bomb_of(size_bytes: int) -> Script:
    body = gzip.compress(bytes(size_bytes))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    return say(head.encode(), body)


@pytest.mark.thorough
def test_a_gzip_bomb_by_http(raw: Callable[..., RawReceiver]) -> None:
    endpoint = raw(bomb_of(400 << 20)).endpoint()
    before = resident_bytes()
    outcome, _ = attempt(endpoint, PATIENCE_S)
    assert outcome.verdict is OutcomeKind.DELIVERED  # 200 says so, whatever else is said
    assert resident_bytes() - before < 100 << 20


@pytest.mark.thorough
def test_the_sender_survives_every_answer_and_then_delivers(raw: Callable[..., RawReceiver]) -> None:
    receiver = raw(*NONSENSE.values(), say(TAKEN))
    exporter = Exporter(receiver.endpoint())
    for _ in range(len(NONSENSE) + 1):
        exporter.submit(EncodedRequest(b"x", 1, 1))
    assert exporter.wait(timeout_s=PATIENCE_S)
    counters = exporter.close()
    assert counters.exported_spans + sum(counters.dropped_spans.values()) == len(NONSENSE) + 1
    assert counters.exported_spans > 0


class Raising:
    """A transport that does what none may."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def attempt(self, data: bytes, timeout_s: float) -> Outcome:
        if self.error is None:
            return Outcome(OutcomeKind.DELIVERED)
        error, self.error = self.error, None
        raise error

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_answer_that_nobody_thought_of_costs_one_request_and_is_told() -> None:
    exporter = Exporter(Raising(RecursionError("deep\x1b[1m")))
    for _ in range(2):
        exporter.submit(EncodedRequest(b"x", 2, 1), wait=True)
    assert exporter.wait(timeout_s=PATIENCE_S)
    counters = exporter.close()
    assert (counters.exported_spans, counters.dropped_spans) == (2, {DROPPED_REJECTED: 2})
    assert "RecursionError" in counters.last_error
    assert counters.last_error.isprintable()


def test_a_sender_that_ends_says_so_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bool:
        raise MemoryError

    monkeypatch.setattr(Exporter, "_send", fail)
    exporter = Exporter(Raising(ValueError()), queue_bytes=10)
    sent = threading.Thread(
        target=lambda: [exporter.submit(EncodedRequest(b"x" * 8, 1, 1), wait=True) for _ in range(5)], daemon=True
    )
    sent.start()
    sent.join(PATIENCE_S)
    assert not sent.is_alive()
    assert not exporter.wait(timeout_s=PATIENCE_S)
    counters = exporter.close()
    assert sum(counters.dropped_spans.values()) == 5
    assert counters.dropped_spans[DROPPED_SENDER_ENDED] == 5
    assert any("MemoryError" in sentence for sentence in counters.sentences)


@pytest.mark.thorough
@pytest.mark.parametrize("script", [ENDLESS["a body that drips"], ENDLESS["100 Continue, again and again"]])
def test_metrics_end_in_bounded_time(script: Script, raw: Callable[..., RawReceiver]) -> None:
    variables = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1000"}
    sender = MetricsSender(open_exporter(raw(script).endpoint("metrics", **variables)), NoMetrics())  # type: ignore[arg-type]
    sender.send(None)  # type: ignore[arg-type]
    began = time.monotonic()
    sent = sender.close(1.0)
    assert time.monotonic() - began < 20
    assert sent.delivered == 0


@pytest.mark.thorough
def test_a_gzip_bomb_for_metrics(raw: Callable[..., RawReceiver]) -> None:
    sender = MetricsSender(open_exporter(raw(bomb_of(400 << 20)).endpoint("metrics")), NoMetrics())  # type: ignore[arg-type]
    before = resident_bytes()
    sender.send(None)  # type: ignore[arg-type]
    sender.close(PATIENCE_S)
    assert resident_bytes() - before < 100 << 20


class NoMetrics:
    """Makes something that can be sent."""

    def make(self, _: object) -> Any:
        from opentelemetry.sdk.metrics.export import (
            Gauge,
            Metric,
            MetricsData,
            NumberDataPoint,
            ResourceMetrics,
            ScopeMetrics,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        point = NumberDataPoint({}, 0, 1, 1)
        scope = ScopeMetrics(InstrumentationScope("x"), [Metric("x", None, None, Gauge([point]))], "")
        return MetricsData([ResourceMetrics(Resource({}), [scope], "")])

    def confirm(self) -> None:
        pass
