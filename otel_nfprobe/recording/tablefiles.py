# SPDX-License-Identifier: Apache-2.0
"""Table files: a recording as Parquet, DIR/{calls,batches,packets,causes}/NAME.parquet.

Two replays: one for what is usual, one that writes. Memory is bounded by a take: each becomes a row group. A file
appears under its name when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from otel_nfprobe.base.columns import UNKNOWN, Columns, concatenate, latency_ticks
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.causes.baseline import BatchSample, Typical
from otel_nfprobe.causes.causes import JUDGED_MAX
from otel_nfprobe.causes.latency_causes import find_causes
from otel_nfprobe.causes.lateness import LATE_QUANTILE, LatenessStatistics
from otel_nfprobe.pipeline.flowfilter import FlowFilter
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.outputfile import open_output
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay
from otel_nfprobe.recording.tables import SCHEMAS, TableMaker


def write_tables(
    reader: RecordingReader, folder: Path, slower_than_ns: int | None = None, flow: FlowFilter | None = None
) -> RecordingFacts:
    """Writes the four files of one recording; those of an earlier call are replaced.

    Args:
        reader: the recording; `facts.damage` of the result says where it was cut.
        folder: is made when it is missing.
        slower_than_ns: packets with a longer latency get a row in causes; None: the slowest thousandth.
        flow: only packets of these flows get rows, in packets and causes; None: all.

    Raises:
        NfprobeError: a file cannot be written.
    """
    facts = read_facts(reader)
    late_ticks, typical = _find_usual(reader, facts)
    if slower_than_ns is not None:
        late_ticks = round(slower_than_ns * facts.ticks_per_second / 1e9) + 1
    try:
        with _Files(folder, _file_name(facts, reader.path)) as files, Pipeline(facts.roles) as pipeline:
            pipeline.set_costs(facts.costs)
            _write(files, TableMaker(facts), _Late(late_ticks, typical, facts, flow), replay(reader, facts, pipeline))
    except OSError as error:
        raise NfprobeError(f"Cannot write tables to {folder}: {error.strerror}.", f"ls -ld {folder}") from None
    return facts


def _find_usual(reader: RecordingReader, facts: RecordingFacts) -> tuple[int, Typical]:
    sample, statistics = BatchSample(), LatenessStatistics()
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            sample.add(columns)
            statistics.add(columns)
    return statistics.find_late_ticks(LATE_QUANTILE), sample.typical()


def _file_name(facts: RecordingFacts, path: str) -> str:
    # Different sessions and the files of one flight recorder never meet, also when a fleet's are put together.
    words = (Path(path).stem, facts.header.session)
    return "-".join(re.sub(r"[^A-Za-z0-9._]", "_", word)[:100] for word in words if word) + ".parquet"


def _write(files: _Files, maker: TableMaker, late: _Late, takes: Iterator[Columns]) -> None:
    for columns in takes:
        files.add("calls", maker.calls(columns))
        files.add("batches", maker.batches(columns))
        files.add("packets", maker.packets(late.keep_flow(columns)))
        late.add(columns, files, maker)


class _Late:
    """Finds the causes of late packets; what they waited for is in their take or in the one before."""

    def __init__(self, threshold_ticks: int, typical: Typical, facts: RecordingFacts, flow: FlowFilter | None) -> None:
        self._flow = flow
        self._threshold_ticks = threshold_ticks
        self._typical = typical
        self._facts = facts
        self._judged = 0
        self._before = Columns()

    def keep_flow(self, columns: Columns) -> Columns:
        """The same with the packets of the wanted flows only."""
        if self._flow is None:
            return columns
        return replaced(columns, packets=columns.packets[self._flow.match(columns.packets)])

    def add(self, columns: Columns, files: _Files, maker: TableMaker) -> None:
        latency = np.where(columns.packets["disposition"] == UNKNOWN, 0, latency_ticks(columns))
        late = np.flatnonzero((latency >= self._threshold_ticks) & (latency > 0))
        if self._flow is not None:
            late = late[self._flow.match(columns.packets[late])]
        late = late[: JUDGED_MAX - self._judged]
        if len(late):
            both = concatenate([self._before, columns])
            packets = late + len(self._before.packets)
            causes = find_causes(both, packets, self._typical, self._facts.switches)
            files.add("causes", maker.causes(both, packets, causes))
            self._judged += len(late)
        self._before = columns


class _Files:
    """One file of each table, private (0600) as the recording is; without a whole `with` none of them stays."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = {table: folder / table / name for table in SCHEMAS}
        self._stack = contextlib.ExitStack()
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> _Files:
        try:
            for table, path in self._paths.items():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = self._stack.enter_context(os.fdopen(open_output(str(_part(path))), "wb"))
                # Without Arrow's own schema in the file: text is text for all readers.
                writer = pq.ParquetWriter(file, SCHEMAS[table], compression="zstd", store_schema=False)
                self._writers[table] = self._stack.enter_context(writer)
        except BaseException:
            self._give_up()
            raise
        return self

    def add(self, table: str, rows: pa.Table) -> None:
        """Appends rows as a row group."""
        if rows.num_rows:
            self._writers[table].write_table(rows)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._give_up()
            return
        try:
            self._stack.close()
            for path in self._paths.values():
                os.replace(_part(path), path)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            self._stack.close()
        for path in self._paths.values():
            with contextlib.suppress(OSError):
                os.unlink(_part(path))


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")  # readers of the folder leave out what begins with a dot
