# SPDX-License-Identifier: Apache-2.0
"""`nfprobe export` without a recording: sends what ended sessions left in the spool."""

from __future__ import annotations

import argparse

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.main import EXIT_DONE, EXIT_NOT_DONE, print_json, tell
from otel_nfprobe.cli.session_spans import describe_counters
from otel_nfprobe.cli.spool_options import find_spool
from otel_nfprobe.export.delivery import Transport
from otel_nfprobe.export.endpoint import EXAMPLE, Endpoint
from otel_nfprobe.export.export_counters import ExportCounters
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.spool import Spool


def export_spool(arguments: argparse.Namespace, where: Endpoint | Transport, patience_s: float, close_s: float) -> int:
    """Sends everything that waits, whatever endpoint it was for. Returns the exit status.

    Args:
        patience_s: how long the receiver may stay away; then the rest stays where it is.
        close_s: how long the rest of the queue may take.
    """
    settings = find_spool(arguments)
    if settings is None or not settings.directory.is_dir():
        place = f" in {settings.directory}" if settings else ""
        raise UsageError(f"There is no spool{place}, and no recording is named.", "nfprobe export RECORDING")
    exporter = Exporter(where, spool=Spool(settings, write=False))
    try:
        exporter.wait(patience_s)
    except BaseException:
        exporter.close(0)
        raise
    return _conclude(arguments, exporter.close(close_s))


def _conclude(arguments: argparse.Namespace, counters: ExportCounters) -> int:
    found = counters.recovered
    assert found is not None
    for line in counters.sentences:
        tell(line)
    sentence = f"{found.exported_spans:,} spooled spans were sent"
    dropped = sum(found.dropped_spans.values())
    if dropped:
        reasons = ", ".join(f"{spans:,} {reason}" for reason, spans in found.dropped_spans.items())
        sentence += f", {dropped:,} are gone ({reasons})"
    if found.spooled_spans:
        sentence += f", {found.spooled_spans:,} still wait ({counters.last_error.rstrip('.')})"
    again = f"nfprobe export --endpoint {arguments.endpoint or EXAMPLE}"
    tell(f"{sentence}.", again if found.spooled_spans else "")
    if arguments.json:
        print_json({"spans": describe_counters(found), "requests": found.exported_requests})
    return EXIT_NOT_DONE if dropped or found.spooled_spans else EXIT_DONE
