# SPDX-License-Identifier: Apache-2.0
"""Traces packets through a running network function into OpenTelemetry. docs/architecture.md is the map."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from otel_nfprobe.report.opened import Recording

__version__ = "0.1.0"


def open(path: str | os.PathLike[str], slower_than_ns: int | None = None) -> Recording:
    """Opens a recording: its report, its tables for Arrow, pandas and Polars, and timelines of packets.

    Args:
        path: file written by `nfprobe attach --record`.
        slower_than_ns: packets with a longer latency are late; None: the slowest 0.1 %.

    Raises:
        NfprobeError: it is no recording, or of another version.
    """
    import importlib  # what it opens with imports this package

    opened: Recording = importlib.import_module("otel_nfprobe.report.opened").Recording(path, slower_than_ns)
    return opened
