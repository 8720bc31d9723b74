# SPDX-License-Identifier: Apache-2.0
"""The metrics of a session on examples/firewall say what its summary says, and point to spans that were sent."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.firewall import DESCRIPTION
from tests.support.metrics_receiver import MetricsReceiver

pytestmark = pytest.mark.integration

BATCH = 32
OPTIONS = (
    "--trial",
    "0s",
    "--for",
    "1s",
    "--packets",
    "all",
    "--ring-size",
    "64MiB",
    "--slowest",
    "1%",
    "--sample",
    "0.01",
)


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
    metrics_receiver: MetricsReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "300")
    words = ["--rate", "30000", "--slow-every", "300", "--slow-us", "40000"]
    firewall = spawn(firewall_binary, *words, stdout=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{metrics_receiver.port}"
    options = ["--adapter", DESCRIPTION, *OPTIONS, "--endpoint", endpoint, "--max-traces-per-second", "30"]
    summary = nfprobe.json("attach", firewall.pid, *options)
    assert summary["metrics"] == {"delivered": len(metrics_receiver.exports), "failed": 0, "error": ""}
    assert len(metrics_receiver.exports) >= 2
    metrics = metrics_receiver.metrics()  # of the last export, which speaks of the whole session
    packets = summary["packets"]
    assert numbers(metrics["nf.packet.received"]) == {"": packets["received"]}
    assert numbers(metrics["nf.packet.processed"]) == {name: packets[name] for name in packets if name != "received"}
    assert numbers(metrics["nf.record.lost"]) == summary["records"]["lost"]
    assert numbers(metrics["nf.span.exported"]) == {"": summary["spans"]["exported"]}
    assert numbers(metrics["nf.trace.dropped"]) == summary["spans"]["dropped_traces"]
    assert "sample over limit" in summary["spans"]["dropped_traces"]
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
        counted = latency.count + summary["prior"]["packets"]
        assert abs(packets["transmitted"] + packets["dropped"] - counted) <= 2 * BATCH
        assert abs(packets["received"] - sizes.sum) <= 2 * BATCH
        assert abs(summary["batches"] - sizes.count) <= 2
    (overhead,) = metrics["nf.probe.overhead"].gauge.data_points
    assert overhead.as_double == pytest.approx(summary["overhead"]["share_of_core"], abs=1e-5)
    (busy,) = metrics["nf.thread.busy"].gauge.data_points
    assert 0 <= busy.as_double <= 1
    check_exemplars(metrics_receiver)


def find_exemplars(metrics_receiver: MetricsReceiver, name: str) -> Iterator[tuple[str, Any]]:
    """Of all exports, with the function's name or "" ."""
    for export in range(len(metrics_receiver.exports)):
        for point in metrics_receiver.metrics(export)[name].exponential_histogram.data_points:
            label = "".join(item.value.string_value for item in point.attributes)
            yield from ((label, exemplar) for exemplar in point.exemplars)


def check_exemplars(metrics_receiver: MetricsReceiver) -> None:
    latency_ns, ids, culprits = {}, set(), set()
    for span in metrics_receiver.spans():
        ids.add((span.trace_id, span.span_id))
        values = {item.key: item.value for item in span.attributes}
        if "nf.packet.latency_ns" in values:
            latency_ns[span.trace_id, span.span_id] = values["nf.packet.latency_ns"].int_value
        if "nf.tail.function" in values:
            culprits.add(values["nf.tail.function"].string_value)
    latencies = list(find_exemplars(metrics_receiver, "nf.packet.latency"))
    assert latencies
    for _, exemplar in latencies:
        known = latency_ns[exemplar.trace_id, exemplar.span_id]
        assert exemplar.as_double * 1e9 == pytest.approx(known, rel=2e-3, abs=2)
    # fw_output, and on a busy machine others or none
    durations = list(find_exemplars(metrics_receiver, "nf.function.duration"))
    assert {name for name, _ in durations} == culprits
    for _, exemplar in durations:
        assert exemplar.as_double > 0
        assert (exemplar.trace_id, exemplar.span_id) in ids


def test_metrics_are_shown_to_who_asks(firewall_binary: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """Without a metrics_receiver of spans, too; the page counts what the summary counts."""
    firewall = spawn(firewall_binary, "--rate", "30000", stdout=subprocess.DEVNULL)
    words = ["attach", firewall.pid, "--adapter", DESCRIPTION, "--trial", "0s", "--metrics-listen", "0", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "otel_nfprobe", *map(str, words)], stdout=PIPE, stderr=PIPE, text=True
    ) as session:
        try:
            assert session.stdout is not None
            assert session.stderr is not None
            port = next(found[1] for line in session.stderr if (found := re.search(r"served on port (\d+)", line)))
            page = ask_until(int(port), "nf_packet_latency_seconds_count")
            session.send_signal(signal.SIGINT)
            summary = json.loads(session.communicate(timeout=120)[0].splitlines()[-1])
        finally:
            session.kill()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    received = families["nf_packet_received"].samples[0].value
    assert 0 < received <= summary["packets"]["received"]
    names = {sample.labels["code_function_name"] for sample in families["nf_function_duration_seconds"].samples}
    assert {"fw_receive", "fw_transmit"} <= names
    assert families["target"].samples[0].labels["process_pid"] == str(firewall.pid)


def ask_until(port: int, text: str) -> str:
    """Scrapes until the page has the text; the session may not have begun."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError), opener.open(request, timeout=30) as response:
            page: str = response.read().decode()
            if text in page:
                return page
        assert time.monotonic() < deadline
        time.sleep(0.05)
