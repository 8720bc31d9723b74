# SPDX-License-Identifier: Apache-2.0
"""HTTP listener: a thread that answers GET requests. Called by metrics_listener.py and agent/page.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from otel_nfprobe.errors import NfprobeError

CLOSE_S = 0.05  # how often it looks whether it is to end


class Reply(NamedTuple):
    """What is answered: HTTP status, content type, body."""

    status: int
    kind: str
    body: bytes


class HttpListener:
    """Listens from now on, until `close`.

    Args:
        option: what the person wrote before the address, for sentences.
        answer: the reply to a path, without its query, and an Accept header.

    Attributes:
        port: the one that was taken.

    Raises:
        NfprobeError: the address cannot be had.
    """

    def __init__(self, option: str, host: str, port: int, answer: Callable[[str, str], Reply]) -> None:
        try:
            self._server = _Server((host, port), _make_handler(answer))
        except OSError as error:
            reason = error.strerror or str(error)
            raise NfprobeError(
                f"{option} {host}:{port} cannot be had: {reason}.", "ss -ltnp  # who has that port"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_S,), name="nfprobe-listener", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away early concerns nobody."""


def _make_handler(answer: Callable[[str, str], Reply]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            """Standard error is for what concerns the session."""

    return Handler
