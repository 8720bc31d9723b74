# SPDX-License-Identifier: Apache-2.0
"""Metrics: statistics of all packets, batches and calls, as OpenTelemetry metrics (docs/export.md).

The draining thread takes a MetricsSnapshot, a copy made by the C core; another thread (metrics_sender.py) converts it
to the SDK's data. No call is ever recorded individually.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Buckets as ExponentialBuckets
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import AttributeValue

from otel_nfprobe import __version__
from otel_nfprobe.counters.sums import CountedFunction
from otel_nfprobe.export.export_counters import ExportCounters
from otel_nfprobe.export.resource import SCHEMA_URL, SCOPE_NAME
from otel_nfprobe.metrics.exemplars import ExemplarKeeper, Exemplars
from otel_nfprobe.metrics.metrics_settings import Temporality
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.monitor.snapshot import SessionSnapshot
from otel_nfprobe.pipeline.histogram_buckets import Attributes, Counted, Span, lowers_of, read_counted
from otel_nfprobe.pipeline.statistics import SIZES_EXACT, Distribution, Statistics

# ---- explicit buckets -----------------------------------------------------------------------------------------------
# Explicit: a distribution as an OpenTelemetry histogram point with fixed bounds, "classic" buckets in Prometheus.
#
# Bounds of durations fall inside buckets of the C core, which are 3 % wide: a value up to 3 % over a bound counts as at
# it. Pure.


# Sizes below SIZES_EXACT are counted individually; above, powers of two are lower edges of the C core's buckets.
SIZE_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# From a short function to a thread blocked for a second; three per power of ten.
DURATION_BOUNDS_S = tuple(float(f"{digit}e{power}") for power in range(-8, 1) for digit in (1, 2, 5))[:-2]


def make_durations(
    counted: Counted, seconds_per_tick: float, attributes: Attributes, span: Span, exemplars: Sequence[Exemplar]
) -> HistogramDataPoint:
    """Returns the point of a distribution of ticks, in seconds."""
    edges = lowers_of(counted.uppers).astype(np.float64) * seconds_per_tick
    return HistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.end_ns,
        count=counted.count,
        sum=counted.total * seconds_per_tick,
        bucket_counts=_place(edges, DURATION_BOUNDS_S, counted),
        explicit_bounds=DURATION_BOUNDS_S,
        min=counted.least * seconds_per_tick,
        max=counted.largest * seconds_per_tick,
        exemplars=list(exemplars),
    )


def make_sizes(counted: Counted, span: Span) -> HistogramDataPoint:
    """Returns the point of a distribution of packets per batch."""
    sizes = np.where(counted.uppers < SIZES_EXACT, counted.uppers, lowers_of(counted.uppers))
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.end_ns,
        count=counted.count,
        sum=counted.total,
        bucket_counts=_place(sizes.astype(np.float64), SIZE_BOUNDS, counted),
        explicit_bounds=SIZE_BOUNDS,
        min=counted.least,
        max=counted.largest,
    )


def _place(edges: NDArray[np.float64], bounds: Sequence[float], counted: Counted) -> list[int]:
    """Returns the counts of a point's buckets; `edges` are the lower edges of the buckets in `counted`."""
    counts = np.zeros(len(bounds) + 1, np.uint64)
    np.add.at(counts, np.searchsorted(np.array(bounds, np.float64), edges), counted.counts)
    buckets: list[int] = counts.tolist()
    return buckets


# ---- exponential buckets --------------------------------------------------------------------------------------------
# Exponential: a distribution as an OpenTelemetry exponential histogram point.
#
# Each bucket of the C core is counted entirely in the exponential bucket that contains its middle. Pure.


SCALE_MAX = 5  # 32 buckets per power of two, as many as the C core has
BUCKETS_MAX = 160  # per point, as in the SDK's own aggregation


