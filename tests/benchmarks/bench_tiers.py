# SPDX-License-Identifier: Apache-2.0
"""How many spans a second one core of each tier takes: edge Collector, broker, gateway, Jaeger; and bytes per span.

Real Collectors with the files of examples/collector/gateway, a real Jaeger with its store in memory, on loopback.
Rates are by CPU time of each process, so a busy machine counts little. What is sent first is not counted. The broker is
that of the tests. Needs `make stack-build`, and go for the paths with a broker.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from otel_nfprobe.base.clock import Clock, sample_pair
from otel_nfprobe.export.endpoint import find_endpoint
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.export.span import SpanEncoder
from tests.benchmarks.busy_stack import OTELCOL, say_if_missing, start_stack
from tests.benchmarks.busy_testpmd import cpu_seconds, resident_mib
from tests.benchmarks.rounds import make_parser, spread, write_figures
from tests.support.gateway_tier import GATEWAY, Tier, await_shares, build_broker, start_broker
from tests.support.jaeger_client import await_true
from tests.support.stack_services import EXAMPLES, Stack
from tests.support.synthetic_columns import make_columns, move_columns

BASE = EXAMPLES / "collector.yaml"
NAMES = ["pcap_rx", "macswap", "lookup", "pcap_tx"]
ROUND_PACKETS = 2000
PACKETS, ROUNDS = 40_000, 3
WARM_PACKETS = 3 * ROUND_PACKETS
PATHS = {
    "otlp": ([], [BASE]),
    "otlp, all kept": ([], [BASE, GATEWAY / "keep-all.yaml"]),
    "kafka": ([GATEWAY / "edge.yaml", GATEWAY / "edge-kafka.yaml"], [BASE, GATEWAY / "gateway-kafka.yaml"]),
    "kafka, all kept": (
        [GATEWAY / "edge.yaml", GATEWAY / "edge-kafka.yaml"],
        [BASE, GATEWAY / "gateway-kafka.yaml", GATEWAY / "keep-all.yaml"],
    ),
}
PATHS_SHORT = ("kafka",)
CLOCK_TICK_S = 0.01  # what cpu_seconds counts in


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


def run(path: str, packets: int, rounds: int, stack: Stack, jaeger_pid: int, stop: ExitStack) -> dict[str, Any]:
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
    tiers = {"gateway": Tier(spawn, OTELCOL, folder / "gateway", gateway_files, environment)}
    if edge_files:
        tiers["edge"] = Tier(spawn, OTELCOL, folder / "edge", edge_files, environment)
    for name, tier in tiers.items():
        tier.start()
        assert tier.process is not None
        processes[name] = tier.process.pid
    if edge_files:
        await_shares([tiers["gateway"]])
    processes |= {"jaeger": jaeger_pid}
    port, sent = tiers.get("edge", tiers["gateway"]).port("OTLP"), 0

    def send_all(count: int) -> tuple[int, int]:
        nonlocal sent
        spans, size = send(port, f"tiers-{time.time_ns()}", count)
        sent += spans
        await_true(lambda: tiers["gateway"].count("otelcol_exporter_sent_spans") >= sent, 300, 0.1)
        assert tiers["gateway"].count("otelcol_exporter_sent_spans") >= sent
        return spans, size

    send_all(min(WARM_PACKETS, packets))
    rates: dict[str, list[float]] = {name: [] for name in processes}
    for _ in range(rounds):
        before = {name: cpu_seconds(pid) for name, pid in processes.items()}
        spans, size = send_all(packets)
        for name, pid in processes.items():
            rates[name].append(spans / max(CLOCK_TICK_S, cpu_seconds(pid) - before[name]))
    return {
        "path": path,
        "spans": spans,
        "bytes_per_span": size / spans,
        "spans_per_core_second": {name: spread(values) for name, values in rates.items()},
        "resident_mib": {name: resident_mib(pid) for name, pid in processes.items()},
    }


def find_paths(wanted: list[str] | None, is_short: bool) -> list[str]:
    """What is measured here; says what is not."""
    paths = wanted or (list(PATHS_SHORT) if is_short else list(PATHS))
    if not shutil.which("go"):
        print("the broker of the paths with Kafka is not measured: go is not installed")
        paths = [path for path in paths if not PATHS[path][0]]
    return paths


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--packets", type=int, default=PACKETS, help="traces to send in a round (default 40,000)")
    parser.add_argument("--path", choices=PATHS, action="append", help="only these")
    arguments = parser.parse_args()
    if say_if_missing():
        return 0
    packets, rounds = (ROUND_PACKETS, 1) if arguments.short else (arguments.packets, ROUNDS)
    results = []
    with ExitStack() as stop:
        stack, pid = start_stack(stop.enter_context(tempfile.TemporaryDirectory()), stop, "jaeger")
        for path in find_paths(arguments.path, arguments.short):
            with ExitStack() as stop_tiers:
                result = run(path, packets, rounds, stack, pid, stop_tiers)
            results.append(result)
            rates = ", ".join(
                f"{name} {rate.median:,.0f} ({rate.low:,.0f} .. {rate.high:,.0f})"
                for name, rate in result["spans_per_core_second"].items()
            )
            sizes = ", ".join(f"{name} {size:,.0f}" for name, size in result["resident_mib"].items())
            print(
                f"{path:16s} {result['spans']:,} spans of {result['bytes_per_span']:.0f} B: spans/s per core: {rates}"
            )
            print(f"{'':16s} resident, MiB: {sizes}", flush=True)
    write_figures(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
