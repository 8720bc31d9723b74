# SPDX-License-Identifier: Apache-2.0
"""OTLP over gRPC: one unary call per request."""

from __future__ import annotations

import grpc

from otel_nfprobe.export.delivery import Outcome, OutcomeKind, make_readable, read_response, read_retry_s
from otel_nfprobe.export.endpoint import Endpoint

# Retryable according to the OTLP specification. RESOURCE_EXHAUSTED only together with RetryInfo.
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


class GrpcTransport:
    """A channel to an OTLP/gRPC receiver."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._is_cancelled = False
        self._channel = _open_channel(endpoint)
        self._export = self._channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)

    def attempt(self, data: bytes, timeout_s: float) -> Outcome:
        """Sends one request."""
        # Not by a future: gRPC creates a thread for each.
        gzip = self._endpoint.gzip
        try:
            response = self._export(
                data,
                timeout=timeout_s,
                metadata=self._endpoint.headers,
                compression=grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression,
            )
            return read_response(response)
        except grpc.RpcError as error:
            return Outcome(OutcomeKind.CANCELLED) if self._is_cancelled else _judge(error)
        except ValueError as error:
            # The channel was closed, or a header contains characters that gRPC does not send.
            if self._is_cancelled:
                return Outcome(OutcomeKind.CANCELLED)
            return Outcome(OutcomeKind.REFUSED, f"{type(error).__name__}: {error}")

    def cancel(self) -> None:
        """Aborts the current attempt by closing the channel: no further attempt is possible."""
        self._is_cancelled = True
        self._channel.close()

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


def _judge(error: grpc.RpcError) -> Outcome:
    code = error.code()
    message = f"{code.name}: {make_readable(str(error.details()))}"
    asked_s = _read_retry_info(error)
    if code in _RETRYABLE or (code == grpc.StatusCode.RESOURCE_EXHAUSTED and asked_s is not None):
        return Outcome(OutcomeKind.RETRY, message, retry_after_s=asked_s or 0.0)
    return Outcome(OutcomeKind.REFUSED, message)


def _read_retry_info(error: grpc.RpcError) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return read_retry_s(value)
    return None


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
