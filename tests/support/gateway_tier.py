# SPDX-License-Identifier: Apache-2.0
"""A fleet on loopback for tests: a broker, an edge Collector and gateways of examples/collector/gateway."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.jaeger_client import await_true
from tests.support.stack_services import EXAMPLES, find_free_ports

GATEWAY = EXAMPLES / "gateway"
BROKER = Path(__file__).resolve().parents[1] / "stack" / "broker"
TOPIC, PARTITIONS = "nfprobe-spans", 8
PORTS = ("OTLP", "OTLP_HTTP", "HEALTH", "METRICS", "PROMETHEUS")
START_TIMEOUT_S = 60.0

Spawn = Callable[..., "subprocess.Popen[str]"]
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def build_broker(folder: Path) -> Path:
    """Compiles the broker; takes seconds, because the Collector was built of the same modules before."""
    command = ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(folder / "broker"), "."]
    # The tests have a cache folder of their own; Go's is the user's.
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    done = subprocess.run(command, cwd=BROKER, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "broker"


def start_broker(spawn: Spawn, binary: Path) -> int:
    """Returns its port when it listens."""
    (port,) = find_free_ports(1)
    process = spawn(binary, port, TOPIC, PARTITIONS)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == f"127.0.0.1:{port}"
    return port


@dataclass
class Tier:
    """One Collector with ports and a queue of its own; the same ones after it was started again."""

    spawn: Spawn
    binary: Path
    folder: Path
    files: list[Path]
    environment: dict[str, str]
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir()
        names = [f"NFPROBE_COLLECTOR_{name}_PORT" for name in PORTS]
        ports = dict(zip(names, map(str, find_free_ports(len(names))), strict=True))
        self.environment = {**os.environ, **self.environment, **ports}
        self.environment["NFPROBE_COLLECTOR_QUEUE_DIR"] = str(self.folder / "queue")

    def port(self, name: str) -> int:
        return int(self.environment[f"NFPROBE_COLLECTOR_{name}_PORT"])

    def start(self) -> None:
        """Returns when it is healthy."""
        words = [word for path in self.files for word in ("--config", path)]
        with open(self.folder / "log", "ab") as log:
            self.process = self.spawn(self.binary, *words, env=self.environment, stdout=log, stderr=log, text=False)
        await_true(self.is_healthy, START_TIMEOUT_S)
        assert self.is_healthy(), (self.folder / "log").read_text()[-2000:]

    def is_healthy(self) -> bool:
        assert self.process is not None
        try:
            return self.process.poll() is None and bool(self.read("HEALTH", "/"))
        except OSError:
            return False

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(by)
        self.process.wait(60)

    def read(self, port_name: str, path: str) -> str:
        with _OPENER.open(f"http://127.0.0.1:{self.port(port_name)}{path}", timeout=30) as response:
            return str(response.read().decode())

    def count(self, metric: str) -> int:
        """Sum of one of its own metrics over all labels; 0 when it does not exist yet."""
        found = re.findall(rf"^{metric}(?:_total)?(?:\{{.*\}})? (\S+)$", self.read("METRICS", "/metrics"), re.MULTILINE)
        return round(sum(map(float, found)))

    def partitions(self) -> int:
        """How many of the topic it reads now."""
        started = self.count("otelcol_kafka_receiver_partition_start")
        return started - self.count("otelcol_kafka_receiver_partition_close")


def await_shares(gateways: list[Tier]) -> None:
    """Waits until the gateways have divided the topic evenly."""
    share = PARTITIONS // len(gateways)
    await_true(lambda: all(gateway.partitions() == share for gateway in gateways), START_TIMEOUT_S)
    assert [gateway.partitions() for gateway in gateways] == [share] * len(gateways)


def read_traces(path: Path) -> dict[str, list[str]]:
    """Span ids by trace id, as the Collector's file exporter wrote them."""
    found: dict[str, list[str]] = defaultdict(list)
    # The last line may be half written.
    for line in path.read_text().split("\n")[:-1]:
        request: dict[str, Any] = json.loads(line)
        for resource_spans in request["resourceSpans"]:
            for scope_spans in resource_spans["scopeSpans"]:
                for span in scope_spans["spans"]:
                    found[span["traceId"]].append(span["spanId"])
    return found
