# SPDX-License-Identifier: Apache-2.0
"""Spans: made from packets, encoded as OTLP, sent or spooled; parts for the OpenTelemetry SDK."""

__all__ = [
    "boundedsession",
    "configuration",
    "delivery",
    "destination",
    "endpoint",
    "export_counters",
    "limiter",
    "otlp",
    "resource",
    "span",
    "spool",
    "timescale",
    "trace_builder",
]
