# SPDX-License-Identifier: Apache-2.0
"""The exporter, against a gRPC server that answers as told: every span ends in one counter."""

from __future__ import annotations

import threading
import time

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_nfprobe.export.otlp import (
    DROPPED_QUEUE_FULL,
    DROPPED_REJECTED,
    DROPPED_UNREACHABLE,
    Exporter,
)
from otel_nfprobe.export.span import EncodedRequest
from tests.support.otlp_receiver import Answer, Receiver, answer_ok, find_dead_endpoint


def fail_with(code: grpc.StatusCode, delay_s: float | None = None) -> Answer:
    def answer(context: grpc.ServicerContext) -> bytes:
        if delay_s is not None:
            retry_info = RetryInfo()
            retry_info.retry_delay.FromNanoseconds(int(delay_s * 1e9))
            detail = AnyMessage()
            detail.Pack(retry_info)
            status = Status(code=code.value[0], details=[detail]).SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(code, "as told")
        raise AssertionError

    return answer


def make_request(size: int = 10, spans: int = 3) -> EncodedRequest:
    return EncodedRequest(bytes(size), spans, 1)


def test_requests_arrive_in_order_and_unchanged(receiver: Receiver) -> None:
    exporter = Exporter(receiver.endpoint())
    sent = [bytes([i]) * 1000 for i in range(20)]
    assert all(exporter.submit(EncodedRequest(data, spans, 1)) for spans, data in enumerate(sent))
    counters = exporter.close()
    assert receiver.requests == sent
    assert counters.exported_spans == sum(range(20))
    assert counters.exported_requests == 20
    assert counters.exported_bytes == 20_000
    assert not counters.dropped_spans


def test_headers_and_compression_are_sent(receiver: Receiver) -> None:
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    exporter = Exporter(receiver.endpoint(**variables))
    exporter.submit(make_request(100_000))
    assert exporter.close().exported_spans == 3
    assert receiver.metadata[0]["api-key"] == "secret"
    assert receiver.requests == [bytes(100_000)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.DATA_LOSS,
    ],
)
def test_retryable_errors_are_retried(receiver: Receiver, code: grpc.StatusCode) -> None:
    receiver.answers = [fail_with(code), answer_ok]
    exporter = Exporter(receiver.endpoint())
    exporter.submit(make_request())
    counters = exporter.close()
    assert (counters.exported_spans, counters.retries) == (3, 1)
    assert len(receiver.requests) == 2
    assert counters.last_error.startswith(code.name)


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ],
)
def test_other_errors_are_not_retried_and_the_next_request_goes_on(receiver: Receiver, code: grpc.StatusCode) -> None:
    receiver.answers = [fail_with(code), answer_ok]
    exporter = Exporter(receiver.endpoint())
    exporter.submit(make_request(spans=5))
    exporter.submit(make_request(spans=7))
    counters = exporter.close()
    assert counters.dropped_spans == {DROPPED_REJECTED: 5}
    assert counters.exported_spans == 7
    assert counters.last_error == f"{code.name}: as told"


def test_the_receivers_delay_is_kept(receiver: Receiver) -> None:
    receiver.answers = [fail_with(grpc.StatusCode.RESOURCE_EXHAUSTED, 0.8), answer_ok]
    exporter = Exporter(receiver.endpoint())
    began = time.monotonic()
    exporter.submit(make_request())
    assert exporter.close().exported_spans == 3
    assert time.monotonic() - began >= 0.8


def test_a_partial_success_is_counted(receiver: Receiver) -> None:
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 4
    response.partial_success.error_message = "four were bad"
    receiver.answers = [lambda _: response.SerializeToString()]
    exporter = Exporter(receiver.endpoint())
    exporter.submit(make_request(spans=10))
    counters = exporter.close()
    assert counters.exported_spans == 6
    assert counters.dropped_spans == {DROPPED_REJECTED: 4}
    assert counters.last_error == "four were bad"


