# SPDX-License-Identifier: Apache-2.0
"""Ways to show a report. Each takes an otel_nfprobe.report.report.Report and returns text."""
