# SPDX-License-Identifier: Apache-2.0
"""What the fixtures of conftest.py hand to tests: a running Jaeger, a running Collector."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.jaeger_client import JaegerClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "collector"

PORT_VARIABLES = (
    "NFPROBE_JAEGER_OTLP_PORT",
    "NFPROBE_JAEGER_OTLP_HTTP_PORT",
    "NFPROBE_JAEGER_QUERY_PORT",
    "NFPROBE_JAEGER_QUERY_GRPC_PORT",
    "NFPROBE_JAEGER_HEALTH_PORT",
    "NFPROBE_COLLECTOR_OTLP_PORT",
    "NFPROBE_COLLECTOR_OTLP_HTTP_PORT",
    "NFPROBE_COLLECTOR_HEALTH_PORT",
    "NFPROBE_COLLECTOR_METRICS_PORT",
    "NFPROBE_COLLECTOR_PROMETHEUS_PORT",
    "NFPROBE_PROMETHEUS_PORT",
    "NFPROBE_ALERTMANAGER_PORT",
    "NFPROBE_WEBHOOK_PORT",
)


@dataclass(frozen=True)
class Stack:
    """A stack of its own: environment for examples/collector/stack, which knows the ports from it."""

    environment: dict[str, str]

    def run(self, verb: str, service: str) -> None:
        """Runs examples/collector/stack."""
        command = [sys.executable, str(EXAMPLES / "stack"), verb, service]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def port(self, name: str) -> int:
        return int(self.environment[f"NFPROBE_{name}_PORT"])


@dataclass(frozen=True)
class Jaeger:
    """A running Jaeger: where it takes OTLP, and a client of what it has."""

    otlp_endpoint: str
    client: JaegerClient


@dataclass(frozen=True)
class Collector:
    """A running Collector that sends to `jaeger`."""

    otlp_endpoint: str
    jaeger: Jaeger


def find_free_ports(count: int) -> list[int]:
    """Ports that were free on loopback a moment ago, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
