# SPDX-License-Identifier: Apache-2.0
"""Delivery: the result of one attempt to send a request to a receiver, by any transport.

A transport (otlp_grpc.py, otlp_http.py, sdk_transport.py) turns everything that can happen into an Outcome, by which
otlp.py decides whether to retry. The rules are those of the OTLP specification.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

RETRY_AFTER_MAX_S = 300.0  # limit of a receiver's request: a wrong number must not stop the export
MESSAGE_CHARACTERS_MAX = 400
NO_RESPONSE = "The receiver's answer is not an ExportTraceServiceResponse."


class OutcomeKind(enum.Enum):
    """Kinds of results."""

    DELIVERED = enum.auto()
    RETRY = enum.auto()  # not delivered, or unknown
    REFUSED = enum.auto()  # the receiver will never accept this request
    CANCELLED = enum.auto()  # by `cancel`


@dataclass(frozen=True)
class Outcome:
    """The result of one attempt.

    Attributes:
        message: the receiver's message, or why it was not reached.
        rejected_spans: of a delivered request, as reported by the receiver.
        retry_after_s: the delay that the receiver asks for; 0: none given.
    """

    verdict: OutcomeKind
    message: str = ""
    rejected_spans: int = 0
    retry_after_s: float = 0.0


class Transport(Protocol):
    """A connection to a receiver."""

    def attempt(self, data: bytes, timeout_s: float) -> Outcome:
        """Sends one ExportTraceServiceRequest. Never raises."""

    def cancel(self) -> None:
        """Aborts the current attempt, from another thread."""

    def close(self) -> None:
        """Releases its resources."""


def read_response(data: bytes) -> Outcome:
    """Returns the outcome in an ExportTraceServiceResponse. An unreadable response counts as delivered."""
    try:
        partial = ExportTraceServiceResponse.FromString(data).partial_success
    except DecodeError:
        return Outcome(OutcomeKind.DELIVERED, NO_RESPONSE)
    return Outcome(OutcomeKind.DELIVERED, make_readable(partial.error_message), max(0, partial.rejected_spans))


def read_retry_s(status: bytes) -> float | None:
    """Returns RetryInfo's delay in a google.rpc.Status, in seconds; None if there is none."""
    try:
        for detail in Status.FromString(status).details:
            retry_info = RetryInfo()
            if detail.Unpack(retry_info):
                return _seconds(retry_info.retry_delay)
    except DecodeError:
        return None
    return None


def bound_pause_s(asked_s: float) -> float:
    """Limits the delay that a receiver asks for; in seconds."""
    return min(max(0.0, asked_s), RETRY_AFTER_MAX_S)


def make_readable(said: str) -> str:
    """Returns a receiver's message in printable form: one line of bounded length, without control characters."""
    start = said[: 4 * MESSAGE_CHARACTERS_MAX]
    return " ".join("".join(c if c.isprintable() else " " for c in start).split())[:MESSAGE_CHARACTERS_MAX]


def _seconds(duration: Duration) -> float:
    return bound_pause_s(duration.seconds + duration.nanos / 1e9)
