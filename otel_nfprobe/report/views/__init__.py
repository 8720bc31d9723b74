# SPDX-License-Identifier: Apache-2.0
"""Formats of a report. Each takes an otel_nfprobe.report.report.Report and returns text."""
