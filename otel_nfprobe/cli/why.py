# SPDX-License-Identifier: Apache-2.0
"""`nfprobe why RECORDING...`: what made packets late in a chain of network functions, wherever it was."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.chains.join import WINDOW_NS
from otel_nfprobe.cli.main import EXIT_DONE, tell
from otel_nfprobe.cli.options import parse_duration_ns
from otel_nfprobe.cli.output import write_out
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.report.views.why_table import render_why
from otel_nfprobe.report.why import SLOWEST, WhyRequest, build_why


def render_json(document: dict[str, Any]) -> str:
    """Returns the document as one line of JSON, ending with a newline."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {"table": render_why, "json": render_json}


class WhyCommand:
    """Joins the recordings of several network functions by packet, and says what made packets late, wherever it was.

    One recording of each, made at the same time with --packets all, in any order. A packet that is late in one of them
    because another one released many at once is followed to what held those.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("recordings", metavar="RECORDING", nargs="+", help="files written by attach --record")
        parser.add_argument("--format", choices=tuple(FORMATS), help="default: table")
        parser.add_argument("--json", action="store_true", help="the same as --format json")
        parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of standard output")
        parser.add_argument(
            "--slowest", metavar="N", type=int, default=SLOWEST, help="number of slow packets (default: %(default)s)"
        )
        parser.add_argument(
            "--above",
            type=parse_duration_ns,
            metavar="TIME",
            help="packets that take longer through the chain are late, such as 500us (default: the slowest 1 %%)",
        )
        parser.add_argument(
            "--packet", metavar="ID", type=_parse_id, help="the packets with this id or content id, not the slowest"
        )
        parser.add_argument(
            "--within",
            type=parse_duration_ns,
            default=WINDOW_NS,
            metavar="TIME",
            help="equal ids received further apart are different packets (default: 1s)",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        request = WhyRequest(max(0, arguments.slowest), arguments.above, arguments.packet, arguments.within)
        format = arguments.format or ("json" if arguments.json else "table")
        return show_why(arguments.recordings, request, format, arguments.output)


def show_why(paths: list[str], request: WhyRequest, format: str, output: str | None) -> int:
    """Joins the recordings and shows the result; returns the exit status."""
    if len(paths) < 2:
        raise UsageError(
            f"{paths[0]} is one recording; a chain has one of each network function.", f"nfprobe report {paths[0]}"
        )
    readers = [RecordingReader(path) for path in paths]
    document = build_why(readers, request)
    write_out(output, FORMATS[format](document))
    for one in document["recordings"]:
        if one["damage"]:
            tell(one["damage"])
    return EXIT_DONE


def _parse_id(text: str) -> int:
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an id: 16 hexadecimal digits, as nfprobe ids prints them")
    return int(text, 16)
