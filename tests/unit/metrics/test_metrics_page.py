# SPDX-License-Identifier: Apache-2.0
"""The page for Prometheus, read back by prometheus_client's own parsers; who asks gets an answer or a status."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from opentelemetry.sdk.metrics import Exemplar
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.metrics.exemplars import Exemplars
from otel_nfprobe.metrics.metrics import MetricsMaker
from otel_nfprobe.metrics.metrics_listener import MetricsListener, parse_address, write_page
from otel_nfprobe.metrics.metrics_settings import Temporality
from tests.unit.metrics.test_metrics import START_NS, TICKS_PER_SECOND, calls, durations, snapshot, statistics_of

RESOURCE = {"service.name": "dpdk-testpmd", "process.pid": 7}
SLOW = Exemplar({}, 3e-6, START_NS, 0xABC, 0xDEF)
SLOWER = Exemplar({}, 4e-6, START_NS + 10**9, 0x123, 0x456)


def make_maker() -> MetricsMaker:
    return MetricsMaker(RESOURCE, START_NS, TICKS_PER_SECOND, Temporality(), explicit=True)


def make_snapshot() -> object:
    made = snapshot(2, statistics_of(calls(0, durations(1)), calls(1, durations(2))), 150)
    return type(made)(**{**vars(made), "exemplars": Exemplars([], {"second": SLOWER, "first": SLOW}, {})})


@pytest.fixture
def listener() -> Iterator[MetricsListener]:
    listener = MetricsListener("127.0.0.1", 0)
    yield listener
    listener.close()


def ask(port: int, path: str = "/metrics", accept: str = "") -> tuple[str, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    with opener.open(request, timeout=30) as response:
        return response.headers["Content-Type"], response.read().decode()


@pytest.mark.parametrize("read", [read_openmetrics, read_plain])
def test_the_page_says_what_was_counted(read: object) -> None:
    openmetrics = read is read_openmetrics
    page = write_page(make_maker().make(make_snapshot()), openmetrics)  # type: ignore[arg-type]
    families = {family.name: family for family in read(page.decode())}  # type: ignore[operator]
    received = families["nf_packet_received"].samples
    assert [(sample.name, sample.value) for sample in received] == [("nf_packet_received_total", 150)]
    info = families["target" if openmetrics else "target_info"].samples[0]
    assert (info.labels["service_name"], info.labels["process_pid"]) == ("dpdk-testpmd", "7")
    assert families["nf_thread_busy_ratio"].samples[0].value == 0.25
    (cycles,) = [
        sample
        for sample in families["nf_function_counter"].samples
        if (sample.labels["code_function_name"], sample.labels["nf_counter_name"]) == ("first", "cycles")
    ]
    assert (cycles.name, cycles.value) == ("nf_function_counter_total", 1505)
    functions = [
        s for s in families["nf_function_duration_seconds"].samples if s.labels["code_function_name"] == "second"
    ]
    buckets = [sample for sample in functions if sample.name.endswith("_bucket")]
    seconds = durations(2) / TICKS_PER_SECOND
    for sample in buckets:
        bound = float(sample.labels["le"])
        assert (seconds <= bound).sum() <= sample.value <= (seconds <= bound * (1 + 1 / 32)).sum()
    assert {sample.name[len("nf_function_duration_seconds") :]: sample.value for sample in functions[-2:]} == {
        "_count": len(seconds),
        "_sum": pytest.approx(seconds.sum()),
    }
    exemplars = [(float(sample.labels["le"]), sample.exemplar) for sample in buckets if sample.exemplar]
    if openmetrics:
        ((bound, exemplar),) = exemplars
        assert (bound, exemplar.value) == (5e-6, 4e-6)
        assert exemplar.labels == {"trace_id": f"{0x456:032x}", "span_id": f"{0x123:016x}"}
    else:
        assert exemplars == []


def test_who_asks_is_answered_by_the_next_snapshot(listener: MetricsListener) -> None:
    listener.begin(make_maker())
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(listener.port, accept="application/openmetrics-text")))
    asking.start()
    deadline = time.monotonic() + 30
    while not listener.is_asked and time.monotonic() < deadline:
        time.sleep(0.001)
    assert answers == []
    listener.give(make_snapshot())  # type: ignore[arg-type]
    asking.join(30)
    ((kind, page),) = answers
    assert kind.startswith("application/openmetrics-text")
    assert "nf_packet_received_total 150.0" in page
    assert not listener.is_asked


def test_nothing_to_say_is_said(listener: MetricsListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_nfprobe.metrics.metrics_listener.PATIENCE_S", 0.01)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        ask(listener.port)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(listener.port, "/")
    with pytest.raises(NfprobeError, match=f"127.0.0.1:{listener.port} cannot be bound: Address already in use"):
        MetricsListener("127.0.0.1", listener.port)


def test_addresses() -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:1") == ("0.0.0.0", 1)
    for text in ("", "host", "host:", "host:x", "65536", "1:-1"):
        with pytest.raises(UsageError, match="HOST"):
            parse_address(text)


def test_a_function_that_was_never_called_is_not_shown() -> None:
    nothing = make_maker().make(snapshot(1, statistics_of(calls(0, np.array([], np.uint64))), 1))
    assert b"nf_function_duration" not in write_page(nothing, True)
