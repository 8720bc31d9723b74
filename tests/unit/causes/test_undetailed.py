# SPDX-License-Identifier: Apache-2.0
"""Batches whose inner functions were not timed: in the pipeline, in what is usual, and in causes."""

from __future__ import annotations

import numpy as np

from otel_nfprobe.base.columns import NONE, BatchFlag, Columns
from otel_nfprobe.causes.baseline import BATCHES_NEEDED, BatchSample
from otel_nfprobe.causes.latency_causes import CauseKind
from tests.support.synthetic_records import RX, F, G, Row, entry, leave, poll, record, run
from tests.unit.causes.test_latency_causes import BASELINE, TX, WORK, Story, read

POLL_QUEUE, QUEUE, UNDETAILED, SATURATED = 16, 5, 1 << 30, 1 << 31
BATCH_ARRIVAL = 18


def polled(start: int, end: int, earliest: int, marks: int = 0) -> list[Row]:
    """A poll of three packets, with what is known of its queue."""
    first, last = poll(RX, start, end, 800, 3)
    return [first, record(POLL_QUEUE, RX, earliest, QUEUE | marks), last]


def test_what_a_poll_says_of_its_queue() -> None:
    rows = [*polled(100, 110, 90), *polled(200, 210, 100, SATURATED), *polled(300, 310, 305, UNDETAILED)]
    columns, counts = run([*rows, *poll(RX, 400, 410, 800, 3)])
    fields = columns.batches[["start_ticks", "earliest_ticks", "queue", "flags"]].tolist()
    assert fields == [
        (100, 90, QUEUE, BatchFlag.PRIOR),
        (200, 200, QUEUE, BatchFlag.SATURATED),  # the poll before says nothing
        (300, 300, QUEUE, BatchFlag.UNDETAILED),  # what lies behind the poll's own entry cannot be
        (400, 0, 0, BatchFlag.UNFINISHED),
    ]
    assert counts.invalid == 0
    assert run([record(POLL_QUEUE, RX, 5, 5), *poll(RX, 10, 20, 800, 1)])[0].batches["earliest_ticks"][0] == 0


def test_when_the_first_packet_of_a_batch_arrived() -> None:
    def stamped(start: int, end: int, arrival: int) -> list[Row]:
        first, queue, last = polled(start, end, 90)
        return [first, queue, record(BATCH_ARRIVAL, RX, arrival, 0), last]

    rows = [*stamped(100, 110, 95), *stamped(200, 210, 201), *stamped(300, 310, 300), *polled(400, 410, 390)]
    columns, counts = run(rows)
    fields = columns.batches[["start_ticks", "earliest_ticks", "arrival_ticks"]].tolist()
    assert fields == [
        (100, 90, 95),
        (200, 90, 0),  # later than its own receive call: not believed
        (300, 90, 300),
        (400, 390, 0),
    ]
    assert counts.invalid == 0
    alone = run([record(BATCH_ARRIVAL, RX, 5, 0), *poll(RX, 10, 20, 800, 1)])[0]
    assert alone.batches["arrival_ticks"].tolist() == [0]


def test_calls_around_a_closed_gate_are_counted_apart() -> None:
    rows = [entry(F, 10, 900), *polled(100, 110, 90), entry(G, 120, 700), leave(G, 130, 700)]
    rows += polled(200, 210, 190, UNDETAILED)
    # Left while closed, then entered while closed and left while open.
    rows += [*polled(300, 310, 290), leave(F, 320, 900), entry(F, 330, 900), leave(F, 340, 900)]
    columns, counts = run(rows)
    assert (counts.ungated, counts.unpaired_entries, counts.unpaired_exits, counts.open) == (2, 0, 0, 0)
    assert columns.calls["function"].tolist().count(F) == 1
    # Where no gate was ever closed, they are unpaired.
    counts = run([*polled(100, 110, 90), leave(F, 320, 900)])[1]
    assert (counts.ungated, counts.unpaired_exits) == (0, 1)


def test_undetailed_batches_do_not_make_functions_faster() -> None:
    story = Story()
    for number in range(4 * BATCHES_NEEDED):
        story.batch(1000 + 1000 * number, (100, 200, 100) if number % 4 == 0 else (100,))
    columns = story.columns()
    columns.batches["flags"] |= np.where(np.arange(4 * BATCHES_NEEDED) % 4, BatchFlag.UNDETAILED, 0).astype(np.uint32)
    sample = BatchSample()
    sample.add(columns)
    baseline = sample.baseline()
    assert baseline.batches == BATCHES_NEEDED
    assert baseline.function_ticks(np.array([WORK, TX]), 4).tolist() == [200.0, 100.0]


def test_an_undetailed_batch_blames_no_function_that_was_not_timed() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000))
    del story.calls[1:3]  # only the receive call was timed
    columns = story.columns
    story.columns = lambda: _undetailed(columns())  # type: ignore[method-assign]
    assert read(story.cause(0, BASELINE), "kind", "function", "call") == (CauseKind.OWN, NONE, NONE)


def _undetailed(columns: Columns) -> Columns:
    columns.batches["flags"] |= np.uint32(BatchFlag.UNDETAILED)
    return columns
