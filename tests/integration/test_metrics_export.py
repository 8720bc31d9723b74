# SPDX-License-Identifier: Apache-2.0
"""The metrics of a session on examples/firewall say what its summary says, and point to spans that were sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from firewall import DESCRIPTION

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))

from metrics_receiver import MetricsReceiver
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

pytestmark = pytest.mark.integration

BATCH = 32
OPTIONS = ("--trial", "0s", "--for", "1s", "--ring-size", "64MiB", "--slowest", "1%", "--sample", "0.01")


@pytest.fixture
def receiver() -> Iterator[MetricsReceiver]:
    server = MetricsReceiver()
    yield server
    server.stop()


def numbers(metric: Metric) -> dict[str, int]:
    """The values of a counter by its attribute's."""
    values = {}
    for point in metric.sum.data_points:
        values["".join(item.value.string_value for item in point.attributes)] = point.as_int
    return values


def test_metrics_of_a_session(
    nfprobe: Any,
    firewall_binary: Path,
    spawn: Callable[..., subprocess.Popen[str]],
    receiver: MetricsReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "300")
    words = ["--rate", "30000", "--slow-every", "300", "--slow-us", "40000"]
    firewall = spawn(firewall_binary, *words, stdout=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{receiver.port}"
    summary = nfprobe.json("attach", firewall.pid, "--adapter", DESCRIPTION, *OPTIONS, "--endpoint", endpoint)
    assert summary["metrics"] == {"delivered": len(receiver.exports), "failed": 0, "error": ""}
    assert len(receiver.exports) >= 2
    metrics = receiver.metrics()  # of the last export, which speaks of the whole session
    packets = summary["packets"]
    assert numbers(metrics["nf.packet.received"]) == {"": packets["received"]}
    assert numbers(metrics["nf.packet.processed"]) == {name: packets[name] for name in packets if name != "received"}
    assert numbers(metrics["nf.record.lost"]) == summary["records"]["lost"]
    assert numbers(metrics["nf.span.exported"]) == {"": summary["spans"]["exported"]}
    functions = {
        point.attributes[0].value.string_value: point
        for point in metrics["nf.function.duration"].exponential_histogram.data_points
    }
    assert sum(point.count for point in functions.values()) == summary["calls"]
    (latency,) = metrics["nf.packet.latency"].exponential_histogram.data_points
    (sizes,) = metrics["nf.batch.size"].histogram.data_points
    assert latency.count > 0
    assert sizes.count > 0
    if not any(summary["records"]["lost"].values()):
        # The threads also count what of the first and the last batch is outside the session.
        assert abs(packets["transmitted"] + packets["dropped"] - latency.count) <= 2 * BATCH
        assert abs(packets["received"] - sizes.sum) <= 2 * BATCH
        assert abs(summary["batches"] - sizes.count) <= 2
    (overhead,) = metrics["nf.probe.overhead"].gauge.data_points
    assert overhead.as_double == pytest.approx(summary["overhead"]["share_of_core"], abs=1e-5)
    (busy,) = metrics["nf.thread.busy"].gauge.data_points
    assert 0 <= busy.as_double <= 1
    check_exemplars(receiver)


def find_exemplars(receiver: MetricsReceiver, name: str) -> Iterator[tuple[str, Any]]:
    """Of all exports, with the function's name or "" ."""
    for export in range(len(receiver.exports)):
        for point in receiver.metrics(export)[name].exponential_histogram.data_points:
            label = "".join(item.value.string_value for item in point.attributes)
            yield from ((label, exemplar) for exemplar in point.exemplars)


def check_exemplars(receiver: MetricsReceiver) -> None:
    latency_ns, ids, culprits = {}, set(), set()
    for span in receiver.spans():
        ids.add((span.trace_id, span.span_id))
        values = {item.key: item.value for item in span.attributes}
        if "nf.packet.latency_ns" in values:
            latency_ns[span.trace_id, span.span_id] = values["nf.packet.latency_ns"].int_value
        if "nf.tail.function" in values:
            culprits.add(values["nf.tail.function"].string_value)
    latencies = list(find_exemplars(receiver, "nf.packet.latency"))
    assert latencies
    for _, exemplar in latencies:
        known = latency_ns[exemplar.trace_id, exemplar.span_id]
        assert exemplar.as_double * 1e9 == pytest.approx(known, rel=2e-3, abs=2)
    # fw_output, and on a busy machine others or none
    durations = list(find_exemplars(receiver, "nf.function.duration"))
    assert {name for name, _ in durations} == culprits
    for _, exemplar in durations:
        assert exemplar.as_double > 0
        assert (exemplar.trace_id, exemplar.span_id) in ids
