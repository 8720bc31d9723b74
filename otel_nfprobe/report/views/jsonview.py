# SPDX-License-Identifier: Apache-2.0
"""The report for programs: one JSON object, the contract of `nfprobe report --format json`."""

from __future__ import annotations

import json
from dataclasses import asdict

from otel_nfprobe.report.report import Report


def render_json(report: Report, timelines: bool = False) -> str:
    """The document as one line of JSON, ending with a line end.

    Args:
        timelines: with what the thread of each slow packet did meanwhile, as `timelines`.
    """
    document = report.document
    if timelines:
        document = {**document, "timelines": [asdict(timeline) for timeline in report.timelines]}
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
