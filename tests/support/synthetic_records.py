# SPDX-License-Identifier: Apache-2.0
"""Records made by hand, for the tests of drain and pipeline: one short function per kind; and what came of them."""

from __future__ import annotations

import numpy as np

from otel_nfprobe.base.columns import NONE, RECORD, Columns, Rows
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts

CALL, RECEIVE, TRANSMIT, DROP = 0, 1, 2, 3
Row = tuple[int, int, int]

F, RX, TX, DR, G, H, RX2, TX2 = range(8)
ROLES = np.array([CALL, RECEIVE, TRANSMIT, DROP, CALL, CALL, RECEIVE, TRANSMIT], np.uint8)


def record(kind: int, function: int, word: int, rsp: int) -> Row:
    return word & (1 << 64) - 1, kind << 24 | function, rsp & 0xFFFFFFFF


def entry(function: int, ticks: int, rsp: int) -> Row:
    return record(0, function, ticks, rsp)


def leave(function: int, ticks: int, rsp: int) -> Row:
    return record(1, function, ticks, rsp)


def unwound(function: int, ticks: int, rsp: int) -> Row:
    return record(6, function, ticks, rsp)


def value(function: int, word: int, rsp: int) -> Row:
    return record(4, function, word, rsp)


def mark(function: int, ticks: int, rsp: int) -> Row:
    return record(7, function, ticks, rsp)


def lost(count: int, loss_class: int) -> Row:
    return record(5, 0, count, loss_class)


def poll(function: int, start: int, end: int, rsp: int, returned: int, asked: int = 32) -> list[Row]:
    return [record(2, function, start, rsp), record(3, function, end, returned | asked << 16)]


def packet(function: int, buffer: int, position: int = 0, digest: int = 0, length: int = 64) -> list[Row]:
    return [
        record(8, function, buffer, length | position << 16),
        record(9, function, digest, 7 | 17 << 16 | 4 << 24),
    ]


def burst(function: int, buffers: list[int]) -> list[Row]:
    rows: list[Row] = []
    for position, buffer in enumerate(buffers):
        rows += packet(function, buffer, position, digest=buffer * 3)
    return rows


def hand_on(
    function: int, start: int, end: int, rsp: int, buffers: list[int], accepted: int | None = None
) -> list[Row]:
    """A whole transmit or drop call with described packets."""
    count = len(buffers) if accepted is None else accepted
    rows = [entry(function, start, rsp), *burst(function, buffers)]
    return [*rows, value(function, count | len(buffers) << 32, rsp), leave(function, end, rsp)]


def records(rows: list[Row]) -> Rows:
    return np.array(rows, RECORD)


def receiver(buffers: list[int], start: int) -> list[Row]:
    """A receive call of these buffers, described, that takes 10 ticks."""
    return [*poll(RX, start, start + 10, 800, len(buffers)), *burst(RX, buffers)]


def engine_iteration(start: int) -> list[Row]:
    """A call around a receive call of four packets and the transmit call that hands them on."""
    rows = [entry(F, start, 900), *poll(RX, start + 10, start + 20, 800, 4), entry(TX, start + 30, 800)]
    return [*rows, value(TX, 4 | 4 << 32, 800), leave(TX, start + 40, 800), leave(F, start + 50, 900)]


def run(*threads: list[Row]) -> tuple[Columns, PipelineCounts]:
    """One session: what each thread wrote, fed and finished."""
    with Pipeline(ROLES) as pipeline:
        for thread, rows in enumerate(threads):
            pipeline.feed(thread, records(rows))
        pipeline.finish()
        return pipeline.take(), pipeline.counts()


def calls_of(columns: Columns, batch: int = NONE) -> list[tuple[int, ...]]:
    """Function, start, end and self time of each call of a batch, or of those in none."""
    rows = columns.calls[columns.calls["batch"] == batch]
    return [tuple(int(row[name]) for name in ("function", "start_ticks", "end_ticks", "self_ticks")) for row in rows]


def parents_of(columns: Columns) -> list[int | None]:
    return [None if parent == NONE else int(parent) for parent in columns.calls["parent"]]


def unpaired(counts: PipelineCounts) -> tuple[int, int, int]:
    """Entries and exits that stayed alone, and calls that had not ended."""
    return counts.unpaired_entries, counts.unpaired_exits, counts.open