def make_exponential(
    counted: Counted, seconds_per_tick: float, attributes: Attributes, span: Span, exemplars: Sequence[Exemplar]
) -> ExponentialHistogramDataPoint:
    """Returns the point of a distribution of ticks, in seconds."""
    zeros = counted.uppers == 0
    uppers, counts = counted.uppers[~zeros], counted.counts[~zeros]
    scale, offset, buckets = _spread(uppers, counts, seconds_per_tick)
    return ExponentialHistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=span.start_ns,
        time_unix_nano=span.end_ns,
        count=counted.count,
        sum=counted.total * seconds_per_tick,
        scale=scale,
        zero_count=int(counted.counts[zeros].sum()),
        positive=ExponentialBuckets(offset, buckets),
        negative=ExponentialBuckets(0, []),
        flags=0,
        min=counted.least * seconds_per_tick,
        max=counted.largest * seconds_per_tick,
        exemplars=list(exemplars),
    )


def _spread(
    uppers: NDArray[np.uint64], counts: NDArray[np.uint64], seconds_per_tick: float
) -> tuple[int, int, list[int]]:
    """Returns the scale, the index of the first bucket and all counts, from the first to the last non-empty bucket."""
    if not len(uppers):
        return SCALE_MAX, 0, []
    middles = (lowers_of(uppers).astype(np.float64) + uppers.astype(np.float64)) / 2
    # Bucket i contains values above base^i, up to base^(i + 1), where base is 2^(2^-scale).
    indices = np.ceil(np.log2(middles * seconds_per_tick) * 2**SCALE_MAX).astype(np.int64) - 1
    scale = SCALE_MAX
    while indices[-1] - indices[0] >= BUCKETS_MAX:
        indices >>= 1
        scale -= 1
    spread = np.zeros(int(indices[-1] - indices[0]) + 1, np.uint64)
    np.add.at(spread, indices - indices[0], counts)
    return scale, int(indices[0]), spread.tolist()


# ---- messages -------------------------------------------------------------------------------------------------------


NAME_BYTES_MAX = 512  # as in spans
By = tuple[tuple[str, str], ...]  # attributes of a point
DurationPoint = ExponentialHistogramDataPoint | HistogramDataPoint


@dataclass(frozen=True)
class MetricsSnapshot:
    """The state at one moment.

    Attributes:
        unix_ns: that moment.
        statistics: a copy.
        names: of each function ID.
        received: packets.
        processed: packets by disposition.
        lost: records by class.
        exported: spans.
        dropped: spans by reason.
        unwritten: traces selected but not written, by reason.
        spooled: spans waiting on disk.
        busy: thread ID, its name, and the share of the time since the last snapshot not spent in empty polls.
        overhead: share of a core used by the probes since the start of the session.
        probes: armed probes.
        exemplars: of what was exported since the last snapshot.
        counted: performance counters by function.
        queue_drops: packets that full queues dropped, by name and kind of the queue.
    """

    unix_ns: int
    statistics: Statistics
    names: Sequence[str]
    received: int
    processed: Mapping[str, int]
    lost: Mapping[str, int]
    exported: int
    dropped: Mapping[str, int]
    unwritten: Mapping[str, int]
    spooled: int
    busy: Sequence[tuple[int, str, float]]
    overhead: float
    probes: int
    exemplars: Exemplars
    counted: Sequence[CountedFunction] = ()
    queue_drops: Mapping[tuple[str, str], int] = field(default_factory=dict)


