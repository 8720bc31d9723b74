# SPDX-License-Identifier: Apache-2.0
"""Delivery: what becomes of one attempt to hand a request to a receiver, whatever it is handed over by.

A transport (otlp_grpc.py, otlp_http.py, sdk_transport.py) makes an Outcome of everything that can happen; otlp.py
decides by it whether to send again. The rules are those of the OTLP specification.
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

RETRY_AFTER_MAX_S = 300.0  # of what a receiver may ask for: a wrong number must not end the export
MESSAGE_CHARACTERS_MAX = 400
NO_RESPONSE = "The receiver's answer is not an ExportTraceServiceResponse."


class OutcomeKind(enum.Enum):
    """What an attempt came to."""

    DELIVERED = enum.auto()
    RETRY = enum.auto()  # not delivered, or nobody knows
    REFUSED = enum.auto()  # the same request will never be taken
    CANCELLED = enum.auto()  # by `cancel`


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt.

    Attributes:
        message: what the receiver said, or why it was not reached.
        rejected_spans: of a delivered request, as far as the receiver says.
        retry_after_s: how long the receiver asks to be left in peace; 0: it does not say.
    """

    verdict: OutcomeKind
    message: str = ""
    rejected_spans: int = 0
    retry_after_s: float = 0.0


class Transport(Protocol):
    """A way to a receiver."""

    def attempt(self, data: bytes, timeout_s: float) -> Outcome:
        """Hands over one ExportTraceServiceRequest. Raises nothing."""

    def cancel(self) -> None:
        """Ends an attempt that is under way, from another thread."""

    def close(self) -> None:
        """Gives back what it holds."""


def read_response(data: bytes) -> Outcome:
    """The outcome that is in an ExportTraceServiceResponse. What cannot be read was taken all the same."""
    try:
        partial = ExportTraceServiceResponse.FromString(data).partial_success
    except DecodeError:
        return Outcome(OutcomeKind.DELIVERED, NO_RESPONSE)
    return Outcome(OutcomeKind.DELIVERED, make_readable(partial.error_message), max(0, partial.rejected_spans))


def read_retry_s(status: bytes) -> float | None:
    """RetryInfo's delay in a google.rpc.Status, seconds; None when there is none."""
    try:
        for detail in Status.FromString(status).details:
            retry_info = RetryInfo()
            if detail.Unpack(retry_info):
                return _seconds(retry_info.retry_delay)
    except DecodeError:
        return None
    return None


def bound_pause_s(asked_s: float) -> float:
    """What is granted of a pause that a receiver asks for, seconds."""
    return min(max(0.0, asked_s), RETRY_AFTER_MAX_S)


def make_readable(said: str) -> str:
    """What a receiver said, as it may be shown: one line that a terminal takes for text, of bounded length."""
    start = said[: 4 * MESSAGE_CHARACTERS_MAX]
    return " ".join("".join(c if c.isprintable() else " " for c in start).split())[:MESSAGE_CHARACTERS_MAX]


def _seconds(duration: Duration) -> float:
    return bound_pause_s(duration.seconds + duration.nanos / 1e9)
