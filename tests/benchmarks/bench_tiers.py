# SPDX-License-Identifier: Apache-2.0
"""How many spans a second one core of each tier takes: edge Collector, broker, gateway, Jaeger; and bytes per span.

Real Collectors with the files of examples/collector/gateway, a real Jaeger with its store in memory, on loopback.
Rates are by CPU time of each process, so a busy machine counts little. The broker is that of the tests.
Needs `make stack-build`. Run it by hand: figures of docs/fleet.md are its.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stack"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from busy_testpmd import cpu_seconds, resident_mib
from gateway_tier import GATEWAY, Tier, await_shares, build_broker, start_broker
from jaeger_client import await_true
from stack_services import EXAMPLES, PORT_VARIABLES, Stack, find_free_ports
from synthetic_columns import make_columns, move_columns

from otel_nfprobe.clock import Clock, sample_pair
from otel_nfprobe.endpoint import find_endpoint
from otel_nfprobe.otlp import Exporter
from otel_nfprobe.resource import make_resource_attributes
from otel_nfprobe.span import SpanEncoder

BASE = EXAMPLES / "collector.yaml"
NAMES = ["pcap_rx", "macswap", "lookup", "pcap_tx"]
ROUND_PACKETS = 2000
PATHS = {
    "otlp": ([], [BASE]),
    "otlp, all kept": ([], [BASE, GATEWAY / "keep-all.yaml"]),
    "kafka": ([GATEWAY / "edge.yaml", GATEWAY / "edge-kafka.yaml"], [BASE, GATEWAY / "gateway-kafka.yaml"]),
    "kafka, all kept": (
        [GATEWAY / "edge.yaml", GATEWAY / "edge-kafka.yaml"],
        [BASE, GATEWAY / "gateway-kafka.yaml", GATEWAY / "keep-all.yaml"],
    ),
}


def send(port: int, service: str, packets: int) -> tuple[int, int]:
    """Sends traces of so many packets. Returns spans and bytes."""
    clock = Clock.start()
    encoder = SpanEncoder(make_resource_attributes({}, service), NAMES, time.time_ns(), clock)
    endpoint = find_endpoint(f"http://127.0.0.1:{port}", {})
    assert endpoint is not None
    exporter = Exporter(endpoint)
    spans = size = 0
    for number in range(packets // ROUND_PACKETS):
        columns = make_columns(ROUND_PACKETS, seed=number + time.time_ns() % 1000)
        move_columns(columns, sample_pair().ticks - clock.find_ticks(1e9))
        selected = np.arange(ROUND_PACKETS, dtype=np.uint32)
        for request in encoder.encode(columns, selected, np.full(ROUND_PACKETS, 2, dtype=np.uint8)):
            while not exporter.submit(request):
                time.sleep(0.05)
            spans, size = spans + request.spans, size + len(request.data)
    counters = exporter.close(300)
    assert counters.exported_spans == spans, counters
    return spans, size


def run(path: str, packets: int, stack: Stack, jaeger_pid: int, stop: ExitStack) -> dict[str, Any]:
    def spawn(*words: object, **options: Any) -> subprocess.Popen[Any]:
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("text", True)
        process = subprocess.Popen([str(word) for word in words], **options)
        stop.callback(process.wait)
        stop.callback(process.kill)
        return process

    folder = Path(stop.enter_context(tempfile.TemporaryDirectory(prefix="nfprobe-tiers-")))
    environment = {"NFPROBE_JAEGER_OTLP_PORT": stack.environment["NFPROBE_JAEGER_OTLP_PORT"]}
    edge_files, gateway_files = PATHS[path]
    processes = {}
    if edge_files:
        port = start_broker(spawn, build_broker(folder))
        environment |= {"NFPROBE_KAFKA_BROKER": f"127.0.0.1:{port}", "NFPROBE_KAFKA_INSECURE": "true"}
    otelcol = Path(os.environ.get("NFPROBE_STACK_DIR") or Path.home() / ".cache/nfprobe/stack") / "otelcol"
    tiers = {"gateway": Tier(spawn, otelcol, folder / "gateway", gateway_files, environment)}
    if edge_files:
        tiers["edge"] = Tier(spawn, otelcol, folder / "edge", edge_files, environment)
    for name, tier in tiers.items():
        tier.start()
        assert tier.process is not None
        processes[name] = tier.process.pid
    if edge_files:
        await_shares([tiers["gateway"]])
    processes |= {"jaeger": jaeger_pid}
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    begun = time.monotonic()
    spans, size = send(tiers.get("edge", tiers["gateway"]).port("OTLP"), f"tiers-{time.time_ns()}", packets)
    await_true(lambda: tiers["gateway"].count("otelcol_exporter_sent_spans") >= spans, 300, 0.5)
    seconds = time.monotonic() - begun
    assert tiers["gateway"].count("otelcol_exporter_sent_spans") >= spans
    used = {name: cpu_seconds(pid) - before[name] for name, pid in processes.items()}
    result: dict[str, Any] = {"path": path, "spans": spans, "bytes_per_span": size / spans, "seconds": seconds}
    result["spans_per_core_second"] = {name: spans / used[name] for name in processes}
    result["resident_mib"] = {name: resident_mib(pid) for name, pid in processes.items()}
    return result


def start_stack(folder: str, stop: ExitStack, *services: str) -> tuple[Stack, int]:
    """Starts these services on ports of their own. Returns them and the process id of Jaeger."""
    ports = dict(zip(PORT_VARIABLES, map(str, find_free_ports(len(PORT_VARIABLES))), strict=True))
    stack = Stack({**os.environ, **ports, "NFPROBE_STACK_RUN_DIR": folder})
    for service in services:
        stack.run("up", service)
        stop.callback(stack.run, "down", service)
    return stack, int(Path(folder, "jaeger.pid").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=40_000, help="traces to send by each path (default 40,000)")
    parser.add_argument("--path", choices=PATHS, action="append", help="only these")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    results = []
    with ExitStack() as stop:
        stack, pid = start_stack(stop.enter_context(tempfile.TemporaryDirectory()), stop, "jaeger")
        for path in arguments.path or PATHS:
            with ExitStack() as stop_tiers:
                result = run(path, arguments.packets, stack, pid, stop_tiers)
            results.append(result)
            rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in result["spans_per_core_second"].items())
            sizes = ", ".join(f"{name} {size:,.0f}" for name, size in result["resident_mib"].items())
            print(
                f"{path:16s} {result['spans']:,} spans of {result['bytes_per_span']:.0f} B: spans/s per core: {rates}"
            )
            print(f"{'':16s} resident, MiB: {sizes}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
