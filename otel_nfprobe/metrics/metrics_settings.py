# SPDX-License-Identifier: Apache-2.0
"""Metrics settings: destination, interval and temporality of metrics, from command line and environment.

OTEL_EXPORTER_OTLP_METRICS_* take precedence over OTEL_EXPORTER_OTLP_*. Opens no connection, and imports none of the
slow parts of the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.sdk import environment_variables as names

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.configuration import find_environment
from otel_nfprobe.export.endpoint import METRICS, Endpoint, find_endpoint

INTERVAL_S = 60.0  # default of the OpenTelemetry specification
METRICS_EXPORTER = "OTEL_METRICS_EXPORTER"
EXPONENTIAL, EXPLICIT = "base2_exponential_bucket_histogram", "explicit_bucket_histogram"


@dataclass(frozen=True)
class Temporality:
    """Which metrics have delta temporality; the others are cumulative."""

    histograms_delta: bool = False
    sums_delta: bool = False


@dataclass(frozen=True)
class MetricsSettings:
    """Destination, interval and temporality of metrics, and whether durations have fixed bounds."""

    endpoint: Endpoint
    interval_s: float
    temporality: Temporality
    explicit: bool


def find_settings(argument: str | None, environment: Mapping[str, str]) -> MetricsSettings | None:
    """Returns the settings from --endpoint and the environment; None if metrics are disabled.

    Raises:
        UsageError: a variable, or a configuration file, is invalid.
    """
    environment = find_environment(environment)
    wanted = environment.get(METRICS_EXPORTER, "").lower().replace(" ", "")
    if wanted and "otlp" not in wanted.split(","):
        return None
    endpoint = find_endpoint(argument, environment, METRICS)
    if endpoint is None:
        return None
    return MetricsSettings(
        endpoint, _read_interval_s(environment), _read_temporality(environment), _read_explicit(environment)
    )


def _read_interval_s(environment: Mapping[str, str]) -> float:
    variable = names.OTEL_METRIC_EXPORT_INTERVAL
    text = environment.get(variable, "").strip()
    try:
        interval_ms = float(text or 1000 * INTERVAL_S)
    except ValueError:
        interval_ms = 0.0
    if not 0 < interval_ms < float("inf"):
        raise UsageError(f"{variable} is {text!r}, not a number of milliseconds.", f"export {variable}=60000")
    return interval_ms / 1000


def _read_temporality(environment: Mapping[str, str]) -> Temporality:
    variable = names.OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE
    text = environment.get(variable, "").strip().lower()
    if text not in ("", "cumulative", "delta", "lowmemory"):
        sentence = f"{variable} is {text!r}, not cumulative, delta or lowmemory."
        raise UsageError(sentence, f"export {variable}=cumulative")
    return Temporality(histograms_delta=text in ("delta", "lowmemory"), sums_delta=text == "delta")


def _read_explicit(environment: Mapping[str, str]) -> bool:
    variable = names.OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION
    text = environment.get(variable, "").strip().lower()
    if text not in ("", EXPONENTIAL, EXPLICIT):
        raise UsageError(f"{variable} is {text!r}, not {EXPONENTIAL} or {EXPLICIT}.", f"export {variable}={EXPLICIT}")
    return text == EXPLICIT
