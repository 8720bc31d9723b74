# SPDX-License-Identifier: Apache-2.0
"""OTLP: sends encoded requests by gRPC, in a thread of its own, behind a queue of bounded bytes.

`submit` never blocks the drain: when the queue is full the request is dropped and its spans are counted.
Every span that was submitted ends in exactly one counter. The only module that talks gRPC.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_nfprobe.endpoint import Endpoint
from otel_nfprobe.span import EncodedRequest

QUEUE_BYTES = 64 << 20
RETRY_TOTAL_S = 60.0
DROPPED_QUEUE_FULL = "queue full"
DROPPED_UNREACHABLE = "receiver unreachable"
DROPPED_REJECTED = "rejected by receiver"

# What the OTLP specification calls retryable. RESOURCE_EXHAUSTED is so only together with RetryInfo.
_RETRYABLE = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_BACKOFF_FIRST_S = 0.25
_BACKOFF_MAX_S = 5.0
_JITTER = 0.2


@dataclass
class ExportCounters:
    """What became of the spans. Taken as a copy, by `Exporter.read_counters`."""

    exported_spans: int = 0
    exported_requests: int = 0
    exported_bytes: int = 0
    retries: int = 0
    dropped_spans: Counter[str] = field(default_factory=Counter)  # by reason
    last_error: str = ""

    def copy(self) -> ExportCounters:
        """A copy that does not change any more."""
        return ExportCounters(
            self.exported_spans,
            self.exported_requests,
            self.exported_bytes,
            self.retries,
            Counter(self.dropped_spans),
            self.last_error,
        )


class Exporter:
    """Sends requests in the order of their submission, retrying as the OTLP specification says.

    Args:
        endpoint: where to, and how (`find_endpoint`).
        queue_bytes: encoded bytes that may wait, the request being sent included.
        retry_total_s: a receiver that is away longer than this gets each request once, until it is back.
    """

    def __init__(
        self, endpoint: Endpoint, queue_bytes: int = QUEUE_BYTES, retry_total_s: float = RETRY_TOTAL_S
    ) -> None:
        self._endpoint = endpoint
        self._queue_bytes = queue_bytes
        self._retry_total_s = retry_total_s
        self._failing_since: float | None = None
        self._queue: deque[EncodedRequest] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._counters = ExportCounters()
        self._closing = False
        self._give_up_at = float("inf")
        self._call: Any = None
        self._channel = _open_channel(endpoint)
        self._export = self._channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)
        self._thread = threading.Thread(target=self._run, name="nfprobe-otlp", daemon=True)
        self._thread.start()

    def submit(self, request: EncodedRequest, wait: bool = False) -> bool:
        """Queues a request. Returns whether it was; if not, its spans are counted as dropped.

        Args:
            request: what `SpanEncoder.encode` yields.
            wait: block until there is room, as the export of a recording does, instead of dropping.
        """
        size = len(request.data)
        with self._changed:
            # An empty queue takes any request, or one larger than the queue could never be sent.
            while wait and not self._closing and self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes:
                self._changed.wait()
            if self._closing or (self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes):
                self._counters.dropped_spans[DROPPED_QUEUE_FULL] += request.spans
                return False
            self._queue.append(request)
            self._waiting_bytes += size
            self._changed.notify_all()
        return True

    def read_counters(self) -> ExportCounters:
        """Counters as they stand."""
        with self._changed:
            return self._counters.copy()

    def close(self, timeout_s: float = 10.0) -> ExportCounters:
        """Sends the queue for at most timeout_s, counts the rest as dropped; returns the final counters."""
        with self._changed:
            self._closing = True
            self._give_up_at = min(self._give_up_at, time.monotonic() + timeout_s)
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            call = self._call
            if call is not None:
                call.cancel()
            self._thread.join()
        self._channel.close()
        return self.read_counters()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                request = self._queue[0]
            self._send(request)
            with self._changed:
                self._queue.popleft()
                self._waiting_bytes -= len(request.data)
                self._changed.notify_all()

    # One request, until it is delivered or counted as dropped.
    def _send(self, request: EncodedRequest) -> None:
        backoff_s = _BACKOFF_FIRST_S
        while (remaining_s := self._give_up_at - time.monotonic()) > 0:
            try:
                response = self._attempt(request, min(self._endpoint.timeout_s, remaining_s))
            except grpc.FutureCancelledError:
                # `close` has run out of time.
                break
            except grpc.RpcError as error:
                retry_s = find_retry_s(error)
                if retry_s is None:
                    self._drop(request, DROPPED_REJECTED, _describe(error))
                    return
                if not self._note_failure(_describe(error)):
                    break
                self._sleep(retry_s or backoff_s * random.uniform(1 - _JITTER, 1 + _JITTER))
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
            else:
                self._count_response(request, response)
                return
        self._drop(request, DROPPED_UNREACHABLE, "")

    def _attempt(self, request: EncodedRequest, timeout_s: float) -> bytes:
        self._call = self._export.future(
            request.data,
            timeout=timeout_s,
            metadata=self._endpoint.headers,
            compression=_compression(self._endpoint),
        )
        response: bytes = self._call.result()
        return response

    # Returns whether another attempt is worth while.
    def _note_failure(self, error: str) -> bool:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        with self._changed:
            self._counters.last_error = error
            if now - self._failing_since >= self._retry_total_s:
                return False
            self._counters.retries += 1
        return True

    # Waits before the next attempt; the deadline of close, set meanwhile, ends the wait early.
    def _sleep(self, wait_s: float) -> None:
        wake_at = time.monotonic() + wait_s
        with self._changed:
            while (until := min(wake_at, self._give_up_at) - time.monotonic()) > 0:
                self._changed.wait(until)

    def _count_response(self, request: EncodedRequest, response: bytes) -> None:
        rejected, message = _read_partial_success(response)
        rejected = min(max(rejected, 0), request.spans)
        self._failing_since = None
        with self._changed:
            self._counters.exported_spans += request.spans - rejected
            self._counters.exported_requests += 1
            self._counters.exported_bytes += len(request.data)
            if rejected:
                self._counters.dropped_spans[DROPPED_REJECTED] += rejected
            if message:
                self._counters.last_error = message

    def _drop(self, request: EncodedRequest, reason: str, error: str) -> None:
        with self._changed:
            self._counters.dropped_spans[reason] += request.spans
            if error:
                self._counters.last_error = error


def find_retry_s(error: grpc.RpcError) -> float | None:
    """Seconds until a retry as the receiver asks; 0 when it leaves that to us, None when not to retry."""
    asked_s = _read_retry_info(error)
    code = error.code()
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return asked_s
    if code not in _RETRYABLE:
        return None
    return asked_s or 0.0


def _read_retry_info(error: grpc.RpcError) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        try:
            for detail in Status.FromString(value).details:
                retry_info = RetryInfo()
                if detail.Unpack(retry_info):
                    return _seconds(retry_info.retry_delay)
        except DecodeError:
            return None
    return None


def _seconds(duration: Duration) -> float:
    return float(max(0.0, duration.seconds + duration.nanos / 1e9))


def _read_partial_success(response: bytes) -> tuple[int, str]:
    try:
        partial = ExportTraceServiceResponse.FromString(response).partial_success
    except DecodeError:
        return 0, "The receiver's answer is not an ExportTraceServiceResponse."
    return partial.rejected_spans, partial.error_message


def _describe(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _compression(endpoint: Endpoint) -> grpc.Compression:
    return grpc.Compression.Gzip if endpoint.gzip else grpc.Compression.NoCompression


def _open_channel(endpoint: Endpoint) -> grpc.Channel:
    options: list[tuple[str, int]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    if endpoint.loopback:
        options.append(("grpc.enable_http_proxy", 0))
    if not endpoint.secure:
        return grpc.insecure_channel(endpoint.target, options)
    credentials = grpc.ssl_channel_credentials(
        endpoint.root_certificates, endpoint.client_key, endpoint.client_certificate
    )
    return grpc.secure_channel(endpoint.target, credentials, options)
