# SPDX-License-Identifier: Apache-2.0
"""Page: health, readiness and counts of the agent over HTTP, and its word to systemd.

`/healthz` answers 200 while the agent looks at processes as often as it should, `/readyz` once it has looked,
`/metrics` is for Prometheus. Called by cli/agent.py.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from otel_nfprobe.agent.agent import Agent
from otel_nfprobe.errors import NfprobeError

LATE_S = 30.0  # without a look, beyond the interval


class Page:
    """Listens until `close`.

    Raises:
        NfprobeError: the address cannot be had.
    """

    def __init__(self, agent: Agent, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(_Counts(agent))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, generate_latest(registry))
                elif self.path == "/healthz":
                    self._judge(is_healthy(agent), "processes were not looked at for too long")
                elif self.path == "/readyz":
                    self._judge(agent.counts().looked_at > 0, "processes were not looked at yet")
                else:
                    self._answer(404, b"there are /healthz, /readyz and /metrics\n")

            def _judge(self, good: bool, bad: str) -> None:
                self._answer(200 if good else 503, b"ok\n" if good else f"{bad}\n".encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Probes of an orchestrator are no news."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NfprobeError(f"listen {host}:{port} cannot be had: {reason}.", "ss -ltnp") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends listening."""
        self._server.shutdown()
        self._server.server_close()


class _Counts(Collector):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        counts = self._agent.counts()
        yield _family("nf_agent_sessions", "Sessions that run", "gauge", counts.sessions)
        yield _family("nf_agent_started", "Sessions that were started", "counter", counts.started)
        yield _family("nf_agent_failed", "Sessions that failed", "counter", counts.failed)
        yield _family("nf_agent_refused", "Processes that cannot be probed", "counter", counts.refused)
        yield _family("nf_agent_too_dear", "Sessions that ended over their budget", "counter", counts.too_dear)


def _family(name: str, about: str, kind: str, values: dict[str, int]) -> Metric:
    family = Metric(name, about, kind)
    for rule, value in values.items():
        family.add_sample(f"{name}_total" if kind == "counter" else name, {"rule": rule}, value)
    return family


def is_healthy(agent: Agent) -> bool:
    """Whether it looks at processes as often as it should."""
    return time.monotonic() - agent.counts().looked_at < agent.configuration.look_s + LATE_S


def tell_systemd(state: str) -> None:
    """`READY=1`, `STOPPING=1`, ...: a line for who started a `Type=notify` unit; nothing where nobody did."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        try:
            notify.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return