class SnapshotTaker:
    """Takes snapshots of a session, in its draining thread.

    Args:
        monitor: started.
        exemplars: of the exported spans.
    """

    def __init__(self, monitor: Monitor, exemplars: ExemplarKeeper) -> None:
        self._monitor = monitor
        self._exemplars = exemplars
        self._empty_ticks: dict[int, int] = {}  # by thread ID, at the last snapshot
        self._taken_at_s = 0.0  # session time of the last snapshot

    def take(self, spans: ExportCounters, is_last: bool = False) -> MetricsSnapshot:
        """Returns the current state. When the session is over, packets still open count as `unknown`.

        Raises:
            MemoryError: no memory for the copy.
        """
        monitor, now = self._monitor, self._monitor.snapshot()
        copy = Statistics()
        copy.merge(monitor.drain.statistics)
        packets, sums = now.packets(), monitor.drain.counter_sums
        known = {"transmitted", "dropped", "punted", "absorbed", *(["unknown"] if is_last else [])} & packets.keys()
        return MetricsSnapshot(
            unix_ns=time.time_ns(),
            statistics=copy,
            names=monitor.attachment.names_by_id(),
            received=packets["received"],
            processed={name: count for name, count in packets.items() if name in known},
            lost=now.lost,
            exported=spans.total_exported,
            dropped=spans.total_dropped,
            unwritten=dict(monitor.drain.spans.limits.dropped) if monitor.drain.spans else {},
            spooled=spans.total_spooled,
            busy=self._find_busy(now),
            overhead=now.share_of_core,
            probes=now.placed,
            exemplars=self._exemplars.take(),
            counted=() if sums is None else sums.counted_functions(),
            queue_drops=_count_queue_drops(monitor),
        )

    def _find_busy(self, now: SessionSnapshot) -> list[tuple[int, str, float]]:
        """Returns the busy share of receiving threads. A new thread is included once its whole interval is known."""
        is_first = not self._empty_ticks
        passed = (now.elapsed_s - self._taken_at_s) * now.ticks_per_second
        found = []
        for thread in now.threads:
            if thread.empty_polls + thread.batches == 0:
                continue
            before = self._empty_ticks.get(thread.tid)
            if passed > 0 and (is_first or before is not None):
                share = 1 - (thread.empty_ticks - (before or 0)) / passed
                name = now.thread_names.get(thread.tid, "")
                found.append((thread.tid, name, min(1.0, max(0.0, share))))
            self._empty_ticks[thread.tid] = thread.empty_ticks
        self._taken_at_s = now.elapsed_s
        return found


