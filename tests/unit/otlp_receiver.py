# SPDX-License-Identifier: Apache-2.0
"""A gRPC server in this process that takes OTLP requests as bytes and answers as told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.endpoint import Endpoint, find_endpoint

Answer = Callable[[grpc.ServicerContext], bytes]


def answer_ok(_: grpc.ServicerContext) -> bytes:
    return b""


class Receiver:
    """Takes requests as bytes; `answers` are used one by one, then the last again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [answer_ok]
        self.requests: list[bytes] = []
        self.metadata: list[dict[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append(request)
        self.metadata.append({item.key: item.value for item in context.invocation_metadata()})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(context)

    def spans(self) -> list[Span]:
        """Of all requests of a trace service, in the order in which they came."""
        return [
            span
            for data in self.requests
            for part in ExportTraceServiceRequest.FromString(data).resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]

    def endpoint(self, **environment: str) -> Endpoint:
        endpoint = find_endpoint(f"http://127.0.0.1:{self.port}", environment)
        assert endpoint is not None
        return endpoint

    def stop(self) -> None:
        self._server.stop(0).wait()


def find_dead_endpoint() -> Endpoint:
    # A port that was just free; nothing listens there.
    server = Receiver()
    server.stop()
    return server.endpoint()
