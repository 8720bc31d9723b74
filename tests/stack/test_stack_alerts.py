# SPDX-License-Identifier: Apache-2.0
"""A slow function of a real testpmd fires alerts that name it, and their exemplar leads to a packet's trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.target.target import Target
from tests.support.jaeger_client import JaegerClient, await_true
from tests.support.stack_services import Collector, Stack
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.stack, pytest.mark.integration]

PATIENCE_S = 120.0
QUIET_S = 8.0  # four times what an alert needs to fire in a hurry
BURST_BYTES = 256 << 10  # written between two pauses: about twenty calls of the transmit function
PAUSE_S = 0.004
QUICK = {
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram",
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
}


class Webhook:
    """What Alertmanager sends to: names and labels of the alerts that fire."""

    def __init__(self, port: int) -> None:
        self.firing: list[dict[str, str]] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                alerts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]
                webhook.firing += [alert["labels"] for alert in alerts if alert["status"] == "firing"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def find(self, name: str, service: str) -> list[dict[str, str]]:
        """Alerts of this name about this service."""
        return [labels for labels in self.firing if labels["alertname"] == name and labels["job"] == service]


@pytest.fixture(scope="module")
def webhook(stack: Stack) -> Iterator[Webhook]:
    """Prometheus and Alertmanager, in a hurry, and who hears of alerts."""
    webhook = Webhook(stack.port("WEBHOOK"))
    hurried = Stack(stack.environment | {"NFPROBE_STACK_HURRY": "1"})
    try:
        hurried.run("up", "alertmanager")
        hurried.run("up", "prometheus")
        yield webhook
    finally:
        hurried.run("down", "prometheus")
        hurried.run("down", "alertmanager")
        webhook.close()


@pytest.fixture
def slow_output(tmp_path: Path) -> Iterator[Path]:
    """A pipe whose reader pauses now and then: who writes to it is slow in one call of fifty or so."""
    path = tmp_path / "output"
    os.mkfifo(path)
    ending = threading.Event()

    def read() -> None:
        with open(path, "rb", buffering=0) as pipe:
            left = BURST_BYTES
            while not ending.is_set() and (data := pipe.read(1 << 16)):
                left -= len(data)
                if left <= 0:
                    left = BURST_BYTES
                    time.sleep(PAUSE_S)

    reader = threading.Thread(target=read)
    reader.start()
    yield path
    ending.set()
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # if nobody ever wrote
    reader.join(PATIENCE_S)


@pytest.fixture
def attach(collector: Collector) -> Iterator[Callable[[Testpmd], str]]:
    """Measures a testpmd until the test's end. Returns the service's name."""
    sessions: list[subprocess.Popen[bytes]] = []

    def start(testpmd: Testpmd) -> str:
        service = f"testpmd-{uuid.uuid4().hex[:8]}"
        options = ["--trial", "0s", "--slowest", "0.1%", "--sample", "0.0001", "--endpoint", collector.otlp_endpoint]
        words = [sys.executable, "-m", "otel_nfprobe", "attach", str(testpmd.pid), *options, "--service", service]
        sessions.append(subprocess.Popen(words, env={**os.environ, **QUICK}, stderr=subprocess.DEVNULL))
        return service

    yield start
    for session in sessions:
        session.terminate()
        session.wait(PATIENCE_S)


def ask_prometheus(stack: Stack, path: str, **parameters: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"http://127.0.0.1:{stack.port('PROMETHEUS')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with opener.open(url, timeout=30) as response:
        return json.load(response)["data"]


def find_transmit(testpmd: Testpmd) -> str:
    """Name of its transmit function, as spans and metrics have it."""
    target = Target(testpmd.pid)
    adapter = choose_adapter("auto", target)
    assert adapter is not None
    (role,) = [role for role in adapter.roles(target) if role.role == lib.NFP_ROLE_TRANSMIT]
    return role.name.rpartition(":")[2]


def find_exemplar_traces(stack: Stack, query: str) -> list[str]:
    now = time.time()
    found = ask_prometheus(stack, "query_exemplars", query=query, start=str(now - 600), end=str(now + 5))
    return [exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]]


def names_in_kept_traces(client: JaegerClient, traces: list[str]) -> list[set[str]]:
    """Span names of those traces that Jaeger has by now."""
    found = []
    for trace in traces:
        try:
            found.append({span.name for span in client.read_trace(trace)})
        except OSError:
            continue
    return found


def test_nothing_fires_while_all_is_well(
    stack: Stack,
    webhook: Webhook,
    attach: Callable[[Testpmd], str],
    capture: Callable[[int], Path],
    start_testpmd: Callable[..., Testpmd],
) -> None:
    service = attach(start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False))
    query = f'nf:function_duration_seconds:p99{{job="{service}"}}'
    await_true(lambda: bool(ask_prometheus(stack, "query", query=query)["result"]), PATIENCE_S)
    assert ask_prometheus(stack, "query", query=query)["result"]
    time.sleep(QUIET_S)
    # On a busy machine the monitor may lose records; that alert would be right.
    assert webhook.find("NFFunctionP99High", service) + webhook.find("NFSlowPackets", service) == []


def test_a_slow_function_is_named_and_leads_to_its_packets(
    stack: Stack,
    webhook: Webhook,
    collector: Collector,
    attach: Callable[[Testpmd], str],
    capture: Callable[[int], Path],
    start_testpmd: Callable[..., Testpmd],
    slow_output: Path,
) -> None:
    device = f"net_pcap0,rx_pcap={capture(1024)},tx_pcap={slow_output},infinite_rx=1"
    testpmd = start_testpmd(device, interactive=False)
    transmit = find_transmit(testpmd)
    service = attach(testpmd)
    await_true(lambda: bool(webhook.find("NFFunctionP99High", service)), PATIENCE_S)
    await_true(lambda: bool(webhook.find("NFSlowPackets", service)), PATIENCE_S)
    assert {labels["code_function_name"] for labels in webhook.find("NFFunctionP99High", service)} == {transmit}
    assert webhook.find("NFSlowPackets", service)
    series = f'nf_function_duration_seconds_bucket{{job="{service}",code_function_name="{transmit}"}}'
    client = collector.jaeger.client
    await_true(lambda: bool(names_in_kept_traces(client, find_exemplar_traces(stack, series))), PATIENCE_S)
    kept = names_in_kept_traces(client, find_exemplar_traces(stack, series))
    assert kept
    assert all(transmit in names for names in kept)
