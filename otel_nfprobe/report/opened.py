# SPDX-License-Identifier: Apache-2.0
"""Recordings for Python programs: `otel_nfprobe.open`. docs/python.md is for its users, its names stay.

Everything is read when it is asked for, and then kept. Errors are NfprobeError: its `sentence` says what is wrong, its
`next_command` what to type.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts
from otel_nfprobe.report.report import SLOWEST, Timeline, build_report, draw_packet

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Table:
    """One table of a recording: docs/tables.md has its columns, with units.

    Args:
        recording: whose.
        name: `calls`, `batches`, `packets`, `causes` or `parts`.
    """

    def __init__(self, recording: Recording, name: str) -> None:
        self._recording = recording
        self.name = name

    def to_arrow(self) -> pyarrow.Table:
        """Returns all rows, in memory."""
        return self._arrow

    def to_pandas(self) -> pandas.DataFrame:
        """Returns all rows as a DataFrame of pandas.

        Raises:
            NfprobeError: it is not installed.
        """
        try:
            return self._arrow.to_pandas()
        except ImportError as error:
            raise _missing(error) from None

    def to_polars(self) -> polars.DataFrame:
        """Returns all rows as a DataFrame of Polars.

        Raises:
            NfprobeError: it is not installed.
        """
        try:
            import polars
        except ImportError as error:
            raise _missing(error) from None
        frame = polars.from_arrow(self._arrow)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def batches(self) -> Iterator[pyarrow.Table]:
        """Yields the rows in parts of some 100,000 records, for recordings that do not fit into memory."""
        return (tables[self.name] for tables in self._recording.make_tables((self.name,)))

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    @cached_property
    def _arrow(self) -> pyarrow.Table:
        try:
            import pyarrow
        except ImportError as error:
            raise _missing(error) from None
        return pyarrow.concat_tables(list(self.batches()), promote_options="permissive").unify_dictionaries()


class Recording:
    """A recording, or what there is of one that was cut.

    Args:
        path: file written by `nfprobe attach --record`.
        slower_than_ns: packets with a longer latency are in `causes` and `parts`; None: the slowest 0.1 %.

    Attributes:
        path: of the file.
        pid, executable: of the target.
        start_unix_ns: when the session began.
        complete: whether it was written to its end; `damage`: a sentence, or "".

    Raises:
        NfprobeError: it is no recording, or of another version.
    """

    def __init__(self, path: str | os.PathLike[str], slower_than_ns: int | None = None) -> None:
        self.path = os.fspath(path)
        self._slower_than_ns = slower_than_ns
        self._reader = RecordingReader(self.path)
        self._facts: RecordingFacts = read_facts(self._reader)
        header = self._reader.header
        self.pid, self.executable, self.start_unix_ns = header.pid, header.executable, header.start_unix_ns
        self.complete, self.damage = self._facts.complete, self._facts.damage
        self.calls, self.batches, self.packets = Table(self, "calls"), Table(self, "batches"), Table(self, "packets")
        self.causes, self.parts = Table(self, "causes"), Table(self, "parts")

    @cached_property
    def report(self) -> dict[str, Any]:
        """The object of `nfprobe report --json`: functions, batches, packets, causes, losses."""
        return build_report(self._reader, SLOWEST, self._facts).document

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Each function that was probed, with its calls and times in ns: `functions` of the report."""
        found: list[dict[str, Any]] = self.report["functions"]
        return found

    def timeline(self, packet_id: str) -> list[Timeline]:
        """Returns what ran until each packet with this ID, or content ID, was done: batches and calls, in ns.

        Raises:
            NfprobeError: the ID is not a hexadecimal number, or no packet has it.
        """
        try:
            number = int(packet_id, 16)
        except ValueError:
            number = -1
        found = draw_packet(self._reader, number, self._facts) if 0 <= number < 1 << 64 else []
        if not found:
            raise NfprobeError(f"No packet in {self.path} has the ID {packet_id}.", f"nfprobe report {self.path}")
        return found

    def make_tables(self, names: tuple[str, ...]) -> Iterator[dict[str, pyarrow.Table]]:
        """Yields the rows of some tables, by name, as the recording is read."""
        try:
            from otel_nfprobe.recording.tables import make_tables  # needs pyarrow
        except ImportError as error:
            raise _missing(error) from None
        return make_tables(self._reader, self._facts, self._slower_than_ns, names=names)

    def __repr__(self) -> str:
        return f"<Recording {self.path}: process {self.pid}, {self.executable}>"


def _missing(error: ImportError) -> NfprobeError:
    package = (error.name or "pyarrow").split(".")[0]
    return NfprobeError(f"This needs the package {package}, which is not installed.", f"pip install {package}")
