# SPDX-License-Identifier: Apache-2.0
"""The options about what traces look like, which attach, run and export share."""

from __future__ import annotations

import argparse

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.timescale import FACTOR_MAX, TimeScale

NESTED, LINKS = "nested", "links"


def add_span_options(group: argparse._ActionsContainer) -> None:
    """Declares the options."""
    group.add_argument(
        "--spans",
        choices=(NESTED, LINKS),
        default=NESTED,
        help="nested: a packet's trace holds its batch and the calls in it; links: each batch is a trace of its own,"
        " written once, and its packets' traces link to it (default: nested)",
    )
    group.add_argument(
        "--time-scale",
        type=int,
        metavar="FACTOR",
        help="a display aid for pages that show whole microseconds: write each trace a second time, stretched around"
        " its start, such as 1000, into the service `NAME (ns as us)`",
    )
    group.add_argument(
        "--time-scale-only", action="store_true", help="with --time-scale: write the stretched traces only"
    )


def add_limit_option(group: argparse._ActionsContainer) -> None:
    """Declares how many traces there may be."""
    group.add_argument(
        "--max-traces-per-second",
        type=_parse_rate,
        metavar="N",
        help="write at most N traces a second: of more the sample is dropped first, then the late packets that were"
        " least late",
    )


def _parse_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of traces, such as 1000")
    return rate


def find_time_scale(arguments: argparse.Namespace) -> TimeScale:
    """What the options say.

    Raises:
        UsageError: the factor is none, or missing.
    """
    usage = f"nfprobe {arguments.verb} --help"
    factor: int | None = arguments.time_scale
    if factor is None:
        if arguments.time_scale_only:
            raise UsageError("--time-scale-only needs --time-scale FACTOR, such as 1000.", usage)
        return TimeScale()
    if not 2 <= factor <= FACTOR_MAX:
        raise UsageError(f"--time-scale must be a whole number from 2 to {FACTOR_MAX}, such as 1000.", usage)
    return TimeScale(factor, arguments.time_scale_only)


def describe_time_scale(scale: TimeScale, service: object) -> str:
    """A sentence about the copies, or an empty one."""
    if scale.factor == 1:
        return ""
    name = scale.rename({"service.name": str(service)})["service.name"]
    also = "only" if scale.is_only else "also"
    return f"traces are {also} written with times stretched {scale.factor:,} times, a display aid, as service {name!r}."
