# SPDX-License-Identifier: Apache-2.0
"""Metrics listener: serves metrics to Prometheus on request.

A request makes the draining thread take a snapshot in its next round; that thread never waits for a scraper. One
snapshot answers all pending requests.
"""

from __future__ import annotations

import threading

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.metrics.httplistener import HttpListener, Reply
from otel_nfprobe.metrics.metrics import MetricsMaker, MetricsSnapshot
from otel_nfprobe.metrics.metrics_page import OPENMETRICS_TYPE, PLAIN_TYPE, wants_openmetrics, write_page

PATIENCE_S = 5.0  # less than the 10 s of a scraper
PATH, TEXT_TYPE = "/metrics", "text/plain; charset=utf-8"
LOOPBACK = "127.0.0.1"


def parse_address(text: str) -> tuple[str, int]:
    """Parses host and port of `[HOST:]PORT`; loopback only unless a host is given.

    Raises:
        UsageError: malformed.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(f"--metrics-listen {text!r} is not [HOST:]PORT.", "--metrics-listen 9464")
    return host.strip("[]") or LOOPBACK, int(port)


class MetricsListener:
    """Listens from creation until `close`; answers once `begin` was called.

    Attributes:
        port: the bound port.

    Raises:
        NfprobeError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int) -> None:
        self._asked = threading.Event()
        self._changed = threading.Condition()
        self._maker: MetricsMaker | None = None
        self._snapshot: MetricsSnapshot | None = None
        self._turn = 0  # snapshots taken
        self._listener = HttpListener("--metrics-listen", host, port, self._answer)
        self.port = self._listener.port

    def begin(self, maker: MetricsMaker) -> None:
        """Starts answering requests with this maker's metrics."""
        self._maker = maker

    @property
    def is_asked(self) -> bool:
        """Returns whether a request waits for a snapshot."""
        return self._asked.is_set()

    def give(self, snapshot: MetricsSnapshot) -> None:
        """Answers the pending requests."""
        with self._changed:
            self._asked.clear()
            self._snapshot, self._turn = snapshot, self._turn + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _answer(self, path: str, accept: str) -> Reply:
        if path != PATH:
            return Reply(404, TEXT_TYPE, f"Metrics are at {PATH}\n".encode())
        openmetrics = wants_openmetrics(accept)
        page = self._write(openmetrics)
        if page is None:
            return Reply(503, TEXT_TYPE, b"The session has not started, or has ended\n")
        return Reply(200, OPENMETRICS_TYPE if openmetrics else PLAIN_TYPE, page)

    def _write(self, openmetrics: bool) -> bytes | None:
        """Returns the page, or None if the session does not respond in time."""
        with self._changed:
            turn = self._turn
            self._asked.set()
            came = self._changed.wait_for(lambda: self._turn != turn, PATIENCE_S)
            if not came or self._snapshot is None or self._maker is None:
                return None
            return write_page(self._maker.make(self._snapshot), openmetrics)
