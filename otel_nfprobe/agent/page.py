# SPDX-License-Identifier: Apache-2.0
"""Page: health, readiness and counters of the agent over HTTP, and its notifications to systemd.

`/healthz` answers 200 while the agent scans processes as often as it should, `/readyz` after its first scan, `/metrics`
serves Prometheus.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from otel_nfprobe.agent.agent import Agent
from otel_nfprobe.metrics.httplistener import HttpListener, Reply

PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATE_S = 30.0  # without a scan, beyond the interval


class Page:
    """Listens until `close`.

    Raises:
        NfprobeError: the address cannot be bound.
    """

    def __init__(self, agent: Agent, host: str, port: int) -> None:
        self._agent = agent
        self._registry = CollectorRegistry()
        self._registry.register(_Counts(agent))
        self._listener = HttpListener("listen", host, port, self._answer)
        self.port = self._listener.port

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _answer(self, path: str, _: str) -> Reply:
        if path == "/metrics":
            return Reply(200, PAGE_TYPE, generate_latest(self._registry))
        if path == "/healthz":
            return _judge(is_healthy(self._agent), "no scan of processes for too long")
        if path == "/readyz":
            return _judge(self._agent.counts().looked_at > 0, "processes have not been scanned yet")
        return Reply(404, PAGE_TYPE, b"there are /healthz, /readyz and /metrics\n")


def _judge(good: bool, bad: str) -> Reply:
    return Reply(200 if good else 503, PAGE_TYPE, b"ok\n" if good else f"{bad}\n".encode())


class _Counts(Collector):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        counts = self._agent.counts()
        yield _family("nf_agent_sessions", "Sessions that run", "gauge", counts.sessions)
        yield _family("nf_agent_waiting", "Processes that wait for a session", "gauge", counts.waiting)
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
    """Returns whether it scans processes as often as it should."""
    return time.monotonic() - agent.counts().looked_at < agent.configuration.look_s + LATE_S


def tell_systemd(state: str) -> None:
    """Sends `READY=1`, `STOPPING=1`, ... to the service manager of a `Type=notify` unit; does nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        try:
            notify.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return
