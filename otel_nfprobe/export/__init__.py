# SPDX-License-Identifier: Apache-2.0
"""Spans: made from packets, encoded as OTLP, sent or spooled; parts for the OpenTelemetry SDK."""
