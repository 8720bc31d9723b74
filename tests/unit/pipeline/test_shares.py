# SPDX-License-Identifier: Apache-2.0
"""Calls that work on packets of several batches of a turn, in the pipeline."""

from __future__ import annotations

from otel_nfprobe.base.columns import CallFlag, Columns, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from tests.support.synthetic_records import ROLES, RX, F, G, Row, entry, leave, poll, record, records, run

VALUE, SHARE = 4, 27
CUT = CallFlag.SHARED | CallFlag.VALUE


def share(function: int, batch_start: int, packets: int, rsp: int) -> Row:
    """What a call says of one batch."""
    return record(SHARE, function, batch_start << 16 | packets, rsp)


def node(
    start: int, end: int, vectors: int, *shares: tuple[int, int], rsp: int = 800, inside: tuple[Row, ...] = ()
) -> list[Row]:
    """A call of F with its shares, (entry of the receive call, packets)."""
    said = [share(F, batch, packets, rsp) for batch, packets in shares]
    return [entry(F, start, rsp), record(VALUE, F, vectors, rsp), *said, *inside, leave(F, end, rsp)]


def turn() -> list[Row]:
    """Two receive calls, of 3 and 1 packets."""
    return [*poll(RX, 100, 110, 900, 3), *poll(RX, 120, 130, 900, 1)]


def calls(columns: Columns, function: int = F) -> list[tuple[int, ...]]:
    """Batch, times, value and flags of its calls."""
    found = columns.calls[columns.calls["function"] == function]
    return [tuple(row) for row in found[["batch", "start_ticks", "end_ticks", "value", "flags"]].tolist()]


def test_a_call_goes_to_the_batch_of_its_packets() -> None:
    rows = [*turn(), *node(200, 240, 3, (100, 3)), *node(240, 250, 1)]
    columns, counts = run(rows)
    assert sorted(calls(columns)) == [(0, 200, 240, 3, CallFlag.VALUE), (1, 240, 250, 1, CallFlag.VALUE)]
    assert columns.batches["end_ticks"].tolist() == [240, 250]
    assert counts.invalid == 0


def test_a_shared_call_is_cut_by_packets() -> None:
    columns, _ = run([*turn(), *node(200, 240, 4, (100, 3), (120, 1))])
    assert sorted(calls(columns)) == [
        (0, 200, 230, 3, CUT),
        (1, 230, 240, 1, CUT | CallFlag.CONTINUED),
    ]


def test_the_upper_half_of_a_value_stays() -> None:
    columns, _ = run([*turn(), *node(200, 240, 7 << 32 | 4, (120, 1), (100, 3))])
    assert sorted(row[3] for row in calls(columns)) == [7 << 32 | 1, 7 << 32 | 3]


def test_a_call_is_one_call_however_many_share_it() -> None:
    columns, _ = run([*turn(), *node(200, 240, 4, (100, 3), (120, 1)), *node(250, 260, 4, (100, 4))])
    statistics = Statistics()
    statistics.add(columns)
    summary = statistics.summary(Distribution.CALL_TICKS, F)
    assert (summary["count"], summary["total"]) == (2, 50)


def test_calls_with_calls_inside_are_not_cut() -> None:
    inside = (entry(G, 210, 700), leave(G, 220, 700))
    columns, _ = run([*turn(), *node(200, 240, 4, (100, 3), (120, 1), inside=inside)])
    assert calls(columns) == [(0, 200, 240, 4, CallFlag.VALUE)]
    ((batch, start, end, _, _),) = calls(columns, G)
    assert (batch, start, end) == (0, 210, 220)
    parents = columns.calls["parent"][columns.calls["function"] == G]
    assert columns.calls["function"][parents].tolist() == [F]


def test_batches_that_are_not_known_leave_their_calls_with_the_last_one() -> None:
    columns, _ = run([*turn(), *node(200, 240, 4, (77, 4))])
    assert calls(columns) == [(1, 200, 240, 4, CallFlag.VALUE)]


def test_a_batch_waits_for_the_calls_of_its_turn() -> None:
    """Wherever a round of the monitor ends."""
    rows = [*turn(), *node(200, 240, 4, (100, 3), (120, 1)), *node(250, 260, 3, (100, 3)), *poll(RX, 300, 310, 900, 1)]
    for place in range(len(turn()) + 3, len(rows)):
        with Pipeline(ROLES) as pipeline:
            taken = []
            for part in (rows[:place], [], rows[place:]):
                pipeline.feed(0, records(part))
                taken.append(pipeline.take())
            pipeline.finish()
            columns = concatenate([*taken, pipeline.take()])
        assert len(calls(columns)) == 3, place
        found = columns.calls[columns.calls["function"] == F]
        assert sorted(columns.batches["size"][found["batch"]].tolist()) == [1, 3, 3], place
