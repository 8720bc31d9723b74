# SPDX-License-Identifier: Apache-2.0
"""Servers in this process, gRPC and HTTP, that take OTLP requests as bytes and answer as told."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.export.endpoint import Endpoint, find_endpoint
from tests.support.tls_files import Certificates

Answer = Callable[[grpc.ServicerContext], bytes]


def answer_ok(_: grpc.ServicerContext) -> bytes:
    return b""


class Receiver:
    """Takes requests as bytes; `answers` are used one by one, then the last again and again."""

    def __init__(self, certificates: Certificates | None = None, port: int = 0, mutual: bool = False) -> None:
        self.answers: list[Answer] = [answer_ok]
        self.requests: list[bytes] = []
        self.metadata: list[dict[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
        self.scheme = "http" if certificates is None else "https"
        address = f"127.0.0.1:{port}"
        if certificates is None:
            self.port = self._server.add_insecure_port(address)
        else:
            pair = (certificates.key.read_bytes(), certificates.chain.read_bytes())
            root = certificates.ca.read_bytes() if mutual else None
            self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair], root, mutual))
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
        endpoint = find_endpoint(f"{self.scheme}://127.0.0.1:{self.port}", environment)
        assert endpoint is not None
        return endpoint

    def stop(self) -> None:
        self._server.stop(0).wait()


class Answered(NamedTuple):
    """What an HttpReceiver answers."""

    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 (never changed)
    body: bytes = b""


class HttpReceiver:
    """As Receiver, by OTLP/HTTP. `paths` are those that were posted to."""

    def __init__(self, certificates: Certificates | None = None, mutual: bool = False) -> None:
        self.answers: list[Answered] = [Answered()]
        self.requests: list[bytes] = []
        self.metadata: list[dict[str, str]] = []
        self.paths: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.chain, certificates.key)
            if mutual:
                context.load_verify_locations(certificates.ca)
                context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.scheme = "http" if certificates is None else "https"
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        zipped = handler.headers.get("Content-Encoding") == "gzip"
        self.requests.append(gzip.decompress(body) if zipped else body)
        self.metadata.append({name.lower(): value for name, value in handler.headers.items()})
        self.paths.append(handler.path)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.body)

    def endpoint(self, **environment: str) -> Endpoint:
        protocol = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        endpoint = find_endpoint(f"{self.scheme}://127.0.0.1:{self.port}", protocol | environment)
        assert endpoint is not None
        return endpoint

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def find_dead_endpoint() -> Endpoint:
    # A port that was just free; nothing listens there.
    server = Receiver()
    server.stop()
    return server.endpoint()
