# SPDX-License-Identifier: Apache-2.0
"""From a running testpmd to Jaeger: every packet is one trace, found by its id, with the recording's times."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import Columns, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.integration.test_testpmd import wait_until_armed
from tests.support.jaeger_client import JaegerSpan
from tests.support.stack_services import Collector
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.stack, pytest.mark.integration]

PACKETS = 1000
FOUND = 10


def run_session(nfprobe: Any, testpmd: Testpmd, endpoint: str, service: str, recording: Path) -> dict[str, Any]:
    options = ["--trial", "0s", "--packets", "all", "--sample", 1, "--endpoint", endpoint, "--service", service]
    options += ["--record", recording, "--json"]
    monitor = nfprobe.start("attach", testpmd.pid, *options)
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    testpmd.command("start")
    testpmd.wait_for_packets(PACKETS)
    testpmd.command("stop")  # the last call has returned
    summary: dict[str, Any] = nfprobe.end(monitor)
    return summary


def check_trace(spans: list[JaegerSpan], columns: Columns, index: int, convert: Any) -> None:
    """packet -> batch -> receive and transmit, to the nanosecond."""
    packet = columns.packets[index]
    batch = columns.batches[packet["batch"]]
    calls = columns.calls[batch["first_call"] : batch["first_call"] + batch["calls"]]
    (root,) = [span for span in spans if not span.parent_span_id]
    (batch_span,) = [span for span in spans if span.name == "batch"]
    assert root.name == "packet"
    assert root.attributes["nf.packet.id"] == f"{packet['id']:016x}"
    arrived = batch["earliest_ticks"] or batch["start_ticks"]
    assert [root.start_ns, root.end_ns] == convert([arrived, packet["done_ticks"]]).tolist()
    assert root.attributes["nf.packet.latency_ns"] == root.end_ns - root.start_ns
    assert batch_span.parent_span_id == root.span_id
    assert [batch_span.start_ns, batch_span.end_ns] == convert([batch["start_ticks"], batch["end_ticks"]]).tolist()
    assert batch_span.attributes["nf.batch.size"] == batch["size"]
    functions = [span for span in spans if span.parent_span_id == batch_span.span_id]
    times = sorted((span.start_ns, span.end_ns) for span in functions)
    expected = zip(convert(calls["start_ticks"]).tolist(), convert(calls["end_ticks"]).tolist(), strict=True)
    assert times == sorted(expected)
    assert {span.scope_name for span in spans} == {"otel-nfprobe"}


def test_thousand_packets_through_the_collector(
    nfprobe: Any,
    collector: Collector,
    capture: Callable[[int], Path],
    start_testpmd: Callable[..., Testpmd],
    tmp_path: Path,
) -> None:
    testpmd = start_testpmd(pcap_device(capture(PACKETS)))
    service, recording = f"testpmd-{uuid.uuid4().hex[:8]}", tmp_path / "stack.nfprobe"
    summary = run_session(nfprobe, testpmd, collector.otlp_endpoint, service, recording)
    assert summary["packets"]["received"] == summary["packets"]["transmitted"] == PACKETS
    assert summary["spans"]["dropped"] == 0
    assert summary["clock"]["error_ns"] > 0

    client = collector.jaeger.client
    assert client.await_traces(service, PACKETS) == PACKETS
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(list(replay(reader, facts, pipeline)))
    convert = facts.make_clock().convert
    for index in np.random.default_rng(3).choice(PACKETS, FOUND, replace=False):
        ids = client.find_trace_ids(service, {"nf.packet.id": f"{columns.packets[index]['id']:016x}"})
        assert len(ids) == 1
        check_trace(client.read_trace(ids[0]), columns, int(index), convert)
