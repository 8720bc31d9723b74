# SPDX-License-Identifier: Apache-2.0
"""`-o FILE.pftrace` of `nfprobe report` and `nfprobe export`: a Perfetto trace of recordings."""

from __future__ import annotations

import argparse
from pathlib import Path

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.main import EXIT_DONE, tell
from otel_nfprobe.cli.options import parse_duration_ns
from otel_nfprobe.cli.output import open_report
from otel_nfprobe.cli.waiting import Waiting
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts

SUFFIXES = (".pftrace", ".perfetto-trace")


def is_trace_file(path: str | None) -> bool:
    """Returns whether a file is named as Perfetto traces are."""
    return path is not None and path.lower().endswith(SUFFIXES)


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Declares what such a file can be restricted to."""
    group = parser.add_argument_group("with -o FILE.pftrace (a Perfetto trace)")
    group.add_argument(
        "--around", type=parse_id, metavar="PACKET", help="only what ran around packets with this ID or content ID"
    )
    group.add_argument(
        "--window",
        type=parse_duration_ns,
        metavar="TIME",
        help="with --around or --slowest: so long before they came and after they were done (default: 1ms)",
    )


def parse_id(text: str) -> int:
    """A packet ID or content ID: up to 16 hexadecimal digits."""
    try:
        number = int(text.removeprefix("0x"), 16)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a packet ID of 16 hexadecimal digits")
    return number


def check_trace_options(arguments: argparse.Namespace, is_trace: bool) -> None:
    """Refuses them where they have no meaning.

    Raises:
        UsageError: they cannot be combined.
    """
    usage = f"nfprobe {arguments.verb} --help"
    if not is_trace and (arguments.around is not None or arguments.window is not None):
        raise UsageError("--around and --window require -o FILE.pftrace.", usage)
    if arguments.window is not None and arguments.around is None and arguments.slowest is None:
        raise UsageError("--window requires --around or --slowest.", usage)


def write_trace_file(arguments: argparse.Namespace, recordings: list[str], slowest: int | None) -> int:
    """Writes it, and says what is in it. Returns the exit status.

    Args:
        slowest: only what ran around so many of the slowest packets; None: all.

    Raises:
        NfprobeError: a recording cannot be read, or the file not be written.
    """
    from otel_nfprobe.report.perfetto import WINDOW_NS, TraceRequest, write_trace  # slow to load, and few want it

    request = TraceRequest(slowest, arguments.around, WINDOW_NS if arguments.window is None else arguments.window)
    readers = [RecordingReader(path) for path in recordings]
    read = [(reader, read_facts(reader)) for reader in readers]
    with open_report(arguments.output) as output, Waiting(f"reading {', '.join(recordings)}"):
        counts = write_trace(read, request, output.write)
    for _, facts in read:
        if facts.damage:
            tell(facts.damage)
    if arguments.around is not None and not counts.packets:
        tell(
            f"No packet in {', '.join(recordings)} has the ID {arguments.around:016x}: the trace is empty.",
            f"nfprobe report {recordings[0]}",
        )
    size = Path(arguments.output).stat().st_size if Path(arguments.output).is_file() else 0
    tell(
        f"{counts.calls:,} calls, {counts.batches:,} batches and {counts.packets:,} packets, of which"
        f" {counts.late:,} were late, were written to {arguments.output} ({size / 1e6:.1f} MB); open it at https://ui.perfetto.dev."
    )
    return EXIT_DONE
