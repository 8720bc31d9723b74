# SPDX-License-Identifier: Apache-2.0
"""Records made by hand, one test per rule of batches."""

from __future__ import annotations

from pathlib import Path

from otel_nfprobe.base.columns import NONE, BatchFlag, CallFlag
from otel_nfprobe.pipeline.pipeline import Pipeline
from tests.support.synthetic_records import (
    ROLES,
    RX,
    RX2,
    TX,
    F,
    G,
    H,
    Row,
    calls_of,
    engine_iteration,
    entry,
    leave,
    lost,
    parents_of,
    poll,
    records,
    run,
    unpaired,
    value,
)


def test_batch_of_a_flat_loop() -> None:
    rows = []
    for start in (1000, 2000, 3000):
        rows += [
            *poll(RX, start, start + 50, 800, 32),
            entry(G, start + 100, 800),
            leave(G, start + 300, 800),
        ]
        rows += [entry(TX, start + 400, 800), value(TX, 32 | 32 << 32, 800), leave(TX, start + 450, 800)]
    columns, counts = run(rows)
    assert columns.batches["start_ticks"].tolist() == [1000, 2000, 3000]
    assert columns.batches["end_ticks"].tolist() == [1450, 2450, 3450]
    assert columns.batches["flags"].tolist() == [BatchFlag.FULL] * 3
    assert columns.batches["transmitted"].tolist() == [32] * 3
    assert columns.batches["id"].tolist() == [1, 2, 3]
    for batch in range(3):
        start = 1000 * (batch + 1)
        assert [row[:3] for row in calls_of(columns, batch)] == [
            (RX, start, start + 50),
            (G, start + 100, start + 300),
            (TX, start + 400, start + 450),
        ]
        assert columns.batches["first_call"][batch] == 3 * batch
    assert (counts.batches, counts.received, counts.transmitted, counts.unknown) == (3, 96, 96, 0)


def test_enclosing_engine_is_clipped_once_per_batch() -> None:
    columns, counts = run([*engine_iteration(100), *engine_iteration(200), *engine_iteration(300)])
    for batch, start in enumerate((100, 200, 300)):
        assert calls_of(columns, batch) == [
            (F, start + 10, start + 50, 20),
            (RX, start + 10, start + 20, 10),
            (TX, start + 30, start + 40, 10),
        ]
        rows = columns.calls[columns.calls["batch"] == batch]
        assert rows["flags"][0] == CallFlag.CLIPPED
        assert rows["parent"].tolist() == [NONE, 3 * batch, 3 * batch]
    assert calls_of(columns) == []
    assert columns.batches["end_ticks"].tolist() == [150, 250, 350]
    assert (counts.calls, unpaired(counts)) == (9, (0, 0, 0))


def test_idle_engine_calls_do_not_stretch_a_batch_that_is_done() -> None:
    idle = [row for start in range(1000, 2000, 100) for row in (entry(F, start, 900), leave(F, start + 5, 900))]
    columns, _ = run([*engine_iteration(100), *idle, *engine_iteration(3000)])
    assert columns.batches["end_ticks"].tolist() == [150, 3050]
    assert len(calls_of(columns)) == 10


def test_outer_call_over_several_batches_is_in_each() -> None:
    rows = [entry(F, 10, 900)]
    for start in (100, 200):
        rows += [*poll(RX, start, start + 10, 700, 4), entry(G, start + 20, 700), leave(G, start + 30, 700)]
    columns, counts = run([*rows, leave(F, 300, 900)])
    assert calls_of(columns, 0) == [(F, 100, 130, 10), (RX, 100, 110, 10), (G, 120, 130, 10)]
    assert calls_of(columns, 1) == [(F, 200, 300, 80), (RX, 200, 210, 10), (G, 220, 230, 10)]
    assert calls_of(columns) == []
    assert (counts.calls, unpaired(counts)) == (5, (0, 0, 0))


def test_calls_inside_the_poll_become_its_children() -> None:
    columns, counts = run(
        [
            *poll(RX, 10, 20, 800, 4),
            *[entry(G, 30, 800), leave(G, 40, 800)],
            *[entry(H, 110, 700), entry(G, 112, 600), leave(G, 114, 600), leave(H, 118, 700)],
            *[*poll(RX, 105, 120, 800, 4), entry(G, 130, 800), leave(G, 140, 800)],
        ]
    )
    assert calls_of(columns, 0) == [(RX, 10, 20, 10), (G, 30, 40, 10)]
    assert calls_of(columns, 1) == [(RX, 105, 120, 7), (H, 110, 118, 6), (G, 112, 114, 2), (G, 130, 140, 10)]
    assert parents_of(columns) == [None, None, None, 2, 3, None]
    assert columns.calls["depth"].tolist() == [0, 0, 0, 1, 2, 0]
    assert columns.batches["end_ticks"].tolist() == [40, 140]
    assert unpaired(counts) == (0, 0, 0)


def test_handler_records_between_poll_entry_and_exit() -> None:
    start, end = poll(RX, 10, 40, 800, 4)
    columns, counts = run([start, entry(H, 20, 700), leave(H, 30, 700), end])
    assert calls_of(columns, 0) == [(RX, 10, 40, 20), (H, 20, 30, 10)]
    assert (counts.calls, unpaired(counts)) == (2, (0, 0, 0))


def test_receive_inside_receive_is_one_batch() -> None:
    columns, counts = run([*poll(RX, 20, 30, 700, 4), *poll(RX2, 10, 40, 800, 4), entry(G, 50, 800), leave(G, 60, 800)])
    assert len(columns.batches) == 1
    assert counts.received == 4


def test_half_a_poll_is_unpaired() -> None:
    start, end = poll(RX, 10, 40, 800, 4)
    assert unpaired(run([start])[1]) == (1, 0, 0)
    assert unpaired(run([end])[1]) == (0, 1, 0)


def test_long_batch_is_cut() -> None:
    rows = poll(RX, 10, 20, 800, 1)
    for start in range(100, 100 + 20000 * 10, 10):
        rows += [entry(G, start, 800), leave(G, start + 5, 800)]
    columns, counts = run(rows)
    assert columns.batches["calls"][0] == 16384
    assert len(columns.calls) == counts.calls == 20001


def test_loss_marks_the_batch() -> None:
    for loss_class in range(3):
        columns, counts = run([*poll(RX, 10, 20, 800, 4), lost(9, loss_class), *poll(RX, 110, 120, 800, 4)])
        assert columns.batches["flags"].tolist() == [BatchFlag.LOSSY, BatchFlag.UNFINISHED]
        assert counts.lost[loss_class] == 9


def test_calls_after_a_lost_poll_are_outside() -> None:
    columns, _ = run([*poll(RX, 10, 20, 800, 4), lost(1, 2), entry(G, 30, 800), leave(G, 40, 800)])
    assert calls_of(columns) == [(G, 30, 40, 10)]
    assert calls_of(columns, 0) == [(RX, 10, 20, 10)]


def test_batches_that_wait_for_nobody_need_little_room() -> None:
    rows: list[Row] = []
    for start in range(1_000, 20_001_000, 1_000):
        rows += engine_iteration(start)
    fed = records(rows)
    before = resident_bytes()
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, fed)
        grown = resident_bytes() - before
        assert len(pipeline.take(is_part=True).batches) >= 19_999
    assert grown < 40_000_000  # a batch has room for 64 calls as long as it is not delivered: 3.5 KiB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
