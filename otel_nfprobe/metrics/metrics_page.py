# SPDX-License-Identifier: Apache-2.0
"""Metrics page: metrics as OpenMetrics text, for Prometheus to scrape.

Names follow the OpenTelemetry specification's "Prometheus and OpenMetrics Compatibility": dots become underscores,
units are spelled out and appended, counters end in `_total`. The Collector's exporter generates the same names for
metrics received by OTLP, so that one dashboard and one set of alerts serve both paths. Pure.
"""

from __future__ import annotations

import re
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


__all__ = ["OPENMETRICS_TYPE", "PLAIN_TYPE", "name_of", "wants_openmetrics", "write_page"]
