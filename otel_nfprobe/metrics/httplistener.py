# SPDX-License-Identifier: Apache-2.0
"""HTTP listener: answers GET requests of any number of clients, however slow they are.

A client has CLIENT_S to send its request and CLIENT_S to receive the answer. Beyond CONNECTIONS_MAX, the connection
that has kept the listener waiting longest is closed, so silent clients lock nobody out.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.timedreader import TimedReader

CLIENT_S = 5.0
CONNECTIONS_MAX = 16
PAUSE_S = 0.1  # when no descriptor is free for a client: otherwise accept would be retried in a busy loop
CLOSE_S = 0.05  # interval of checking for shutdown


class Reply(NamedTuple):
    """An HTTP reply: status, content type, body."""

    status: int
    kind: str
    body: bytes


class HttpListener:
    """Listens from creation until `close`.

    Args:
        option: the user's option before the address, for error messages.
        answer: returns the reply to a path without its query, and an Accept header.

    Attributes:
        port: the bound port.

    Raises:
        NfprobeError: the address cannot be bound.
    """

    def __init__(self, option: str, host: str, port: int, answer: Callable[[str, str], Reply]) -> None:
        try:
            self._server = _Server((host, port), _make_handler(answer))
        except OSError as error:
            reason = error.strerror or str(error)
            raise NfprobeError(
                f"{option} {host}:{port} cannot be bound: {reason}.", "ss -ltnp  # who has that port"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_S,), name="nfprobe-listener", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with less, one of many simultaneous clients retries only a second later

    def __init__(self, *arguments: Any) -> None:
        self._waits: dict[Any, bool] = {}  # whether waiting for the client, by connection in order of arrival
        self._changed = threading.RLock()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """As in ThreadingMixIn, for a bounded number of connections."""
        with self._changed:
            if len(self._waits) >= CONNECTIONS_MAX and not self._close_slowest():
                self.shutdown_request(request)
                return
            self._waits[request] = True
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """As in TCPServer."""
        with self._changed:
            self._waits.pop(request, None)
        super().shutdown_request(request)

    def wait_for(self, connection: socket.socket, is_waiting: bool) -> None:
        """Records whether the connection waits for its client."""
        with self._changed:
            if connection in self._waits:
                self._waits[connection] = is_waiting

    def _close_slowest(self) -> bool:
        """Ends a connection's thread; its descriptor is released a moment later."""
        slowest = next((connection for connection, waits in self._waits.items() if waits), None)
        if slowest is None:
            return False
        del self._waits[slowest]
        try:
            slowest.shutdown(socket.SHUT_RDWR)
        except OSError:
            return True  # it has ended by itself
        return True

    def handle_error(self, *_: object) -> None:
        """Ignores clients that disconnect early."""


def _make_handler(answer: Callable[[str, str], Reply]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S
        server: _Server

        def setup(self) -> None:
            super().setup()
            raw: Any = self.rfile
            self.rfile = io.BufferedReader(TimedReader(self.connection, raw.detach(), CLIENT_S))

        def do_GET(self) -> None:
            self.server.wait_for(self.connection, False)
            reply = answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            self.server.wait_for(self.connection, True)
            self.connection.settimeout(CLIENT_S)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            """Suppressed: standard error is for the session."""

    return Handler
