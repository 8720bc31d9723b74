# SPDX-License-Identifier: Apache-2.0
"""`nfprobe tables RECORDING...`: writes calls, batches, packets, causes and their parts as Parquet files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import EXIT_DONE, print_json, tell
from otel_nfprobe.cli.options import add_flow_option, find_flow, parse_duration_ns
from otel_nfprobe.recording.recording import RecordingReader

if TYPE_CHECKING:
    from otel_nfprobe.pipeline.flowfilter import FlowFilter
    from otel_nfprobe.recording.replay import RecordingFacts


class TablesCommand:
    """Writes recordings as Parquet files, one of each in DIR/calls, DIR/batches, DIR/packets, DIR/causes and DIR/parts.

    DuckDB, Polars, ClickHouse, Spark and Athena read them directly (docs/tables.md).
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("recordings", metavar="RECORDING", nargs="+", help="file written by attach --record")
        parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder of the tables")
        add_late_option(parser)
        add_flow_option(parser, "in the tables of packets, causes and parts")
        parser.add_argument(
            "--json",
            action="store_true",
            help="the last line of standard output is one JSON object: the files that were written",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        flow = find_flow(arguments)
        readers = [RecordingReader(path) for path in arguments.recordings]
        for reader in readers:
            warn(write(arguments.verb, reader, Path(arguments.output), arguments.slower_than, flow))
        if arguments.json:
            print_json({"directory": arguments.output, "recordings": arguments.recordings})
        return EXIT_DONE


def add_late_option(parser: argparse.ArgumentParser) -> None:
    """Declares the option that selects packets for the table of causes."""
    parser.add_argument(
        "--slower-than",
        type=parse_duration_ns,
        metavar="TIME",
        help="packets slower than this are in the table of causes (default: the slowest 0.1 %%)",
    )


def write(
    verb: str, reader: RecordingReader, folder: Path, slower_than_ns: int | None, flow: FlowFilter | None = None
) -> RecordingFacts:
    """Writes the tables of one recording."""
    try:
        from otel_nfprobe.recording.tables import write_tables
    except ImportError as error:
        raise missing(verb, error) from None
    return write_tables(reader, folder, slower_than_ns, flow)


def missing(verb: str, error: ImportError) -> NfprobeError:
    """Returns the error for a missing package of the group `tables`."""
    sentence = f"nfprobe {verb} needs the package {(error.name or 'pyarrow').split('.')[0]}, which is not installed."
    return NfprobeError(sentence, "pip install 'otel-nfprobe[tables]'")


def warn(facts: RecordingFacts) -> None:
    """Reports where a recording was truncated."""
    if facts.damage:
        tell(facts.damage)