class MetricsMaker:
    """Converts snapshots to the SDK's metrics.

    Args:
        resource: attributes of the target, as on its spans.
        start_unix_ns: start of the session.
        ticks_per_second: fixed for the whole session, so that no value ever moves to another bucket.
        explicit: durations have fixed bounds instead of exponential buckets.
    """

    def __init__(
        self,
        resource: Mapping[str, AttributeValue],
        start_unix_ns: int,
        ticks_per_second: float,
        temporality: Temporality,
        explicit: bool = False,
    ) -> None:
        self._explicit = explicit
        self._resource = Resource(resource, SCHEMA_URL)
        self._scope = InstrumentationScope(SCOPE_NAME, __version__, SCHEMA_URL)
        self._start_ns = self._last_ns = start_unix_ns
        self._seconds_per_tick = 1 / ticks_per_second
        self._temporality = temporality
        self._before: dict[tuple[str, str], Counted | int] = {}  # delivered values, by metric and attribute
        self._made: dict[tuple[str, str], Counted | int] = {}

    def make(self, snapshot: MetricsSnapshot) -> MetricsData:
        """Returns all metrics of one snapshot."""
        self._made = {}
        self._made_ns = snapshot.unix_ns
        metrics = [metric for metric in self._make_all(snapshot) if metric.data.data_points]
        return MetricsData(
            [ResourceMetrics(self._resource, [ScopeMetrics(self._scope, metrics, SCHEMA_URL)], SCHEMA_URL)]
        )

    def confirm(self) -> None:
        """Marks the last metrics as delivered: the next deltas begin there."""
        self._before |= self._made
        self._last_ns = self._made_ns

    def _make_all(self, snapshot: MetricsSnapshot) -> Iterator[Metric]:
        statistics, exemplars = snapshot.statistics, snapshot.exemplars
        latency = read_counted(statistics, Distribution.PACKET_TICKS)
        about = "Time from a packet's known or estimated arrival to the end of its transmit or drop call"
        latencies = [*self._make_ticks("nf.packet.latency", latency, {}, exemplars.latencies)]
        yield self._seconds("nf.packet.latency", about, latencies)
        functions = [*self._make_functions(snapshot)]
        yield self._seconds("nf.function.duration", "Time in a function, without the cost of its probes", functions)
        batches = [*self._make_ticks("nf.batch.duration", read_counted(statistics, Distribution.BATCH_TICKS), {}, [])]
        yield self._seconds(
            "nf.batch.duration", "Time from the receive call to the end of a batch's last call", batches
        )
        yield self._make_sizes(statistics)
        yield self._make_sum("nf.packet.received", "Packets received", "{packet}", "", {"": snapshot.received})
        by = "nf.packet.disposition"
        yield self._make_sum("nf.packet.processed", "Packets by disposition", "{packet}", by, snapshot.processed)
        yield self._make_sum("nf.record.lost", "Records lost, by class", "{record}", "nf.record.class", snapshot.lost)
        yield self._make_sum("nf.span.exported", "Spans delivered", "{span}", "", {"": snapshot.exported})
        yield self._make_sum("nf.span.dropped", "Spans not delivered", "{span}", "nf.span.reason", snapshot.dropped)
        about, unwritten = "Traces selected but not written", snapshot.unwritten
        yield self._make_sum("nf.trace.dropped", about, "{trace}", "nf.trace.reason", unwritten)
        yield self._make_queue_drops(snapshot)
        yield from self._make_counters(snapshot)
        yield from self._make_gauges(snapshot)

    def _make_functions(self, snapshot: MetricsSnapshot) -> Iterator[DurationPoint]:
        ids: dict[str, list[int]] = {}
        for function, name in enumerate(snapshot.names):
            ids.setdefault(_shorten(name), []).append(function)
        for name, functions in ids.items():
            counted = read_counted(snapshot.statistics, Distribution.CALL_TICKS, functions)
            exemplar = snapshot.exemplars.durations.get(name)
            attributes = {"code.function.name": name}
            yield from self._make_ticks("nf.function.duration", counted, attributes, [exemplar] if exemplar else [])

    def _make_ticks(
        self, metric: str, counted: Counted, attributes: Attributes, exemplars: Sequence[Exemplar]
    ) -> Iterator[DurationPoint]:
        """Returns one point, or none if nothing was counted."""
        counted = self._since(metric, str(attributes), counted)
        if counted.count:
            span = self._span(self._temporality.histograms_delta)
            make = make_durations if self._explicit else make_exponential
            yield make(counted, self._seconds_per_tick, attributes, span, exemplars)

    def _make_sizes(self, statistics: Statistics) -> Metric:
        counted = self._since("nf.batch.size", "", read_counted(statistics, Distribution.BATCH_SIZE))
        points = [make_sizes(counted, self._span(self._temporality.histograms_delta))] if counted.count else []
        data = Histogram(points, _temporality(self._temporality.histograms_delta))
        return Metric("nf.batch.size", "Packets per batch", "{packet}", data)

    def _since(self, metric: str, key: str, counted: Counted) -> Counted:
        if not self._temporality.histograms_delta:
            return counted
        self._made[metric, key] = counted
        before = self._before.get((metric, key))
        return counted.since(before if isinstance(before, Counted) else None)

    def _seconds(self, name: str, about: str, points: Sequence[DurationPoint]) -> Metric:
        temporality = _temporality(self._temporality.histograms_delta)
        if self._explicit:
            return Metric(name, about, "s", Histogram(cast(Sequence[HistogramDataPoint], points), temporality))
        exponential = cast(Sequence[ExponentialHistogramDataPoint], points)
        return Metric(name, about, "s", ExponentialHistogram(exponential, temporality))

    def _make_counters(self, snapshot: MetricsSnapshot) -> Iterator[Metric]:
        """Returns the performance counters; functions with the same name are merged."""
        counts: dict[By, int] = {}
        calls: dict[By, int] = {}
        for item in snapshot.counted:
            name = _shorten(snapshot.names[item.function]) if item.function < len(snapshot.names) else ""
            function = ("code.function.name", name)
            for key, number in (("yes", item.calls), ("no", item.invalid)):
                place = (function, ("nf.counter.counted", key))
                calls[place] = calls.get(place, 0) + number
            for counter, count in item.counts.items():
                place = (function, ("nf.counter.name", counter))
                counts[place] = counts.get(place, 0) + count
        about = "Performance counter events in calls of a function, without its probes"
        yield self._make_sums("nf.function.counter", about, "{event}", counts)
        yield self._make_sums("nf.function.counted", "Calls by whether their counters are valid", "{call}", calls)

    def _make_queue_drops(self, snapshot: MetricsSnapshot) -> Metric:
        """Returns what full queues dropped; exemplars lead to the batch that had filled them."""
        counts: dict[By, int] = {}
        exemplars: dict[By, Exemplar] = {}
        for (name, kind), packets in snapshot.queue_drops.items():
            by = (("nf.queue.name", name), ("nf.queue.kind", kind))
            counts[by] = packets
            if name in snapshot.exemplars.drops:
                exemplars[by] = snapshot.exemplars.drops[name]
        return self._make_sums("nf.queue.drops", "Packets that full queues dropped", "{packet}", counts, exemplars)

    def _make_sum(self, name: str, about: str, unit: str, attribute: str, values: Mapping[str, int]) -> Metric:
        """Returns a counter by the values of one attribute; "" for none."""
        keys: list[By] = [((attribute, key),) if attribute else () for key in values]
        return self._make_sums(name, about, unit, dict(zip(keys, values.values(), strict=True)))

    def _make_sums(
        self, name: str, about: str, unit: str, values: Mapping[By, int], exemplars: Mapping[By, Exemplar] | None = None
    ) -> Metric:
        """Returns a counter by attributes."""
        delta = self._temporality.sums_delta
        span, points = self._span(delta), []
        for by, value in values.items():
            attributes = dict(by)
            before = self._before.get((name, str(by)), 0) if delta else 0
            assert isinstance(before, int)
            self._made[name, str(by)] = value
            kept = [exemplars[by]] if exemplars and by in exemplars else []
            points.append(NumberDataPoint(attributes, span.start_ns, span.end_ns, value - before, kept))
        return Metric(name, about, unit, Sum(points, _temporality(delta), is_monotonic=True))

    def _make_gauges(self, snapshot: MetricsSnapshot) -> Iterator[Metric]:
        busy = [
            NumberDataPoint({"thread.id": tid, "thread.name": name}, self._last_ns, snapshot.unix_ns, share)
            for tid, name, share in snapshot.busy
        ]
        yield Metric("nf.thread.busy", "Share of the time not spent in empty polls", "1", Gauge(busy))
        spooled = [NumberDataPoint({}, self._last_ns, snapshot.unix_ns, snapshot.spooled)]
        yield Metric("nf.span.spooled", "Spans waiting on disk", "{span}", Gauge(spooled))
        overhead = [NumberDataPoint({}, self._start_ns, snapshot.unix_ns, snapshot.overhead)]
        probes = [NumberDataPoint({}, self._start_ns, snapshot.unix_ns, snapshot.probes)]
        yield Metric("nf.probe.count", "Armed probes", "{probe}", Gauge(probes))
        yield Metric("nf.probe.overhead", "Share of a core used by the probes", "1", Gauge(overhead))

    def _span(self, is_delta: bool) -> Span:
        return Span(self._last_ns if is_delta else self._start_ns, self._made_ns)


def _count_queue_drops(monitor: Monitor) -> dict[tuple[str, str], int]:
    return {(entry["queue"], entry["kind"]): entry["packets"] for entry in monitor.drain.queue_drops.describe()}


def _temporality(is_delta: bool) -> AggregationTemporality:
    return AggregationTemporality.DELTA if is_delta else AggregationTemporality.CUMULATIVE


def _shorten(name: str) -> str:
    """Symbol tables may contain any bytes; protobuf only accepts UTF-8."""
    return name.encode("utf-8", "replace")[:NAME_BYTES_MAX].decode("utf-8", "ignore")
