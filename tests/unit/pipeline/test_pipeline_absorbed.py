# SPDX-License-Identifier: Apache-2.0
"""Packets that are punted, kept, replaced, or copied into other buffers: one test per rule of the pipeline."""

from __future__ import annotations

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import ABSORBED, DROPPED, PUNTED, TRANSMITTED, UNKNOWN, Columns
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from tests.support.synthetic_records import Row, entry, leave, poll, record, records, value

RX, TX, DR, PUNT, KEEP, REPLACE = range(1, 7)
ROLES = np.array(
    [0, 1, 2, 3, lib.NFP_ROLE_PUNT, lib.NFP_ROLE_KEEP, lib.NFP_ROLE_REPLACE],
    np.uint8,
)
ID, NEXT = 9, 28  # kinds of records
FRAGMENT = 1 << 28  # the mark of a packet's id


def run(rows: list[Row]) -> tuple[Columns, PipelineCounts]:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, records(rows))
        pipeline.finish()
        return pipeline.take(), pipeline.counts()


def received(start: int, digests: dict[int, int], fragments: tuple[int, ...] = ()) -> list[Row]:
    """A receive call that returned these buffers."""
    rows = poll(RX, start, start + 5, 800, len(digests))
    for position, (buffer, digest) in enumerate(digests.items()):
        rows.append(record(8, RX, buffer, 64 | position << 16))
        rows.append(record(ID, RX, digest, FRAGMENT if buffer in fragments else 0))
    return rows


def handed(function: int, start: int, digests: dict[int, int], following: int = 0) -> list[Row]:
    """A call that is handed these buffers; the first one goes on in `following`."""
    rows = [entry(function, start, 800)]
    for position, (buffer, digest) in enumerate(digests.items()):
        rows.append(record(8, function, buffer, 64 | position << 16))
        if function not in (KEEP, REPLACE):
            rows.append(record(ID, function, digest, 0))
        if following and not position:
            rows.append(record(NEXT, function, following, 0))
    return [*rows, value(function, len(digests), 800), leave(function, start + 5, 800)]


def fates(columns: Columns) -> list[int]:
    found: list[int] = columns.packets["disposition"].tolist()
    return found


def test_punted_packets() -> None:
    columns, counts = run([*received(10, {1: 11, 2: 12, 3: 13}), *handed(PUNT, 30, {2: 12}), *handed(TX, 40, {1: 11})])
    assert fates(columns) == [TRANSMITTED, PUNTED, UNKNOWN]
    assert columns.packets["done_function"].tolist()[:2] == [TX, PUNT]
    assert (counts.received, counts.transmitted, counts.punted, counts.dropped, counts.unknown) == (3, 1, 1, 0, 1)


def test_punted_packets_that_are_only_counted() -> None:
    rows = [*poll(RX, 10, 20, 800, 5), entry(PUNT, 30, 800), value(PUNT, 3, 800), leave(PUNT, 40, 800)]
    counts = run(rows)[1]
    assert (counts.punted, counts.dropped, counts.unknown) == (3, 0, 2)


def test_the_first_fragment_leaves_as_another_packet() -> None:
    rows = [*received(10, {1: 11, 2: 12, 3: 13}, fragments=(1, 3)), *handed(KEEP, 20, {1: 0, 2: 0, 3: 0})]
    columns, counts = run([*rows, *handed(TX, 30, {2: 99}, following=3)])
    assert fates(columns) == [ABSORBED, TRANSMITTED, ABSORBED]
    assert columns.packets["done_function"].tolist() == [KEEP, TX, KEEP]
    assert columns.packets["done_digest"].tolist()[1] == 99
    assert (counts.absorbed, counts.transmitted, counts.generated, counts.unknown) == (2, 1, 0, 0)


def test_what_reassembly_hands_on_unchanged_is_the_packet() -> None:
    rows = [*received(10, {1: 11, 2: 12}, fragments=(1,)), *handed(KEEP, 20, {1: 0, 2: 0})]
    columns, counts = run([*rows, *handed(DR, 30, {1: 11}), *handed(TX, 40, {2: 12})])
    assert fates(columns) == [DROPPED, TRANSMITTED]
    assert (counts.absorbed, counts.dropped, counts.transmitted, counts.unknown) == (0, 1, 1, 0)


def test_another_packet_in_the_buffer_of_one_that_was_replaced() -> None:
    rows = [*received(10, {1: 11, 2: 12}), *handed(REPLACE, 20, {1: 0, 2: 0})]
    columns, counts = run([*rows, *handed(TX, 30, {7: 70, 1: 71}), *handed(DR, 40, {2: 12})])
    assert fates(columns) == [ABSORBED, DROPPED]
    assert (counts.absorbed, counts.dropped, counts.transmitted, counts.generated) == (1, 1, 0, 2)


def test_an_absorbed_packet_whose_buffer_is_received_again() -> None:
    rows = [*received(10, {1: 11}), *handed(REPLACE, 20, {1: 0}), *received(30, {1: 21}), *handed(TX, 40, {1: 21})]
    columns, counts = run(rows)
    assert fates(columns) == [ABSORBED, TRANSMITTED]
    assert (counts.absorbed, counts.transmitted, counts.unknown, counts.generated) == (1, 1, 0, 0)


def test_the_first_copy_is_the_packet() -> None:
    rows = [*received(10, {1: 11}), *handed(TX, 20, {5: 11}, following=1), *handed(TX, 30, {6: 11}, following=1)]
    columns, counts = run(rows)
    assert fates(columns) == [TRANSMITTED]
    assert columns.packets["done_ticks"].tolist() == [25]
    assert (counts.transmitted, counts.generated, counts.unknown) == (1, 1, 0)


def test_a_packet_of_several_buffers_is_its_first_one() -> None:
    rows = [*received(10, {1: 11, 2: 12}), *handed(TX, 20, {2: 12}, following=1)]
    columns, counts = run(rows)
    assert fates(columns) == [UNKNOWN, TRANSMITTED]
    assert (counts.transmitted, counts.generated, counts.unknown) == (1, 0, 1)


def test_a_copy_of_itself_is_found_once() -> None:
    columns, counts = run([*received(10, {1: 11}), *handed(TX, 20, {1: 11}, following=1), *handed(TX, 30, {4: 4}, 4)])
    assert fates(columns) == [TRANSMITTED]
    assert (counts.transmitted, counts.generated) == (1, 1)
