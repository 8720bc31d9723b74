# SPDX-License-Identifier: Apache-2.0
"""The report for programs: one JSON object, the contract of `nfprobe report --format json`."""

from __future__ import annotations

import json

from otel_nfprobe.report import Report


def render_json(report: Report) -> str:
    """The document as one line of JSON, ending with a line end."""
    return json.dumps(report.document, separators=(",", ":"), allow_nan=False) + "\n"
