# SPDX-License-Identifier: Apache-2.0
"""`nfprobe diff A B`: what changed from one recording to another, function by function."""

from __future__ import annotations

import argparse
import sys

from otel_nfprobe.cli.main import EXIT_DONE, print_json, tell
from otel_nfprobe.cli.options import parse_fraction
from otel_nfprobe.report.diff import AT_LEAST, build_diff
from otel_nfprobe.report.views.diff_table import render_diff


class DiffCommand:
    """Compares two recordings: functions, batches, packets and causes.

    First the functions whose own time changed by more than it does within each recording, the largest change first;
    then the others. Per packet, or per batch or millisecond if there are no packets.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("a", metavar="A", help="recording that B is compared with")
        parser.add_argument("b", metavar="B", help="the other recording")
        parser.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")
        parser.add_argument("--json", action="store_true", help="the same as --format json")
        parser.add_argument(
            "--at-least",
            type=parse_fraction,
            default=AT_LEAST,
            metavar="SHARE",
            help=f"minimum change of a function's usual time to stand out (default: {AT_LEAST:.0%})".replace("%", "%%"),
        )

    def run(self, arguments: argparse.Namespace) -> int:
        diff = build_diff(arguments.a, arguments.b, arguments.at_least)
        if arguments.json or arguments.format == "json":
            print_json(diff)
        else:
            sys.stdout.write(render_diff(diff))
        for recording in diff["recordings"].values():
            if recording["damage"]:
                tell(recording["damage"])
        return EXIT_DONE
