# SPDX-License-Identifier: Apache-2.0
"""A fleet's gateway tier: its files are taken, traces stay whole through Kafka, and killed tiers lose nothing.

The broker speaks Kafka's wire protocol and keeps records in memory. Collectors and Jaeger are the real ones.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.cli.main import main
from otel_nfprobe.export.endpoint import find_endpoint
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.export.span import SpanEncoder
from tests.stack.test_stack_configuration import find_built
from tests.stack.test_stack_export import make_recent_columns
from tests.support.gateway_tier import GATEWAY, Tier, await_shares, build_broker, read_traces, start_broker
from tests.support.jaeger_client import await_true
from tests.support.stack_services import EXAMPLES, Jaeger, Stack
from tests.support.synthetic_recording import PACKETS, write_recording

pytestmark = pytest.mark.stack

BASE = EXAMPLES / "collector.yaml"
EDGE = [GATEWAY / "edge.yaml", GATEWAY / "edge-kafka.yaml"]
KAFKA = [BASE, GATEWAY / "gateway-kafka.yaml"]
MakeTier = Callable[[str, list[Path]], Tier]


def validate(stack: Stack, files: list[Path]) -> str:
    """What otelcol has against these files; empty: nothing."""
    words = [word for path in files for word in ("--config", str(path))]
    command = [str(find_built(stack, "otelcol")), "validate", *words]
    done = subprocess.run(command, env=stack.environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(
    "files",
    [EDGE, KAFKA, [*KAFKA, GATEWAY / "keep-all.yaml"], [BASE, GATEWAY / "gateway-otlp.yaml"]],
    ids=lambda files: files[-1].name,
)
def test_the_collector_takes_the_files(stack: Stack, files: list[Path]) -> None:
    assert validate(stack, files) == ""


def test_the_balanced_edge_is_right_but_for_the_exporter_that_cannot_be_built(stack: Stack, tmp_path: Path) -> None:
    """`load_balancing` is not in our build. What it hands to the OTLP exporter, and its queue, are checked as that
    exporter's; its own few keys against those of its documentation."""
    files = [GATEWAY / "edge.yaml", GATEWAY / "edge-balanced.yaml"]
    refusal = validate(stack, files)
    assert "'exporters' unknown type: \"load_balancing\"" in refusal
    assert "processors" not in refusal
    content = yaml.safe_load(files[1].read_text())
    balancing = content["exporters"].pop("load_balancing")
    assert set(balancing) == {"routing_key", "sending_queue", "retry_on_failure", "protocol", "resolver"}
    assert balancing["routing_key"] == "traceID"
    assert list(balancing["protocol"]) == ["otlp"]
    assert set(balancing["resolver"]) == {"dns"}
    assert set(balancing["resolver"]["dns"]) <= {"hostname", "port", "interval", "timeout"}
    assert isinstance(balancing["resolver"]["dns"]["port"], str)
    content["exporters"]["otlp_grpc/backend"] = balancing["protocol"]["otlp"] | {"endpoint": "gateway.example:4317"}
    queue = {key: balancing[key] for key in ("sending_queue", "retry_on_failure")}
    content["exporters"]["otlp_grpc/queue"] = queue | {"endpoint": "gateway.example:4317"}
    content["service"]["pipelines"]["traces"]["exporters"] = ["otlp_grpc/backend", "otlp_grpc/queue"]
    (tmp_path / "balanced.yaml").write_text(yaml.safe_dump(content))
    assert validate(stack, [files[0], tmp_path / "balanced.yaml"]) == ""


@pytest.fixture(scope="module")
def broker_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("the broker of this test is built with go")
    return build_broker(tmp_path_factory.mktemp("broker"))