@pytest.mark.parametrize("response", [b"\xff\xff\xff", b"rubbish that is no protobuf"])
def test_an_answer_that_makes_no_sense(receiver: Receiver, response: bytes) -> None:
    receiver.answers = [lambda _: response]
    exporter = Exporter(receiver.endpoint())
    exporter.submit(make_request())
    counters = exporter.close()
    assert counters.exported_spans == 3
    assert counters.last_error


def test_a_full_queue_drops_at_once_and_counts(receiver: Receiver) -> None:
    gate = threading.Event()
    receiver.answers = [lambda _: bytes(not gate.wait(30))]
    exporter = Exporter(receiver.endpoint(), queue_bytes=1000)
    accepted = [exporter.submit(make_request(400, spans=1)) for _ in range(5)]
    gate.set()
    counters = exporter.close()
    assert accepted == [True, True, False, False, False]
    assert counters.dropped_spans == {DROPPED_QUEUE_FULL: 3}
    assert counters.exported_spans == 2


def test_a_request_larger_than_the_queue_is_sent_alone(receiver: Receiver) -> None:
    exporter = Exporter(receiver.endpoint(), queue_bytes=1000)
    assert exporter.submit(make_request(5000))
    assert exporter.close().exported_spans == 3


def test_waiting_for_room_loses_nothing(receiver: Receiver) -> None:
    exporter = Exporter(receiver.endpoint(), queue_bytes=1000)
    for _ in range(50):
        assert exporter.submit(make_request(400, spans=2), wait=True)
    assert exporter.close().exported_spans == 100


def test_a_dead_endpoint_ends_in_bounded_time_with_every_span_counted() -> None:
    exporter = Exporter(find_dead_endpoint())
    for _ in range(10):
        exporter.submit(make_request(spans=3))
    began = time.monotonic()
    counters = exporter.close(timeout_s=1.0)
    assert time.monotonic() - began < 10
    assert counters.exported_spans == 0
    assert counters.dropped_spans == {DROPPED_UNREACHABLE: 30}
    assert counters.last_error.startswith("UNAVAILABLE")


def test_a_receiver_that_never_answers_ends_in_bounded_time(receiver: Receiver) -> None:
    gate = threading.Event()
    receiver.answers = [lambda _: bytes(not gate.wait(30))]
    exporter = Exporter(receiver.endpoint())
    exporter.submit(make_request(spans=3))
    exporter.submit(make_request(spans=4))
    began = time.monotonic()
    counters = exporter.close(timeout_s=1.0)
    assert time.monotonic() - began < 10
    gate.set()
    assert counters.exported_spans + sum(counters.dropped_spans.values()) == 7


def test_submitting_after_close_drops_and_counts(receiver: Receiver) -> None:
    exporter = Exporter(receiver.endpoint())
    exporter.close()
    assert not exporter.submit(make_request())
    assert not exporter.submit(make_request(), wait=True)
    assert exporter.read_counters().dropped_spans == {DROPPED_QUEUE_FULL: 6}
    assert exporter.close().dropped_spans == {DROPPED_QUEUE_FULL: 6}


@pytest.mark.thorough
def test_a_receiver_that_comes_back_gets_everything() -> None:
    receiver = Receiver()
    endpoint = receiver.endpoint()
    receiver.answers = [fail_with(grpc.StatusCode.UNAVAILABLE)] * 3 + [answer_ok]
    exporter = Exporter(endpoint)
    for _ in range(5):
        exporter.submit(make_request(spans=2))
    counters = exporter.close(timeout_s=30)
    receiver.stop()
    assert counters.exported_spans == 10
    assert counters.retries == 3


@pytest.mark.thorough
def test_a_receiver_that_stays_away_gets_each_request_once() -> None:
    exporter = Exporter(find_dead_endpoint(), retry_total_s=0.5)
    for _ in range(20):
        exporter.submit(make_request(spans=3))
    began = time.monotonic()
    counters = exporter.close(timeout_s=60)
    assert time.monotonic() - began < 30
    assert counters.dropped_spans == {DROPPED_UNREACHABLE: 60}
