# SPDX-License-Identifier: Apache-2.0
"""`nfprobe query 'SQL' PATH...`: queries recordings, or folders written by `nfprobe tables`, with embedded DuckDB."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.printable import printable
from otel_nfprobe.cli.main import EXIT_DONE, print_json
from otel_nfprobe.cli.tables import add_late_option, missing, warn, write
from otel_nfprobe.recording.recording import RecordingReader

if TYPE_CHECKING:
    import duckdb

TABLES = ("calls", "batches", "packets", "causes", "parts")
ROWS_AT_ONCE = 1000  # of a result; the first ones determine the widths of columns
MEMORY = "1GB"  # more goes to temporary files


class QueryCommand:
    """Runs SQL on the tables calls, batches, packets, causes and parts (docs/tables.md).

    PATH is a recording, or a folder written by `nfprobe tables`; the tables contain the rows of all PATHs.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("sql", metavar="SQL", help="a statement, as DuckDB understands it")
        parser.add_argument("paths", metavar="PATH", nargs="+", help="a recording, or a folder of tables")
        add_late_option(parser)
        parser.add_argument(
            "--json",
            action="store_true",
            help="the last line of standard output is a JSON list: an object for each row",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            import duckdb
        except ImportError as error:
            raise missing(arguments.verb, error) from None
        with tempfile.TemporaryDirectory(prefix="nfprobe-query-") as temporary:
            folders = [_find_folder(arguments, path, Path(temporary)) for path in arguments.paths]
            try:
                with duckdb.connect(":memory:", config=_configure(temporary)) as connection:
                    _make_views(connection, folders)
                    _answer(connection, arguments.sql, arguments.json)
            except duckdb.Error as error:
                sentence = " ".join(str(error).split("\n\n")[0].split()).rstrip(".")
                raise UsageError(f"{sentence}.", f"nfprobe {arguments.verb} 'DESCRIBE packets' PATH") from None
        return EXIT_DONE


def _configure(temporary: str) -> dict[str, str | bool | int | float | list[str]]:
    # Nothing is fetched from the network, and data that does not fit into memory goes to a private folder.
    return {
        "memory_limit": MEMORY,
        "temp_directory": temporary,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


def _find_folder(arguments: argparse.Namespace, path: str, temporary: Path) -> Path:
    if Path(path).is_dir():
        if not any(Path(path, table).is_dir() for table in TABLES):
            raise UsageError(f"{path} has no tables.", f"nfprobe tables RECORDING -o {path}")
        return Path(path)
    folder = temporary / str(len(list(temporary.iterdir())))
    warn(write(arguments.verb, RecordingReader(path), folder, arguments.slower_than))
    return folder


def _make_views(connection: duckdb.DuckDBPyConnection, folders: Sequence[Path]) -> None:
    for table in TABLES:
        files = [str(file) for folder in folders for file in sorted((folder / table).glob("[!.]*.parquet"))]
        if files:
            connection.read_parquet(files).create_view(table)


def _answer(connection: duckdb.DuckDBPyConnection, sql: str, as_json: bool) -> None:
    cursor = connection.execute(sql)
    names = [column[0] for column in cursor.description or []]
    if as_json:
        print_json([dict(zip(names, map(_plain, row), strict=True)) for row in _rows(cursor)])
        return
    widths: list[int] = []
    for line in _lines(names, _rows(cursor), widths):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def _rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(ROWS_AT_ONCE):
        yield from rows


def _lines(names: list[str], rows: Iterator[tuple[Any, ...]], widths: list[int]) -> Iterator[list[str]]:
    """Yields header and rows as text; the first rows determine the widths of the columns."""
    first = [names]
    for row in rows:
        first.append([_text(value) for value in row])
        if len(first) > ROWS_AT_ONCE:
            break
    widths[:] = [max(len(line[column]) for line in first) for column in range(len(names))]
    yield from first
    for row in rows:
        yield [_text(value) for value in row]


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str | bool) or value is None else _finite(value)


def _finite(value: Any) -> Any:
    # JSON supports only finite numbers; times, decimals and lists are written as text.
    return value if isinstance(value, float) and abs(value) != float("inf") and value == value else str(value)
