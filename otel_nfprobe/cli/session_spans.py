# SPDX-License-Identifier: Apache-2.0
"""The spans of one session: options of the spool, the exporter, and messages about undelivered spans."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.options import parse_bytes, parse_seconds
from otel_nfprobe.export.destination import Destination, NamedExporter, open_destination
from otel_nfprobe.export.limiter import SAMPLE_WHILE_BEHIND, SLOW_WHILE_BEHIND
from otel_nfprobe.export.spool import MAX_AGE_S, MAX_BYTES, Spool, SpoolSettings, describe_endpoint, find_directory

if TYPE_CHECKING:  # `nfprobe export` has no session, and few sessions send
    from otel_nfprobe.export.endpoint import Endpoint
    from otel_nfprobe.export.export_counters import ExportCounters
    from otel_nfprobe.export.otlp import Exporter
    from otel_nfprobe.monitor.drain import SpanPath

# ---- the spool ------------------------------------------------------------------------------------------------------
# The options about the spool, which attach, run and export share.


NONE = "none"


def add_spool_options(parser: argparse._ActionsContainer) -> None:
    """Declares the options."""
    parser.add_argument(
        "--spool",
        metavar="DIR",
        help="where spans wait until they are delivered; none: in memory only"
        " (default: nfprobe/spool in the user's state directory)",
    )
    parser.add_argument(
        "--spool-max-size",
        type=parse_bytes,
        default=MAX_BYTES,
        metavar="BYTES",
        help="size limit of the spool, for all sessions together (default: 1GiB)",
    )
    parser.add_argument(
        "--spool-max-age",
        type=parse_seconds,
        default=MAX_AGE_S,
        metavar="TIME",
        help="spans that wait longer are dropped (default: 24h)",
    )


def find_spool(arguments: argparse.Namespace) -> SpoolSettings | None:
    """Returns the settings of the options; None if there is to be no spool."""
    if arguments.spool == NONE:
        return None
    directory = Path(arguments.spool).absolute() if arguments.spool else find_directory(os.environ)
    return SpoolSettings(directory, arguments.spool_max_size, arguments.spool_max_age)


def open_spool(arguments: argparse.Namespace, endpoint: Endpoint) -> tuple[Spool | None, str]:
    """Returns the session's spool, and a message if it is enabled but cannot be opened.

    Raises:
        UsageError: the directory given by the user cannot be used.
    """
    settings = find_spool(arguments)
    if settings is None:
        return None, ""
    try:
        return Spool(settings, describe_endpoint(endpoint)), ""
    except UsageError as error:
        if arguments.spool:
            raise
        return None, f"{error.sentence} Spans wait in memory only."


# ---- the exporter ---------------------------------------------------------------------------------------------------


CLOSE_S = 10.0

Say = Callable[[str, str], None]


def open_exporter(arguments: argparse.Namespace, destination: Destination, notify: Say) -> Exporter:
    """Returns an exporter to an endpoint with the spool of the options, or to an exporter of the SDK without spool.

    Raises:
        UsageError: that spool or exporter cannot be used.
    """
    from otel_nfprobe.export.otlp import Exporter

    if isinstance(destination, NamedExporter):
        return Exporter(open_destination(destination))
    spool, complaint = open_spool(arguments, destination)
    if complaint:
        notify(complaint, "nfprobe attach PID --spool DIR")
    return Exporter(destination, spool=spool)


def close_exporter(exporter: Exporter | None, arguments: argparse.Namespace, again: str, notify: Say) -> dict[str, Any]:
    """Sends the rest and reports undelivered spans. Returns the summary of spans.

    Args:
        again: command that repeats the measurement, for a next command.
    """
    if exporter is None:
        return {"exported": 0, "dropped": 0, "spooled": 0}
    counters = exporter.close(CLOSE_S)
    endpoint = f" --endpoint {arguments.endpoint}" if arguments.endpoint else ""
    for sentence in counters.sentences:
        notify(sentence, "")
    if dropped := sum(counters.dropped_spans.values()):
        reason = counters.last_error or ", ".join(counters.dropped_spans)
        again = f"nfprobe export {arguments.record}{endpoint}" if arguments.record else again
        notify(f"{dropped:,} spans were dropped: {reason.rstrip('.')}.", again)
    if waiting := counters.spooled_spans + (counters.recovered.spooled_spans if counters.recovered else 0):
        settings = find_spool(arguments)
        where = f" --spool {settings.directory}" if arguments.spool and settings else ""
        why = counters.last_error or "there was no time to send them"
        notify(f"{waiting:,} spans are spooled for later: {why.rstrip('.')}.", f"nfprobe export{endpoint}{where}")
    return describe_counters(counters)


def describe_unwritten(spans: SpanPath | None, notify: Say) -> dict[str, int]:
    """Returns unwritten traces by reason; reports those dropped without being requested."""
    dropped = spans.limits.dropped if spans else {}
    if behind := sum(dropped.get(reason, 0) for reason in (SAMPLE_WHILE_BEHIND, SLOW_WHILE_BEHIND)):
        sentence = f"{behind:,} traces were not written, because nfprobe or the receiver was behind."
        notify(sentence, "nfprobe attach PID --sample 0.0001 --max-traces-per-second 1000")
    return dict(dropped)


def is_behind(summary: dict[str, Any]) -> bool:
    """Returns whether traces were dropped without being requested, by the session's summary."""
    return any(reason in summary["spans"]["dropped_traces"] for reason in (SAMPLE_WHILE_BEHIND, SLOW_WHILE_BEHIND))


def describe_counters(counters: ExportCounters) -> dict[str, Any]:
    """Returns the counters for the summary."""
    described: dict[str, Any] = {
        "exported": counters.exported_spans,
        "dropped": sum(counters.dropped_spans.values()),
        "spooled": counters.spooled_spans,
        "dropped_reasons": dict(counters.dropped_spans),
    }
    if counters.recovered is not None:
        described["recovered"] = describe_counters(counters.recovered)
    return described
