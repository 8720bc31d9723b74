# SPDX-License-Identifier: Apache-2.0
"""gRPC and HTTP alike: headers, compression, TLS in both directions, and what the specification says of each answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_nfprobe.export.delivery import OutcomeKind
from otel_nfprobe.export.endpoint import Endpoint, find_endpoint
from otel_nfprobe.export.otlp import DROPPED_REJECTED, Exporter, open_transport
from otel_nfprobe.export.otlp_http import judge
from otel_nfprobe.export.span import EncodedRequest
from tests.support.otlp_receiver import Answered, HttpReceiver, Receiver
from tests.support.tls_files import Certificates, make_certificates

RECEIVERS = {"grpc": Receiver, "http": HttpReceiver}
PREFIX = "OTEL_EXPORTER_OTLP_"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    server = HttpReceiver()
    yield server
    server.stop()


def send(endpoint: Endpoint, timeout_s: float = 20.0) -> tuple[OutcomeKind, str]:
    transport = open_transport(endpoint)
    outcome = transport.attempt(b"12345" * 1000, timeout_s)
    transport.close()
    return outcome.verdict, outcome.message


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_headers_and_compression(protocol: str) -> None:
    receiver = RECEIVERS[protocol]()
    endpoint = receiver.endpoint(**{PREFIX + "HEADERS": "api-key=a%20b", PREFIX + "COMPRESSION": "gzip"})
    assert send(endpoint)[0] is OutcomeKind.DELIVERED
    receiver.stop()
    assert receiver.requests == [b"12345" * 1000]
    assert receiver.metadata[0]["api-key"] == "a b"
    if isinstance(receiver, HttpReceiver):
        assert receiver.paths == ["/v1/traces"]
        assert receiver.metadata[0]["content-type"] == "application/x-protobuf"
        assert receiver.metadata[0]["content-encoding"] == "gzip"


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_tls(protocol: str, certificates: Certificates) -> None:
    receiver = RECEIVERS[protocol](certificates, mutual=True)
    ca = {PREFIX + "CERTIFICATE": str(certificates.ca)}
    client = {PREFIX + "CLIENT_KEY": str(certificates.key), PREFIX + "CLIENT_CERTIFICATE": str(certificates.chain)}
    stranger = {
        PREFIX + "CLIENT_KEY": str(certificates.expired_key),
        PREFIX + "CLIENT_CERTIFICATE": str(certificates.expired),
    }
    assert send(receiver.endpoint(**ca, **client))[0] is OutcomeKind.DELIVERED
    for wrong in ({**ca}, {**ca, **stranger}, {**client}):
        verdict, message = send(receiver.endpoint(**wrong))
        assert verdict is OutcomeKind.RETRY
        assert message
    receiver.stop()
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_an_expired_or_foreign_certificate_is_said(protocol: str, certificates: Certificates) -> None:
    expired = certificates._replace(chain=certificates.expired, key=certificates.expired_key)
    receiver = RECEIVERS[protocol](expired)
    assert send(receiver.endpoint())[0] is OutcomeKind.RETRY  # nobody here knows the CA
    verdict, message = send(receiver.endpoint(**{PREFIX + "CERTIFICATE": str(certificates.ca)}))
    receiver.stop()
    assert verdict is OutcomeKind.RETRY
    assert "certificate" in message.lower()
    assert "expired" in message.lower()
    assert not receiver.requests


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_names_that_do_not_exist(protocol: str) -> None:
    endpoint = find_endpoint("http://nobody.invalid:4317", {PREFIX + "PROTOCOL": protocol})
    assert endpoint is not None
    verdict, message = send(endpoint, timeout_s=3.0)
    assert verdict is OutcomeKind.RETRY
    assert message


def test_the_answers_of_http() -> None:
    for status in (200, 202):
        assert judge(status, "", b"").verdict is OutcomeKind.DELIVERED
    for status in (429, 502, 503, 504):
        assert judge(status, "", b"").verdict is OutcomeKind.RETRY
    for status in (301, 400, 401, 403, 404, 405, 413, 415, 500, 501):
        assert judge(status, "1", b"").verdict is OutcomeKind.REFUSED
    assert judge(503, "7", b"").retry_after_s == 7.0
    assert judge(503, "", b"").retry_after_s == 0.0
    assert judge(503, "soon", b"").retry_after_s == 0.0
    assert judge(503, "99999999", b"").retry_after_s == 300.0
    assert 20 < judge(503, formatdate(time.time() + 30, usegmt=True), b"").retry_after_s <= 30
    assert judge(503, formatdate(time.time() - 30, usegmt=True), b"").retry_after_s == 0.0
    assert judge(404, "", b"<html>\n404 page not found").message == "HTTP 404: <html> 404 page not found"
    retry_info, detail = RetryInfo(), AnyMessage()
    retry_info.retry_delay.FromMilliseconds(2500)
    detail.Pack(retry_info)
    outcome = judge(503, "", Status(code=14, message="too much", details=[detail]).SerializeToString())
    assert (outcome.retry_after_s, outcome.message) == (2.5, "HTTP 503: too much")


@pytest.mark.thorough
def test_http_retries_and_partial_success(receiver: HttpReceiver) -> None:
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 1
    response.partial_success.error_message = "one was bad"
    partial = Answered(body=response.SerializeToString())
    receiver.answers = [Answered(503, {"Retry-After": "1"}), Answered(429), partial, partial, Answered(400)]
    exporter = Exporter(receiver.endpoint())
    began = time.monotonic()
    for _ in range(3):
        exporter.submit(EncodedRequest(b"x" * 10, 3, 1))
    counters = exporter.close(30)
    assert time.monotonic() - began >= 1.0
    assert (counters.exported_spans, counters.retries) == (4, 2)
    assert counters.dropped_spans == {DROPPED_REJECTED: 2 + 3}
    assert counters.sentences == ["The receiver reports: one was bad."]


def test_a_redirect_is_not_followed(receiver: HttpReceiver) -> None:
    receiver.answers = [Answered(307, {"Location": "http://127.0.0.1:1/v1/traces"})]
    assert send(receiver.endpoint()) == (OutcomeKind.REFUSED, "HTTP 307")


def test_an_endless_answer_is_cut(receiver: HttpReceiver) -> None:
    receiver.answers = [Answered(503, body=b"x" * (8 << 20))]
    assert send(receiver.endpoint())[0] is OutcomeKind.RETRY
    receiver.answers = [Answered()]
    assert send(receiver.endpoint())[0] is OutcomeKind.DELIVERED
