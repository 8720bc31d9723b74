# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry metrics: distributions and counters, sent by OTLP or served to Prometheus."""

__all__ = ["exemplars", "httplistener", "metrics", "metrics_listener", "metrics_sender", "metrics_settings"]
