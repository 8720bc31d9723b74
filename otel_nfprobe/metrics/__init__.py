# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry metrics: distributions and counters, sent by OTLP or served to Prometheus."""
