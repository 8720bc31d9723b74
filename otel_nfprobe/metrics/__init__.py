# SPDX-License-Identifier: Apache-2.0
"""What machines look at: distributions and counters as OpenTelemetry metrics, sent, or shown on a page."""