@pytest.fixture
def make_tier(
    stack: Stack, jaeger: Jaeger, broker_binary: Path, spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> MakeTier:
    """Collectors that share a broker; started."""
    environment = {
        "NFPROBE_KAFKA_BROKER": f"127.0.0.1:{start_broker(spawn, broker_binary)}",
        "NFPROBE_KAFKA_INSECURE": "true",
        "NFPROBE_KAFKA_SESSION_TIMEOUT": "3s",
        "NFPROBE_KAFKA_HEARTBEAT_INTERVAL": "500ms",
        "NFPROBE_JAEGER_OTLP_PORT": stack.environment["NFPROBE_JAEGER_OTLP_PORT"],
    }

    def make(name: str, files: list[Path]) -> Tier:
        tier = Tier(spawn, find_built(stack, "otelcol"), tmp_path / name, files, environment)
        tier.start()
        return tier

    return make


def write_tee(path: Path) -> Path:
    """A configuration that writes what a gateway keeps to a file, too."""
    exporter = {"path": f"{path}.json", "flush_interval": "100ms"}
    keep = {"exporters": ["otlp_grpc/jaeger", "file"]}
    path.write_text(json.dumps({"exporters": {"file": exporter}, "service": {"pipelines": {"traces/keep": keep}}}))
    return path


def test_each_trace_goes_whole_through_one_gateway(make_tier: MakeTier, jaeger: Jaeger, tmp_path: Path) -> None:
    edge = make_tier("edge", EDGE)
    tees = [write_tee(tmp_path / f"tee-{name}.yaml") for name in "ab"]
    gateways = [make_tier(f"gateway-{tee.stem}", [*KAFKA, tee]) for tee in tees]
    await_shares(gateways)
    service = f"fleet-{uuid.uuid4().hex[:8]}"
    start_ns, session = time.time_ns() - 10**9, uuid.uuid4().hex[:16]
    recording = write_recording(tmp_path / "session.nfp", start_ns=start_ns, session=session)
    endpoint = f"http://127.0.0.1:{edge.port('OTLP')}"
    assert main(["export", str(recording), "--endpoint", endpoint, "--service", service]) == 0
    outputs = [Path(f"{tee}.json") for tee in tees]
    await_true(lambda: sum(len(read_traces(output)) for output in outputs) >= PACKETS, 60)
    for gateway in gateways:
        gateway.end()
    first, second = map(read_traces, outputs)
    assert first
    assert second
    assert not first.keys() & second.keys()
    assert len(first) + len(second) == PACKETS
    assert jaeger.client.await_traces(service, PACKETS) == PACKETS
    assert jaeger.client.read_span_ids(service, PACKETS) == {
        trace: sorted(spans) for trace, spans in (first | second).items()
    }
    # root, batch, receive, work, transmit: that of a packet of the recording
    assert {len(set(spans)) for spans in (first | second).values()} == {5}


def produce(endpoint_text: str, service: str, packets: int) -> tuple[Exporter, dict[str, list[str]]]:
    """Submits spans of so many packets. Returns what sends them, and all ids, as read by protobuf's classes."""
    endpoint = find_endpoint(endpoint_text, {})
    assert endpoint is not None
    clock = Clock.start()
    encoder = SpanEncoder(make_resource_attributes({}, service), ["rx", "work", "look", "tx"], time.time_ns(), clock)
    exporter, produced = Exporter(endpoint), {}
    columns = make_recent_columns(clock, packets)
    count = len(columns.packets)
    for request in encoder.encode(columns, np.arange(count, dtype=np.uint32), np.ones(count, dtype=np.uint8)):
        for resource_spans in ExportTraceServiceRequest.FromString(bytes(request.data)).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    produced.setdefault(span.trace_id.hex(), []).append(span.span_id.hex())
        assert exporter.submit(request)
    return exporter, {trace: sorted(spans) for trace, spans in produced.items()}


@pytest.mark.long
def test_killed_tiers_lose_nothing(make_tier: MakeTier, jaeger: Jaeger) -> None:
    """Edge and gateways are killed and started again while spans are under way; nothing is sampled after nfprobe."""
    edge = make_tier("edge", EDGE)
    gateways = [make_tier(f"gateway-{name}", [*KAFKA, GATEWAY / "keep-all.yaml"]) for name in "ab"]
    await_shares(gateways)
    service, packets = f"fleet-{uuid.uuid4().hex[:8]}", 3000
    exporter, produced = produce(f"http://127.0.0.1:{edge.port('OTLP')}", service, packets)
    for victim in (edge, gateways[0], edge, gateways[1]):
        await_true(lambda: jaeger.client.count_traces(service) > 0, 5)
        victim.end(signal.SIGKILL)
        victim.start()
        more, more_produced = produce(f"http://127.0.0.1:{edge.port('OTLP')}", service, packets)
        produced |= more_produced
        counters = more.close(60)
        assert counters.exported_spans == sum(map(len, more_produced.values()))
    exporter.close(60)

    def has_all() -> bool:
        found = jaeger.client.read_span_ids(service, 2 * len(produced))
        return found == produced

    await_true(has_all, 120, interval_s=2)
    found = jaeger.client.read_span_ids(service, 2 * len(produced))
    assert len(found) == len(produced) == 5 * packets
    assert found == produced
