# SPDX-License-Identifier: Apache-2.0
"""Time stamps that cannot be, and a counter that steps back: they cost the records around them, not all that follow."""

from __future__ import annotations

import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.shm.stamps import SKEW_TICKS, StampBounds
from tests.support.synthetic_records import (
    RX,
    TX,
    F,
    G,
    Row,
    burst,
    calls_of,
    entry,
    hand_on,
    leave,
    mark,
    poll,
    receiver,
    record,
    records,
    run,
    unwound,
    value,
)

NOW = 1 << 44
STEP = 1 << 34  # more than any signal handler takes
LOST_TAG, MISTIMED = 5 << 24, 255


def bound(rows: list[Row], earliest: int = NOW - 1000, latest: int = NOW + 100_000) -> tuple[Rows, int]:
    array = records(rows)
    pointer = ffi.from_buffer("struct nfp_record[]", array, require_writable=True)
    return array, lib.nfp_stamps_bound(pointer, len(array), earliest, latest)


def some_calls(start: int) -> list[Row]:
    return [entry(F, start, 900), entry(G, start + 10, 800), leave(G, start + 30, 800), leave(F, start + 50, 900)]


@pytest.mark.parametrize("make", [entry, leave, unwound, mark])
@pytest.mark.parametrize("stamp", [0, NOW - 1001, NOW + 100_001, (1 << 64) - 1])
def test_a_stamp_that_cannot_be_is_a_lost_record(make, stamp) -> None:  # type: ignore[no-untyped-def]
    array, wrong = bound([make(F, stamp, 900), entry(F, NOW, 900)])
    assert wrong == 1
    assert array.tolist() == [(1, LOST_TAG, MISTIMED), entry(F, NOW, 900)]


def test_words_that_are_no_stamps_stay() -> None:
    rows = [value(F, 3, 900), *burst(RX, [64, 128]), record(5, 0, 7, 0), record(32, 0, 5, 900), record(30, 0, 9, 1)]
    array, wrong = bound(rows)
    assert (array.tolist(), wrong) == (rows, 0)


def test_waits_do_not_begin_before_the_session() -> None:
    rows = [record(16, RX, 5, 0), record(11, RX, 5, 0), record(11, RX, 5, 1), record(16, RX, 0, 0)]
    array, wrong = bound(rows)
    assert array["value"].tolist() == [NOW - 1000, NOW - 1000, 5, 0]
    assert wrong == 0


def test_the_monitors_own_counter_bounds_the_stamps() -> None:
    bounds = StampBounds()
    now = lib.nfp_ticks_now()
    array = records([entry(F, now, 900), entry(F, now + 100 * SKEW_TICKS, 900), entry(F, 5, 900)])
    pointer = ffi.from_buffer("struct nfp_record[]", array, require_writable=True)
    assert bounds.apply(pointer, 3) == 2
    assert array["tag"].tolist() == [F, LOST_TAG, LOST_TAG]


@pytest.mark.parametrize("stamp", [5, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("place", range(5))
def test_one_wrong_stamp_costs_the_calls_around_it(stamp: int, place: int) -> None:
    rows = some_calls(NOW)
    rows.insert(place, entry(G, stamp, 700))
    columns, counts = run([*bound(rows)[0].tolist(), *some_calls(NOW + 1000)])
    assert calls_of(columns)[-2:] == [(F, NOW + 1000, NOW + 1050, 30), (G, NOW + 1010, NOW + 1030, 20)]
    assert counts.mistimed == 1
    assert counts.calls >= 2
    assert counts.invalid == 0


@pytest.mark.parametrize("stamp", [NOW - STEP, NOW + STEP, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("make", [entry, leave, unwound, mark])
def test_the_stream_finds_its_way_back_without_bounds(make, stamp: int) -> None:  # type: ignore[no-untyped-def]
    columns, counts = run([*some_calls(NOW), make(G, stamp, 700), *some_calls(NOW + 1000), *some_calls(NOW + 2000)])
    durations = [end - start for function, start, end, _ in calls_of(columns) if function == F and start >= NOW + 2000]
    assert durations[-1:] == [50]
    assert counts.mistimed == 1


def test_after_a_step_back_calls_and_packets_are_as_ever() -> None:
    def turn(start: int) -> list[Row]:
        return [
            entry(F, start, 900),
            *receiver([64, 128], start + 10),
            *hand_on(TX, start + 40, start + 60, 800, [64, 128]),
            leave(F, start + 100, 900),
        ]

    turns = [turn(NOW), turn(NOW + 200), turn(NOW - 2 * STEP), turn(NOW - 2 * STEP + 200)]
    columns, counts = run([row for rows in turns for row in rows])
    assert (counts.received, counts.transmitted, counts.unknown, counts.mistimed) == (8, 8, 0, 1)
    latest = columns.packets[columns.packets["receive_ticks"] < NOW - STEP]
    assert (latest["done_ticks"] - latest["receive_ticks"]).tolist() == [40] * 4


def test_a_receive_call_before_the_session_is_none() -> None:
    rows, wrong = bound([*poll(RX, 0, NOW, 800, 2), *burst(RX, [64, 128]), *receiver([192], NOW + 100)])
    columns, counts = run(rows.tolist())
    assert (wrong, counts.mistimed) == (1, 1)
    assert columns.batches["start_ticks"].tolist() == [NOW + 100]


def test_a_little_out_of_order_is_a_signal_handler() -> None:
    columns, counts = run(
        [entry(F, NOW, 900), entry(G, NOW - 500, 800), leave(G, NOW + 10, 800), leave(F, NOW + 20, 900)]
    )
    assert calls_of(columns) == [(F, NOW, NOW + 20, 10), (G, NOW, NOW + 10, 10)]
    assert counts.mistimed == 0
