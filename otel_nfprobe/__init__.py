# SPDX-License-Identifier: Apache-2.0
"""Traces packets through a running network function into OpenTelemetry. docs/architecture.md is the map."""

__version__ = "0.1.0"
