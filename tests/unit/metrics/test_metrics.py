# SPDX-License-Identifier: Apache-2.0
"""Metrics say what the C statistics say; exemplars point to spans that exist; a dead metrics_receiver harms nobody."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import AggregationTemporality, ExponentialHistogramDataPoint, MetricsData

from otel_nfprobe.base.clock import ANCHOR, Clock
from otel_nfprobe.base.columns import CALL, NONE, Columns, latency_ticks
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.counters.sums import CountedFunction
from otel_nfprobe.export.span import TAIL, Tails
from otel_nfprobe.metrics.exemplars import ExemplarEncoder, Exemplars
from otel_nfprobe.metrics.metrics import (
    BUCKETS_MAX,
    MetricsMaker,
    MetricsSnapshot,
    make_durations,
    make_exponential,
    make_sizes,
)
from otel_nfprobe.metrics.metrics_sender import MetricsSender, open_exporter
from otel_nfprobe.metrics.metrics_settings import Temporality, find_settings
from otel_nfprobe.pipeline.histogram_buckets import Span, lowers_of, read_counted
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from tests.support.metrics_receiver import MetricsReceiver, spans_of
from tests.support.otlp_receiver import Answered, HttpReceiver, Receiver, find_dead_endpoint
from tests.support.synthetic_columns import make_columns

TICKS_PER_SECOND = 2.5e9
SPAN = Span(1, 2)
START_NS = 1_700_000_000 * 10**9


def calls(function: int, ticks: np.ndarray) -> Columns:
    rows = np.zeros(len(ticks), CALL)
    rows["function"], rows["start_ticks"], rows["end_ticks"] = function, 1000, 1000 + ticks
    return Columns(calls=rows)


def durations(seed: int, spread: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(7, spread, 20_000).astype(np.uint64)


def statistics_of(*parts: Columns) -> Statistics:
    statistics = Statistics()
    for part in parts:
        statistics.add(part)
    return statistics


def make_point(statistics: Statistics, *functions: int) -> ExponentialHistogramDataPoint:
    counted = read_counted(statistics, Distribution.CALL_TICKS, functions)
    return make_exponential(counted, 1 / TICKS_PER_SECOND, {}, SPAN, [])


def exported_quantile(point: ExponentialHistogramDataPoint, quantile: float) -> float:
    """The upper bound of the bucket that holds it, seconds."""
    if quantile * point.count <= point.zero_count:
        return 0.0
    reached = point.zero_count + np.cumsum(point.positive.bucket_counts)
    place = int(np.searchsorted(reached, quantile * point.count))
    return float(2 ** ((point.positive.offset + place + 1) / 2**point.scale))


@pytest.mark.parametrize("spread", [0.05, 0.5, 2.0, 4.0])
def test_exponential_histograms_are_the_statistics(spread: float) -> None:
    ticks = durations(1, spread)
    statistics = statistics_of(calls(3, ticks))
    point = make_point(statistics, 3)
    assert point.count == len(ticks) == point.zero_count + sum(point.positive.bucket_counts)
    assert point.sum == pytest.approx(ticks.sum() / TICKS_PER_SECOND)
    assert (point.min, point.max) == pytest.approx((ticks.min() / TICKS_PER_SECOND, ticks.max() / TICKS_PER_SECOND))
    assert len(point.positive.bucket_counts) <= BUCKETS_MAX
    error = 2 ** (1 / 2**point.scale) * (1 + 1 / 32)
    for quantile in (0.01, 0.25, 0.5, 0.9, 0.99, 0.999):
        right = statistics.quantile(Distribution.CALL_TICKS, quantile, 3) / TICKS_PER_SECOND
        assert right / error <= exported_quantile(point, quantile) <= right * error


def test_edges_of_buckets() -> None:
    for value in (0, 1, 31, 32, 63, 64, 65, 1000, 2**40 + 7, 2**53 + 1, 2**63 + 1, 2**64 - 1001):
        counted = read_counted(statistics_of(calls(0, np.array([value], np.uint64))), Distribution.CALL_TICKS)
        lower, upper = int(lowers_of(counted.uppers)[0]), int(counted.uppers[0])
        assert lower <= value <= upper
        assert upper - lower == max(0, (1 << max(0, value.bit_length() - 6)) - 1)
        assert make_exponential(counted, 1e-9, {}, SPAN, []).zero_count == (value == 0)


def test_durations_with_fixed_bounds() -> None:
    ticks = durations(1)
    counted = read_counted(statistics_of(calls(0, ticks)), Distribution.CALL_TICKS)
    point = make_durations(counted, 1 / TICKS_PER_SECOND, {}, SPAN, [])
    reached = np.cumsum(point.bucket_counts)
    assert (point.count, reached[-1]) == (len(ticks), len(ticks))
    assert point.sum == pytest.approx(ticks.sum() / TICKS_PER_SECOND)
    assert (point.explicit_bounds[0], point.explicit_bounds[-1]) == (1e-8, 1.0)
    for bound, count in zip(point.explicit_bounds, reached.tolist(), strict=False):
        at_most = int((ticks <= bound * TICKS_PER_SECOND).sum())
        assert at_most <= count <= int((ticks <= bound * TICKS_PER_SECOND * (1 + 1 / 32)).sum())


def test_functions_of_one_name_are_added_up() -> None:
    first, second = durations(1), durations(2)
    point = make_point(statistics_of(calls(1, first), calls(4, second)), 1, 2, 4)
    assert point == make_point(statistics_of(calls(0, np.concatenate((first, second)))), 0)


def test_difference_of_two_moments() -> None:
    first, second = durations(1), durations(2) * np.uint64(3)
    statistics = statistics_of(calls(0, first))
    before = read_counted(statistics, Distribution.CALL_TICKS)
    statistics.add(calls(0, second))
    difference = read_counted(statistics, Distribution.CALL_TICKS).since(before)
    alone = read_counted(statistics_of(calls(0, second)), Distribution.CALL_TICKS)
    assert (difference.count, difference.total) == (alone.count, alone.total)
    assert difference.uppers.tolist() == alone.uppers.tolist()
    assert difference.counts.tolist() == alone.counts.tolist()
    assert difference.least <= alone.least <= difference.least * 33 / 32 + 1
    assert difference.largest * 32 / 33 - 1 <= alone.largest <= difference.largest
    nothing = read_counted(statistics, Distribution.CALL_TICKS).since(read_counted(statistics, Distribution.CALL_TICKS))
    assert (nothing.count, len(nothing.uppers)) == (0, 0)


def test_batch_sizes_are_exact() -> None:
    columns = make_columns(20)
    columns.batches = np.repeat(columns.batches, 300)[:200]
    sizes = np.concatenate((np.arange(65), [128, 256, 257, 1030, 4096, 5000], np.full(129, 32)))
    columns.batches["size"] = sizes
    point = make_sizes(read_counted(statistics_of(columns), Distribution.BATCH_SIZE), SPAN)
    edges = [-1, *point.explicit_bounds, 2**32]
    assert point.bucket_counts == np.histogram(sizes - 0.5, np.array(edges) + 0.0)[0].tolist()
    assert (point.count, point.sum, point.min, point.max) == (200, sizes.sum(), 0, 5000)


def snapshot(seconds: int, statistics: Statistics, received: int) -> MetricsSnapshot:
    return MetricsSnapshot(
        unix_ns=START_NS + seconds * 10**9,
        statistics=statistics,
        names=["first", "second", "first", "never called"],
        received=received,
        processed={"transmitted": received - 1, "dropped": 1},
        lost={"call": 0},
        exported=5,
        dropped={},
        unwritten={"sample over limit": 7},
        spooled=0,
        busy=[(17, "worker", 0.25)],
        overhead=0.01,
        probes=4,
        exemplars=Exemplars([], {}, {}),
        counted=[
            CountedFunction(0, {"cycles": 10 * received, "LLC-loads": 2}, received, 1),
            CountedFunction(2, {"cycles": 5, "LLC-loads": 0}, 1, 0),
            CountedFunction(9, {"cycles": 1, "LLC-loads": 0}, 1, 0),
        ],
    )


def points(data: MetricsData) -> dict[str, Any]:
    (resource,) = data.resource_metrics
    found = {}
    for metric in resource.scope_metrics[0].metrics:
        for point in metric.data.data_points:
            found[":".join([metric.name, *map(str, point.attributes.values())])] = point
    return found


def test_temporality() -> None:
    statistics = statistics_of(calls(0, durations(1)), calls(2, durations(2)), calls(1, durations(3)))
    later = statistics_of(calls(0, durations(4)[:7]))
    later.merge(statistics)
    counts, starts, values = [], [], []
    for temporality in (Temporality(), Temporality(histograms_delta=True), Temporality(True, True)):
        maker = MetricsMaker({"service.name": "x"}, START_NS, TICKS_PER_SECOND, temporality)
        maker.make(snapshot(1, statistics, 100))  # was not delivered
        first = maker.make(snapshot(2, statistics, 150))
        maker.confirm()
        second = points(maker.make(snapshot(3, later, 190)))
        assert points(first)["nf.function.duration:first"].count == 40_000
        assert "nf.function.duration:never called" not in points(first)
        assert second["nf.thread.busy:17:worker"].value == 0.25
        counts.append((second["nf.function.duration:first"].count, "nf.function.duration:second" in second))
        starts.append(second["nf.function.duration:first"].start_time_unix_nano - START_NS)
        values.append(second["nf.packet.received"].value)
    assert counts == [(40_007, True), (7, False), (7, False)]
    assert starts == [0, 2 * 10**9, 2 * 10**9]
    assert values == [190, 190, 40]
    metrics = {metric.name: metric for metric in first.resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["nf.packet.received"].data.aggregation_temporality is AggregationTemporality.DELTA
    assert metrics["nf.function.duration"].unit == "s"


def test_counters() -> None:
    maker = MetricsMaker({}, START_NS, TICKS_PER_SECOND, Temporality(sums_delta=True))
    first = points(maker.make(snapshot(1, Statistics(), 100)))
    maker.confirm()
    second = points(maker.make(snapshot(2, Statistics(), 130)))
    assert first["nf.function.counter:first:cycles"].value == 1005
    assert first["nf.function.counter:first:LLC-loads"].value == 2
    assert first["nf.function.counted:first:yes"].value == 101
    assert first["nf.function.counted:first:no"].value == 1
    assert first["nf.function.counter::cycles"].value == 1
    assert second["nf.function.counter:first:cycles"].value == 300
    assert second["nf.function.counter:first:cycles"].attributes == {
        "code.function.name": "first",
        "nf.counter.name": "cycles",
    }
    assert second["nf.function.counted:first:no"].value == 0


def test_settings() -> None:
    every = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1"}
    settings = find_settings(None, every)
    assert settings is not None
    assert (settings.endpoint.target, settings.interval_s, settings.endpoint.timeout_s) == ("127.0.0.1:1", 60.0, 10.0)
    own = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:2", "OTEL_METRIC_EXPORT_INTERVAL": "250"}
    own["OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"] = "LowMemory"
    settings = find_settings(None, every | own)
    assert settings is not None
    assert (settings.endpoint.target, settings.interval_s) == ("127.0.0.1:2", 0.25)
    assert settings.temporality == Temporality(histograms_delta=True, sums_delta=False)
    assert find_settings("http://127.0.0.1:3", {"OTEL_METRICS_EXPORTER": "none"}) is None
    assert find_settings("http://127.0.0.1:3", {"OTEL_METRICS_EXPORTER": "prometheus"}) is None
    assert find_settings("http://127.0.0.1:3", {"OTEL_METRICS_EXPORTER": "console, otlp"}) is not None
    explicit = {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram"}
    settings = find_settings("http://127.0.0.1:3", explicit)
    assert settings is not None
    assert settings.explicit
    own_names = ("DEFAULT_HISTOGRAM_AGGREGATION", "TEMPORALITY_PREFERENCE", "TIMEOUT", "COMPRESSION")
    for name in ("OTEL_METRIC_EXPORT_INTERVAL", *(f"OTEL_EXPORTER_OTLP_METRICS_{own}" for own in own_names)):
        with pytest.raises(UsageError, match=name):
            find_settings("http://127.0.0.1:3", {name: "soon"})


@pytest.mark.parametrize("window_ns", [0, 10**9])
def test_exemplars_point_to_spans(window_ns: int) -> None:
    clock = Clock(np.array([(10**15 - 10**9, START_NS, int(0.4 * 2**32))], ANCHOR), 0)
    encoder = ExemplarEncoder({}, ["f0", "f1", "f2", "f3"], 77, clock, "", window_ns)
    keeper, other = encoder.keep_exemplars(), encoder.keep_exemplars()
    columns = make_columns(400)
    columns.packets["flags"] &= 1
    selected = np.arange(0, 400, 3, dtype=np.uint32)
    tails = np.zeros(len(selected), TAIL)
    tails["function"] = NONE
    tails["kind"][[5, 9]], tails["function"][[5, 9]], tails["excess_ns"][[5, 9]] = 1, 2, (500, 900)
    batch = columns.batches[columns.packets["batch"][selected[9]]]
    tails["batch_id"][9] = batch["id"]
    tails["kind"][20], tails["function"][20] = 3, 1
    tails["batch_id"][20] = columns.batches["id"][0]
    tails["link_high"][20], tails["link_low"][20], tails["link_span"][20] = 7, 8, 9
    reasons = np.ones(len(selected), np.uint8)
    requests = [request.data for request in encoder.encode(columns, selected, reasons, Tails(tails))]
    roots = {}
    for span in spans_of(requests):
        for attribute in span.attributes:
            if attribute.key == "nf.packet.latency_ns":
                roots[span.trace_id, span.span_id] = attribute.value.int_value
    exemplars = keeper.take()
    assert len(exemplars.latencies) >= 3
    for exemplar in exemplars.latencies:
        assert exemplar.trace_id is not None
        assert exemplar.span_id is not None
        ids = exemplar.trace_id.to_bytes(16, "big"), exemplar.span_id.to_bytes(8, "big")
        assert roots[ids] == pytest.approx(exemplar.value * 1e9, abs=2)
    slowest = latency_ticks(Columns(batches=columns.batches, packets=columns.packets[selected])).max()
    assert max(item.value for item in exemplars.latencies) == pytest.approx(slowest / TICKS_PER_SECOND)
    assert set(exemplars.durations) == {"f1", "f2"}
    linked = exemplars.durations["f1"]
    assert (linked.trace_id, linked.span_id) == (7 << 64 | 8, 9)
    own = exemplars.durations["f2"]
    mine = columns.calls[batch["first_call"] : batch["first_call"] + batch["calls"]]
    mine = mine[mine["function"] == 2]
    ids = own.trace_id.to_bytes(16, "big"), own.span_id.to_bytes(8, "big")
    assert ids in roots
    assert own.value == pytest.approx(int((mine["end_ticks"] - mine["start_ticks"]).max()) / TICKS_PER_SECOND)
    assert keeper.take() == Exemplars([], {}, {})
    assert other.take() == exemplars


def make_maker() -> MetricsMaker:
    return MetricsMaker({"service.name": "x", "process.pid": 7}, START_NS, TICKS_PER_SECOND, Temporality())


def test_what_is_sent_arrives(metrics_receiver: MetricsReceiver) -> None:
    sender = MetricsSender(open_exporter(metrics_receiver.endpoint()), make_maker())
    statistics = statistics_of(calls(0, durations(1)))
    sender.send(snapshot(1, statistics, 10))
    sent = sender.close(60.0)
    assert (sent.delivered, sent.failed, sent.error) == (1, 0, "")
    metrics = metrics_receiver.metrics()
    (point,) = metrics["nf.function.duration"].exponential_histogram.data_points
    assert point.count == sum(point.positive.bucket_counts) + point.zero_count == 20_000
    assert (point.attributes[0].key, point.attributes[0].value.string_value) == ("code.function.name", "first")
    resource = {item.key: item.value for item in metrics_receiver.exports[0].resource_metrics[0].resource.attributes}
    assert resource["process.pid"].int_value == 7


def test_receivers_that_take_no_metrics(capfd: pytest.CaptureFixture[str]) -> None:
    statistics = Statistics()
    traces = Receiver()
    for endpoint, refused in ((traces.endpoint(), True), (find_dead_endpoint(), False)):
        sender = MetricsSender(open_exporter(endpoint), make_maker())
        sender.send(snapshot(1, statistics, 10))
        assert not sender.is_idle
        started = time.monotonic()
        sent = sender.close(60.0 if refused else 0.5)
        assert (sent.delivered, sent.failed, sent.is_refused) == (0, 1, refused), sent.error
        assert "UNAVAILABLE" in sent.error or refused
        assert time.monotonic() - started < 60
    traces.stop()
    assert capfd.readouterr().err == ""


def test_metrics_by_http(capfd: pytest.CaptureFixture[str]) -> None:
    metrics_receiver, statistics = HttpReceiver(), Statistics()
    metrics_receiver.answers = [Answered(), Answered(404), Answered(503)]
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    settings = find_settings(f"http://127.0.0.1:{metrics_receiver.port}", variables)
    assert settings is not None
    for delivered, refused, close_s in ((1, False, 60.0), (0, True, 60.0), (0, False, 0.5)):
        sender = MetricsSender(open_exporter(settings.endpoint), make_maker())
        sender.send(snapshot(1, statistics, 10))
        sent = sender.close(close_s)
        assert (sent.delivered, sent.failed, sent.is_refused) == (delivered, 1 - delivered, refused), sent.error
    metrics_receiver.stop()
    assert set(metrics_receiver.paths) == {"/v1/metrics"}
    assert ExportMetricsServiceRequest.FromString(metrics_receiver.requests[0]).resource_metrics
    assert capfd.readouterr().err == ""
