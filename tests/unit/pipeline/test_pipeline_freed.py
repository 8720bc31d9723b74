# SPDX-License-Identifier: Apache-2.0
"""Packets that are freed: told by calls that free, and by buffers that hold another packet later."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import DROPPED, TRANSMITTED, UNKNOWN, Columns
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from tests.support.synthetic_records import (
    TX,
    TX2,
    Row,
    burst,
    entry,
    hand_on,
    leave,
    lost,
    packet,
    poll,
    record,
    records,
    value,
)

RX, FREE = 1, 3  # numbers of functions, as in synthetic_records
ROLES = np.array([0, lib.NFP_ROLE_RECEIVE_POOLED, 2, lib.NFP_ROLE_FREE, 0, 0, 1, 2], np.uint8)


def run(*threads: list[Row]) -> tuple[Columns, PipelineCounts]:
    with Pipeline(ROLES) as pipeline:
        for thread, rows in enumerate(threads):
            pipeline.feed(thread, records(rows))
        pipeline.finish()
        return pipeline.take(), pipeline.counts()


def received(buffers: list[int], start: int, digest: int = 0) -> list[Row]:
    rows = poll(RX, start, start + 10, 800, len(buffers))
    for position, buffer in enumerate(buffers):
        rows += packet(RX, buffer, position, digest=digest + buffer)
    return rows


def free(buffers: list[int], start: int, rsp: int = 800, end: int = 0) -> list[Row]:
    """A call that frees; no facts of its packets are written."""
    rows = [entry(FREE, start, rsp)]
    rows += [record(8, FREE, buffer, position << 16) for position, buffer in enumerate(buffers)]
    return [*rows, value(FREE, len(buffers), rsp), leave(FREE, end or start + 5, rsp)]


def dispositions(columns: Columns) -> list[int]:
    found: list[int] = columns.packets["disposition"].tolist()
    return found


def test_a_received_packet_that_is_freed_is_dropped() -> None:
    columns, counts = run([*received([1, 2], 10), *free([2], 30), *hand_on(TX, 40, 50, 800, [1])])
    assert dispositions(columns) == [TRANSMITTED, DROPPED]
    assert columns.packets["done_ticks"].tolist() == [50, 35]
    assert columns.packets["done_function"].tolist() == [TX, FREE]
    assert (counts.transmitted, counts.dropped, counts.freed, counts.unknown, counts.generated) == (1, 1, 1, 0, 0)


def test_what_a_transmit_call_frees_was_sent() -> None:
    inside = [entry(TX, 30, 800), *burst(TX, [1]), *free([1], 32, 700), value(TX, 1 | 1 << 32, 800), leave(TX, 40, 800)]
    columns, counts = run([*received([1], 10), *inside])
    assert dispositions(columns) == [TRANSMITTED]
    assert (counts.transmitted, counts.dropped, counts.generated) == (1, 0, 0)


@pytest.mark.parametrize("thread", [0, 1])
def test_what_was_sent_before_is_no_packet_any_more(thread: int) -> None:
    sent, cleaned = [*received([1], 10), *hand_on(TX, 30, 40, 800, [1])], free([1], 60)
    columns, counts = run([*sent, *cleaned]) if thread == 0 else run(sent, cleaned)
    assert dispositions(columns) == [TRANSMITTED]
    assert (counts.dropped, counts.unknown, counts.generated) == (0, 0, 0)


def test_a_free_on_another_thread() -> None:
    columns, counts = run(received([1, 2], 10), free([1, 2], 30))
    assert dispositions(columns) == [DROPPED, DROPPED]
    assert (counts.dropped, counts.freed) == (2, 2)


def test_a_buffer_that_holds_another_packet_had_been_freed() -> None:
    columns, counts = run([*received([1, 2], 10), *received([1, 2], 30, digest=100)])
    assert dispositions(columns) == [DROPPED, DROPPED, UNKNOWN, UNKNOWN]
    assert columns.packets["done_ticks"].tolist() == [0] * 4  # when it was is not known
    assert columns.batches["dropped"].tolist() == [2, 0]
    assert (counts.dropped, counts.freed, counts.unknown) == (2, 2, 2)


def test_the_same_packet_again_was_handed_on() -> None:
    columns, counts = run([*received([1], 10), *received([1], 30), *hand_on(TX, 50, 60, 800, [1])])
    assert dispositions(columns) == [UNKNOWN, TRANSMITTED]
    assert counts.dropped == 0


@pytest.mark.parametrize("loss_class", [0, 1, 2])
def test_after_a_loss_nothing_is_concluded(loss_class: int) -> None:
    rows = [*received([1, 2], 10), lost(4, loss_class), *free([2], 20), *received([1], 30, digest=100)]
    columns, counts = run(rows)
    assert dispositions(columns)[:2] == [UNKNOWN, UNKNOWN]
    assert counts.dropped == 0


def test_the_original_of_a_copy_is_not_called_dropped() -> None:
    copied = hand_on(TX2, 25, 28, 800, [77])
    columns, counts = run([*received([1], 10), *copied, *received([1], 30, digest=100)])
    assert dispositions(columns) == [UNKNOWN, UNKNOWN]
    assert (counts.dropped, counts.generated) == (0, 1)
