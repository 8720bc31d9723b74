# SPDX-License-Identifier: Apache-2.0
"""`nfprobe report RECORDING`: shows what a recording holds."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.cli.arrival_options import add_arrival_options, take_arrivals
from otel_nfprobe.cli.flame_options import (
    add_flame_options,
    check_flame_options,
    read_request,
    say_not_counted,
    say_nothing_seen,
)
from otel_nfprobe.cli.flow_option import add_flow_option, find_flow
from otel_nfprobe.cli.main import EXIT_DONE, tell
from otel_nfprobe.profiling.samples import describe_samples
from otel_nfprobe.recording.outputfile import open_output
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts
from otel_nfprobe.report.flame import fold, render_folded
from otel_nfprobe.report.report import SLOWEST, build_report
from otel_nfprobe.report.views.jsonview import render_json
from otel_nfprobe.report.views.page import render_page
from otel_nfprobe.report.views.table import render_table

FORMATS = {"table": render_table, "json": render_json, "html": render_page}
FLAME = "flame"


class ReportCommand:
    """Shows functions, batches, packets, the slowest packets and what made them late.

    A recording that was cut (its monitor was killed, the disk was full) is shown as far as it goes, and the
    report says where it ends.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("recording", metavar="RECORDING", help="file written by attach --record")
        parser.add_argument("--format", choices=(*FORMATS, FLAME), help="default: table, or what the name of FILE says")
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
        add_flame_options(parser)
        add_flow_option(parser, "the slowest and the late")
        add_arrival_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        format = _choose_format(arguments)
        check_flame_options(arguments, format == FLAME)
        if arguments.timelines and format != "json":
            raise UsageError("--timelines goes with --json; the HTML page has them anyway.", "nfprobe report --help")
        flow = find_flow(arguments)
        reader = RecordingReader(arguments.recording)
        facts = read_facts(reader)
        take_arrivals(arguments, reader, facts)
        if format == FLAME:
            request = read_request(arguments, facts)
            text = render_folded(fold(reader, facts, request))
            _write_out(arguments.output, text)
            if not text:
                say_nothing_seen(arguments)
            _say_precision(facts.samples)
            say_not_counted(facts, request.counter)
            _warn(facts.damage)
            return EXIT_DONE
        report = build_report(reader, max(0, arguments.slowest), facts, flow)
        text = render_json(report, timelines=True) if arguments.timelines else FORMATS[format](report)
        _write_out(arguments.output, text)
        _warn(report.damage)
        return EXIT_DONE


def _choose_format(arguments: argparse.Namespace) -> str:
    if arguments.format or arguments.json:
        return arguments.format or "json"
    suffix = Path(arguments.output or "").suffix.lower()
    return {".html": "html", ".htm": "html", ".json": "json"}.get(suffix, "table")


def _write_out(path: str | None, text: str) -> None:
    if path:
        _write(path, text)
        tell(f"The report was written to {path}.")
    else:
        sys.stdout.write(text)


def _write(path: str, text: str) -> None:
    # Private as the recording is: it names addresses.
    try:
        with open(open_output(path), "w", encoding="utf-8") as output:
            output.write(text)
    except OSError as error:
        folder = os.path.dirname(path) or "."
        raise NfprobeError(f"Cannot write {path}: {error.strerror}.", f"ls -ld {folder}") from None


def _say_precision(samples: Rows) -> None:
    found = describe_samples(samples)
    if found and found["precise"] < found["samples"]:
        tell(
            f"{found['samples'] - found['precise']} of {found['samples']} samples ({found['event']}) are"
            " imprecise: the instruction is one near the true one."
        )


def _warn(damage: str) -> None:
    if damage:
        tell(damage)
