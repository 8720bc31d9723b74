# SPDX-License-Identifier: Apache-2.0
"""Metrics listener: serves metrics to Prometheus on request.

A request makes the draining thread take a snapshot in its next round; that thread never waits for a scraper. One
snapshot answers all pending requests.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from prometheus_client import Metric as Family
from prometheus_client.exposition import generate_latest as write_plain
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as write_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as SampleExemplar

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.metrics.httplistener import HttpListener, Reply
from otel_nfprobe.metrics.metrics import MetricsMaker, MetricsSnapshot

# ---- the page -------------------------------------------------------------------------------------------------------
# Metrics page: metrics as OpenMetrics text, for Prometheus to scrape.
#
# Names follow the OpenTelemetry specification's "Prometheus and OpenMetrics Compatibility": dots become underscores,
# units are written out and stand at the end, counters end in `_total`. The Collector's exporter makes the same names of
# what is sent to it by OTLP, so that one dashboard and one set of alerts serve both ways. Pure.


PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_UNITS = {"s": "seconds", "By": "bytes"}
Labels = dict[str, str]


class _Page(Collector):
    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        """Returns the families for prometheus_client to write."""
        yield from self._families


def write_page(data: MetricsData, openmetrics: bool) -> bytes:
    """Returns the page. Only OpenMetrics has exemplars.

    Args:
        data: cumulative; durations with explicit bounds.
    """
    families = []
    for resource in data.resource_metrics:
        target = Family("target", "What is measured", "info")
        target.add_sample("target_info", _labels(resource.resource.attributes), 1)
        families.append(target)
        for scope in resource.scope_metrics:
            families += [_make_family(metric) for metric in scope.metrics]
    write = cast(Callable[[Collector], bytes], write_openmetrics if openmetrics else write_plain)
    return write(_Page(families))  # the library is annotated with a registry, but only calls collect()


def wants_openmetrics(accept: str) -> bool:
    """Returns whether a scraper's Accept header lists it."""
    return "application/openmetrics-text" in accept


def name_of(metric: Metric) -> str:
    """Returns the Prometheus name, without `_total`, `_bucket`, ..."""
    name = re.sub(r"\W", "_", metric.name)
    unit = _UNITS.get(metric.unit or "", "")
    if isinstance(metric.data, Gauge) and metric.unit == "1":
        unit = "ratio"
    return f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name


def _labels(attributes: Mapping[str, Any] | None) -> Labels:
    return {re.sub(r"\W", "_", key): str(value) for key, value in (attributes or {}).items()}


def _make_family(metric: Metric) -> Family:
    name, about, data = name_of(metric), metric.description or "", metric.data
    kind = "counter" if isinstance(data, Sum) else "gauge" if isinstance(data, Gauge) else "histogram"
    family = Family(name, about, kind)
    for point in data.data_points:
        labels = _labels(point.attributes)
        if isinstance(point, HistogramDataPoint):
            _add_histogram(family, labels, point)
        elif isinstance(point, NumberDataPoint):
            family.add_sample(f"{name}_total" if kind == "counter" else name, labels, point.value)
    return family


def _add_histogram(family: Family, labels: Labels, point: HistogramDataPoint) -> None:
    bounds = [*point.explicit_bounds, float("inf")]
    exemplars = _place(point.exemplars or (), bounds)
    for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
        bucket = labels | {"le": "+Inf" if bound == float("inf") else repr(float(bound))}
        family.add_sample(f"{family.name}_bucket", bucket, count, exemplar=exemplars.get(bound))
    family.add_sample(f"{family.name}_count", labels, point.count)
    family.add_sample(f"{family.name}_sum", labels, point.sum)


def _place(exemplars: Sequence[Exemplar], bounds: Sequence[float]) -> dict[float, SampleExemplar]:
    """Returns one exemplar per bucket: the largest."""
    found: dict[float, SampleExemplar] = {}
    for exemplar in sorted(exemplars, key=lambda item: item.value):
        bound = next(bound for bound in bounds if exemplar.value <= bound)
        ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
        found[bound] = SampleExemplar(ids, exemplar.value, exemplar.time_unix_nano / 1e9)
    return found


# ---- its listener ---------------------------------------------------------------------------------------------------


PATIENCE_S = 5.0  # less than the 10 s of a scraper
PATH, TEXT_TYPE = "/metrics", "text/plain; charset=utf-8"
LOOPBACK = "127.0.0.1"


def parse_address(text: str) -> tuple[str, int]:
    """Parses host and port of `[HOST:]PORT`; loopback only unless a host is given.

    Raises:
        UsageError: malformed.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(f"--metrics-listen {text!r} is not [HOST:]PORT.", "--metrics-listen 9464")
    return host.strip("[]") or LOOPBACK, int(port)


class MetricsListener:
    """Listens from creation until `close`; answers once `begin` was called.

    Attributes:
        port: the bound port.

    Raises:
        NfprobeError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int) -> None:
        self._asked = threading.Event()
        self._changed = threading.Condition()
        self._maker: MetricsMaker | None = None
        self._snapshot: MetricsSnapshot | None = None
        self._turn = 0  # snapshots taken
        self._listener = HttpListener("--metrics-listen", host, port, self._answer)
        self.port = self._listener.port

    def begin(self, maker: MetricsMaker) -> None:
        """Starts answering requests with this maker's metrics."""
        self._maker = maker

    @property
    def is_asked(self) -> bool:
        """Returns whether a request waits for a snapshot."""
        return self._asked.is_set()

    def give(self, snapshot: MetricsSnapshot) -> None:
        """Answers the pending requests."""
        with self._changed:
            self._asked.clear()
            self._snapshot, self._turn = snapshot, self._turn + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _answer(self, path: str, accept: str) -> Reply:
        if path != PATH:
            return Reply(404, TEXT_TYPE, f"Metrics are at {PATH}\n".encode())
        openmetrics = wants_openmetrics(accept)
        page = self._write(openmetrics)
        if page is None:
            return Reply(503, TEXT_TYPE, b"The session has not started, or has ended\n")
        return Reply(200, OPENMETRICS_TYPE if openmetrics else PLAIN_TYPE, page)

    def _write(self, openmetrics: bool) -> bytes | None:
        """Returns the page, or None if the session does not respond in time."""
        with self._changed:
            turn = self._turn
            self._asked.set()
            came = self._changed.wait_for(lambda: self._turn != turn, PATIENCE_S)
            if not came or self._snapshot is None or self._maker is None:
                return None
            return write_page(self._maker.make(self._snapshot), openmetrics)
