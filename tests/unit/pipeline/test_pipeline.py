# SPDX-License-Identifier: Apache-2.0
"""Records made by hand, one test per rule of calls, and of takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import CALL, COST, NONE, BatchFlag, CallFlag, Columns, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.statistics import Statistics
from tests.support.synthetic_records import (
    RECEIVE,
    ROLES,
    F,
    G,
    H,
    Row,
    calls_of,
    engine_iteration,
    entry,
    leave,
    lost,
    mark,
    parents_of,
    poll,
    receiver,
    records,
    run,
    unpaired,
    unwound,
    value,
)


def test_nested_calls_and_self_time() -> None:
    columns, counts = run(
        [
            entry(F, 10, 900),
            entry(G, 20, 800),
            leave(G, 50, 800),
            entry(H, 60, 800),
            leave(H, 65, 800),
            leave(F, 100, 900),
        ]
    )
    assert calls_of(columns) == [(F, 10, 100, 55), (G, 20, 50, 30), (H, 60, 65, 5)]
    assert parents_of(columns) == [None, 0, 0]
    assert columns.calls["depth"].tolist() == [0, 1, 1]
    assert (counts.calls, counts.records, unpaired(counts)) == (3, 6, (0, 0, 0))


def test_a_mark_is_a_call_without_an_end() -> None:
    columns, counts = run([entry(F, 10, 900), mark(G, 20, 800), mark(G, 30, 800), leave(F, 100, 900)])
    assert calls_of(columns) == [(F, 10, 100, 90), (G, 20, 20, 0), (G, 30, 30, 0)]
    assert parents_of(columns) == [None, 0, 0]
    assert columns.calls["flags"].tolist() == [0, CallFlag.MARK, CallFlag.MARK]
    assert (counts.calls, counts.marked, unpaired(counts)) == (1, 2, (0, 0, 0))


def test_the_cost_of_probes_adds_up_along_the_chain() -> None:
    """Each level of 20 nested calls really takes 3 ticks, and its probe costs 27 inside and 22 outside."""
    levels, inside, whole, real = 20, 27, 49, 3
    rows: list[Row] = []
    for level in range(levels):
        rows.append(entry(F, 1000 + level * (inside + whole) // 2, 9000 - 16 * level))
    ticks = int(rows[-1][0])
    for level in reversed(range(levels)):
        duration = (levels - level) * real + inside + (levels - 1 - level) * whole
        ticks = int(rows[level][0]) + duration
        rows.append(leave(F, ticks, 9000 - 16 * level))
    costs = np.zeros(1, COST)
    costs[0] = inside, whole
    pipeline, statistics = Pipeline(ROLES), Statistics()
    pipeline.set_costs(costs)
    statistics.set_costs(costs)
    pipeline.feed(0, records(rows))
    pipeline.finish()
    columns = pipeline.take()
    calls = columns.calls
    net = calls["end_ticks"] - calls["start_ticks"] - calls["cost_ticks"]
    assert net.tolist() == [(levels - level) * real for level in range(levels)]
    statistics.add(columns)
    (row,) = statistics.functions()
    assert int(row["total_ticks"]) == int(net.sum())
    assert int(row["raw_total_ticks"]) == int((calls["end_ticks"] - calls["start_ticks"]).sum())
    assert int(row["self_ticks"]) == levels * real


def test_recursion_pairs_each_level() -> None:
    rows = [entry(F, level, 9000 - 16 * level) for level in range(1, 50)]
    rows += [leave(F, 200 - level, 9000 - 16 * level) for level in range(49, 0, -1)]
    columns, counts = run(rows)
    assert [row[1:3] for row in calls_of(columns)] == [(level, 200 - level) for level in range(1, 50)]
    assert columns.calls["depth"].tolist() == list(range(49))
    assert unpaired(counts) == (0, 0, 0)


def test_recursion_deeper_than_the_limit_is_bounded() -> None:
    depth = 20000
    rows = [entry(F, level, 0x70000000 - 16 * level) for level in range(1, depth)]
    rows += [leave(F, 2 * depth - level, 0x70000000 - 16 * level) for level in range(depth - 1, 0, -1)]
    counts = run(rows)[1]
    assert counts.unpaired_entries == counts.unpaired_exits == 4096
    assert counts.calls == depth - 1 - 4096


def test_tail_call_of_in_stack_probe_nests() -> None:
    columns, counts = run([entry(F, 10, 900), entry(G, 20, 884), leave(G, 30, 884), leave(F, 40, 900)])
    assert calls_of(columns) == [(F, 10, 40, 20), (G, 20, 30, 10)]
    assert unpaired(counts) == (0, 0, 0)


def test_tail_call_of_relocated_body_has_the_same_rsp() -> None:
    columns, counts = run([entry(F, 10, 900), leave(F, 20, 900), entry(G, 21, 900), leave(G, 30, 900)])
    assert calls_of(columns) == [(F, 10, 20, 10), (G, 21, 30, 9)]
    assert unpaired(counts) == (0, 0, 0)


def test_longjmp_over_two_calls() -> None:
    columns, counts = run(
        [
            entry(F, 10, 900),
            entry(G, 20, 800),
            entry(H, 30, 700),
            leave(F, 50, 900),
            entry(G, 60, 800),
            leave(G, 70, 800),
        ]
    )
    assert calls_of(columns) == [(F, 10, 50, 40), (G, 60, 70, 10)]
    assert unpaired(counts) == (2, 0, 0)


def test_longjmp_then_calls_in_the_same_frame() -> None:
    columns, counts = run(
        [
            *[entry(F, 10, 900), entry(G, 20, 800), entry(H, 30, 700)],
            *[entry(G, 40, 800), leave(G, 45, 800), leave(F, 50, 900)],
        ]
    )
    assert calls_of(columns) == [(F, 10, 50, 35), (G, 40, 45, 5)]
    assert unpaired(counts) == (2, 0, 0)


def test_same_frame_entered_again_proves_the_first_call_gone() -> None:
    columns, counts = run([entry(F, 10, 900), entry(F, 20, 900), leave(F, 30, 900), leave(F, 40, 900)])
    assert calls_of(columns) == [(F, 20, 30, 10)]
    assert unpaired(counts) == (1, 1, 0)


def test_unwound_call_is_paired_and_says_so() -> None:
    columns, counts = run([entry(F, 10, 900), entry(G, 20, 800), unwound(G, 30, 800), leave(F, 40, 900)])
    assert columns.calls["flags"].tolist() == [0, CallFlag.UNWOUND]
    assert unpaired(counts) == (0, 0, 0)


def test_exit_without_entry() -> None:
    columns, counts = run([leave(F, 10, 900), entry(G, 20, 800), leave(F, 25, 700), leave(G, 30, 800)])
    assert calls_of(columns) == [(G, 20, 30, 10)]
    assert unpaired(counts) == (0, 2, 0)


@pytest.mark.parametrize("other", [0x60000000, 900 + 4096, 900 - 4096])
def test_coroutines_interleave(other: int) -> None:
    columns, counts = run(
        [
            *[entry(F, 10, 900), entry(G, 20, 800), entry(F, 30, other), entry(H, 40, other - 100)],
            *[leave(G, 50, 800), entry(G, 60, 800), leave(H, 70, other - 100), leave(F, 80, other)],
            *[leave(G, 90, 800), leave(F, 100, 900)],
        ]
    )
    rows = [row[:3] for row in calls_of(columns)]
    assert sorted(rows) == sorted([(F, 10, 100), (G, 20, 50), (F, 30, 80), (H, 40, 70), (G, 60, 90)])
    assert unpaired(counts) == (0, 0, 0)
    for call in columns.calls[columns.calls["parent"] != NONE]:
        parent = columns.calls[call["parent"]]
        assert parent["start_ticks"] <= call["start_ticks"] <= call["end_ticks"] <= parent["end_ticks"]


def test_stacks_across_the_32_bit_wrap() -> None:
    columns, counts = run([entry(F, 10, 0x10), entry(G, 20, -0x40), leave(G, 30, -0x40), leave(F, 40, 0x10)])
    assert parents_of(columns) == [None, 0]
    assert unpaired(counts) == (0, 0, 0)


def test_signal_handler_records_before_those_of_the_interrupted_probe() -> None:
    columns, counts = run(
        [
            *[entry(H, 110, 700), leave(H, 120, 700), entry(F, 100, 900)],
            *[entry(H, 210, 700), leave(H, 220, 700), leave(F, 200, 900)],
        ]
    )
    assert calls_of(columns) == [(H, 110, 120, 10), (F, 120, 220, 90), (H, 210, 220, 10)]
    assert parents_of(columns) == [None, None, 1]
    assert unpaired(counts) == (0, 0, 0)


def test_value_belongs_to_the_call_with_its_rsp() -> None:
    columns, _ = run(
        [
            entry(F, 1, 900),
            entry(F, 2, 800),
            value(F, 77, 800),
            leave(F, 3, 800),
            value(F, 78, 900),
            leave(F, 4, 900),
        ]
    )
    assert columns.calls["value"].tolist() == [78, 77]
    assert (columns.calls["flags"] == CallFlag.VALUE).all()


def test_lost_records_end_what_is_open() -> None:
    columns, counts = run(
        [entry(F, 10, 900), lost(5, 0), leave(F, 1000, 900), entry(G, 1010, 900), leave(G, 1020, 900)]
    )
    assert calls_of(columns) == [(G, 1010, 1020, 10)]
    assert counts.lost == (5, 0, 0)
    assert unpaired(counts) == (1, 1, 0)


def test_open_calls_at_the_end_are_no_garbage() -> None:
    columns, counts = run([entry(F, 10, 900), entry(G, 20, 800), leave(G, 30, 800)])
    assert calls_of(columns) == [(G, 20, 30, 10)]
    assert unpaired(counts) == (0, 0, 1)


def test_calls_below_an_endless_call_are_delivered() -> None:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, records([entry(F, 10, 900), entry(G, 20, 800), leave(G, 40, 800)]))
        assert len(pipeline.take().calls) == 0
        assert calls_of(pipeline.take()) == [(G, 20, 40, 20)]
        pipeline.feed(0, records([entry(G, 50, 800), leave(G, 60, 800), leave(F, 100, 900)]))
        columns = concatenate([pipeline.take(), pipeline.take()])
    assert calls_of(columns) == [(F, 10, 100, 60), (G, 50, 60, 10)]
    assert parents_of(columns) == [None, 0]


def test_open_call_holds_a_bounded_number_of_calls() -> None:
    with Pipeline(ROLES) as pipeline:
        rows = [entry(F, 10, 900)]
        for start in range(100, 100 + 10000 * 10, 10):
            rows += [entry(G, start, 800), leave(G, start + 5, 800)]
        pipeline.feed(0, records(rows))
        assert len(pipeline.take().calls) > 10000 - 4096 - 1


def test_functions_can_be_added() -> None:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, records([entry(8, 10, 900)]))
        pipeline.set_roles(np.append(ROLES, np.uint8(RECEIVE)))
        pipeline.feed(0, records(poll(8, 20, 30, 900, 1)))
        pipeline.finish()
        assert pipeline.take().batches["function"].tolist() == [8]
        assert pipeline.counts().invalid == 1


def test_calls_of_a_take_stay_as_they_are() -> None:
    """As long as anything refers to them, a column or a buffer; their memory is used again after that."""
    with Pipeline(ROLES) as pipeline:

        def take(start: int) -> Columns:
            pipeline.feed(0, records([entry(F, start, 700), leave(F, start + 1, 700)]))
            assert len(pipeline.take().calls) == 0  # the second take that sees them gives them
            return pipeline.take()

        kept = take(10)
        column = take(20).calls["start_ticks"]
        buffer = memoryview(take(30).calls.view(np.uint8))
        part = take(40).calls[:1]["end_ticks"][::1]
        places = set()
        for start in range(50, 90):
            columns = take(start)
            places.add(columns.calls.ctypes.data)
            del columns
    assert kept.calls["start_ticks"].tolist() == [10]
    assert column.tolist() == [20]
    assert np.frombuffer(buffer, CALL)["start_ticks"].tolist() == [30]
    assert part.tolist() == [41]
    assert len(places) == 1


def test_thread_index_can_be_used_again() -> None:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, records([*receiver([1], 10), entry(F, 30, 700)]))
        pipeline.end_threads([0])
        pipeline.feed(0, records([entry(F, 50, 700), leave(F, 60, 700)]))
        pipeline.finish()
        columns = pipeline.take()
        assert unpaired(pipeline.counts()) == (0, 0, 1)
    assert calls_of(columns) == [(F, 50, 60, 10)]
    assert columns.batches["flags"].tolist() == [BatchFlag.UNFINISHED]


def test_thread_index_out_of_range() -> None:
    with Pipeline(ROLES) as pipeline, pytest.raises(ValueError, match="out of range"):
        pipeline.feed(1024, records([entry(F, 1, 1)]))


def test_take_does_not_depend_on_how_records_are_cut() -> None:
    rows: list[Row] = []
    for start in range(100, 3000, 100):
        rows += engine_iteration(start)
    whole = run(rows)[0]
    generator: Any = np.random.default_rng(5)
    with Pipeline(ROLES) as pipeline:
        parts, at = [], 0
        while at < len(rows):
            step = int(generator.integers(1, 20))
            pipeline.feed(0, records(rows[at : at + step]))
            parts.append(pipeline.take(is_part=bool(generator.integers(2))))
            at += step
        pipeline.finish()
        parts.append(pipeline.take())
    pieces = concatenate(parts)
    assert pieces.calls.tolist() == whole.calls.tolist()
    assert pieces.batches.tolist() == whole.batches.tolist()
