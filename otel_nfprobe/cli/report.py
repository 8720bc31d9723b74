# SPDX-License-Identifier: Apache-2.0
"""`nfprobe report RECORDING`: shows what a recording holds."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from otel_nfprobe.cli.arrival_options import add_arrival_options, take_arrivals
from otel_nfprobe.cli.main import EXIT_DONE
from otel_nfprobe.errors import NfprobeError, UsageError
from otel_nfprobe.recording import RecordingReader
from otel_nfprobe.replay import read_facts
from otel_nfprobe.report import SLOWEST, Report, build_report
from otel_nfprobe.views.jsonview import render_json
from otel_nfprobe.views.page import render_page
from otel_nfprobe.views.table import render_table

FORMATS = {"table": render_table, "json": render_json, "html": render_page}


class ReportCommand:
    """Shows functions, batches, packets, the slowest packets and what made them late.

    A recording that was cut (its monitor was killed, the disk was full) is shown as far as it goes, and the
    report says where it ends.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("recording", metavar="RECORDING", help="file written by attach --record")
        parser.add_argument("--format", choices=tuple(FORMATS), help="default: table, or what the name of FILE says")
        parser.add_argument("--json", action="store_true", help="the same as --format json")
        parser.add_argument(
            "--timelines",
            action="store_true",
            help="with --json: what ran from each slow packet's arrival until it was done, in ns after its arrival",
        )
        parser.add_argument("-o", "--output", metavar="FILE", help="write there and not to standard output")
        parser.add_argument(
            "--slowest",
            metavar="N",
            type=int,
            default=SLOWEST,
            help="how many slow packets (default: %(default)s)",
        )
        add_arrival_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        format = _choose_format(arguments)
        if arguments.timelines and format != "json":
            raise UsageError("--timelines goes with --json; the HTML page has them anyway.", "nfprobe report --help")
        reader = RecordingReader(arguments.recording)
        facts = read_facts(reader)
        take_arrivals(arguments, reader, facts)
        report = build_report(reader, max(0, arguments.slowest), facts)
        text = render_json(report, timelines=True) if arguments.timelines else FORMATS[format](report)
        if arguments.output:
            _write(arguments.output, text)
        else:
            sys.stdout.write(text)
        _warn(report)
        return EXIT_DONE


def _choose_format(arguments: argparse.Namespace) -> str:
    if arguments.format or arguments.json:
        return arguments.format or "json"
    suffix = Path(arguments.output or "").suffix.lower()
    return {".html": "html", ".htm": "html", ".json": "json"}.get(suffix, "table")


def _write(path: str, text: str) -> None:
    # Private as the recording is: it names addresses.
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(file, "w", encoding="utf-8") as output:
            output.write(text)
    except OSError as error:
        folder = os.path.dirname(path) or "."
        raise NfprobeError(f"Cannot write {path}: {error.strerror}.", f"ls -ld {folder}") from None


def _warn(report: Report) -> None:
    if report.damage:
        print(f"nfprobe: {report.damage}", file=sys.stderr)
