# SPDX-License-Identifier: Apache-2.0
"""The options about the spool, which attach, run and export share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.units import parse_bytes, parse_seconds
from otel_nfprobe.export.endpoint import Endpoint
from otel_nfprobe.export.spool import MAX_AGE_S, MAX_BYTES, Spool, SpoolSettings, describe_endpoint, find_directory

NONE = "none"


def add_spool_options(parser: argparse._ActionsContainer) -> None:
    """Declares the options."""
    parser.add_argument(
        "--spool",
        metavar="DIR",
        help="where spans wait until the receiver has taken them; none: in memory only"
        " (default: nfprobe/spool in the user's state directory)",
    )
    parser.add_argument(
        "--spool-max-size",
        type=parse_bytes,
        default=MAX_BYTES,
        metavar="BYTES",
        help="bytes of the spool, of all sessions together (default: 1GiB)",
    )
    parser.add_argument(
        "--spool-max-age",
        type=parse_seconds,
        default=MAX_AGE_S,
        metavar="TIME",
        help="spans that have waited longer are dropped (default: 24h)",
    )


def find_spool(arguments: argparse.Namespace) -> SpoolSettings | None:
    """What the options say; None when there is to be no spool."""
    if arguments.spool == NONE:
        return None
    directory = Path(arguments.spool).absolute() if arguments.spool else find_directory(os.environ)
    return SpoolSettings(directory, arguments.spool_max_size, arguments.spool_max_age)


def open_spool(arguments: argparse.Namespace, endpoint: Endpoint) -> tuple[Spool | None, str]:
    """The spool of a session, and what to tell if there is none although there should be one.

    Raises:
        UsageError: the directory that was asked for cannot be used.
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
