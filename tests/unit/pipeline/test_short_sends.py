# SPDX-License-Identifier: Apache-2.0
"""Rows of transmit calls that took fewer packets than they were handed, on calls made by hand: 1000 ticks a second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from otel_nfprobe.base.columns import CALL, NONE, CallFlag, Columns, Rows
from otel_nfprobe.linux.queue_counters import QueueKind
from otel_nfprobe.pipeline.queue_drops import name_queue
from otel_nfprobe.pipeline.short_sends import OFFERED_MAX, ShortSends, select_sends

TX, OTHER, WORK = 3, 4, 5
PER_SECOND = 1_000_000.0  # ticks: a gap of 5,000 parts two rows
SEND = CallFlag.VALUE | CallFlag.TRANSMIT


def send(start: int, offered: int, taken: int, batch: int = 0, **fields: int) -> Rows:
    call = np.zeros(1, CALL)
    call["start_ticks"], call["end_ticks"] = start, start + 10
    call["function"], call["batch"], call["parent"], call["flags"] = TX, batch, NONE, SEND
    call["value"] = taken | offered << 32
    for name, value in fields.items():
        call[name] = value
    return call


def columns_of(*calls: Rows) -> Columns:
    return Columns(calls=np.concatenate(calls))


def find(*drains: Sequence[Rows]) -> list[tuple[int, int, int]]:
    """Rows as (since, until, packets)."""
    sends = ShortSends(PER_SECOND)
    sends.learn({TX: "eth_tx"})
    rows = np.concatenate([*(sends.add(columns_of(*drain)) for drain in drains), sends.finish()])
    assert all(name_queue(row) == "transmit eth_tx" and row["kind"] == QueueKind.TRANSMIT for row in rows)
    return [(int(row["since_ticks"]), int(row["until_ticks"]), int(row["packets"])) for row in rows]


def test_what_a_call_did_not_take() -> None:
    assert find([send(100, 32, 32), send(200, 32, 20), send(300, 32, 32)]) == [(200, 210, 12)]


def test_without_a_short_call_there_is_no_row() -> None:
    assert find([send(100, 32, 32), send(200, 0, 0)], [send(300, 5, 5)]) == []


def test_short_calls_that_follow_each_other_are_one_row_over_drains() -> None:
    first = [send(100 + 100 * i, 32, 0, batch=i) for i in range(10)]
    second = [send(1100, 32, 30, batch=0), send(90_000, 32, 31, batch=1)]
    assert find(first, second) == [(100, 1110, 322), (90_000, 90_010, 1)]


def test_a_row_is_no_longer_than_a_second() -> None:
    rows = find([send(4000 * i, 2, 1, batch=i) for i in range(600)])
    assert len(rows) == 600 // 250 + 1
    assert sum(packets for _, _, packets in rows) == 600


def test_a_row_is_given_away_when_others_have_come_further() -> None:
    sends = ShortSends(PER_SECOND)
    sends.learn({TX: "eth_tx"})
    assert len(sends.add(columns_of(send(100, 32, 0)))) == 0
    assert len(sends.add(columns_of(send(900_000, 32, 32, thread=1)))) == 1
    assert len(sends.finish()) == 0


def test_what_is_offered_again_is_dropped_once() -> None:
    """Open vSwitch offers the rest until nothing is taken."""
    assert find([send(100, 32, 20), send(115, 12, 5), send(130, 7, 0)]) == [(130, 140, 7)]


@pytest.mark.parametrize(
    "following",
    [
        send(115, 12, 12, batch=1),  # of the next batch
        send(115, 13, 13),  # other packets
    ],
)
def test_what_is_not_offered_again_is_dropped(following: Rows) -> None:
    assert find([send(100, 32, 20), following]) == [(100, 110, 12)]


def test_another_call_between_them_has_freed_the_rest() -> None:
    work = send(111, 0, 0, function=WORK, flags=0)
    assert find([send(100, 32, 20), work, send(130, 12, 12)]) == [(100, 110, 12)]
    inside = send(105, 0, 0, function=WORK, flags=0, parent=0)
    assert find([send(100, 32, 20), inside, send(130, 12, 12)]) == []


def test_a_call_inside_another_one_hands_on_the_same_packets() -> None:
    inner = send(103, 32, 20, function=OTHER, parent=0, end_ticks=108)
    both = columns_of(send(100, 32, 20), inner)
    assert select_sends(both.calls, np.array([TX, OTHER], np.uint32)).tolist() == [0]
    wrapped = columns_of(send(100, 0, 0, function=WORK, flags=0), send(103, 32, 20, parent=0))
    assert select_sends(wrapped.calls, np.array([TX, OTHER], np.uint32)).tolist() == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {"function": OTHER},
        {"flags": CallFlag.TRANSMIT},
        {"flags": CallFlag.VALUE | CallFlag.DROP},
        {"flags": SEND | CallFlag.CONTINUED},
    ],
    ids=str,
)
def test_calls_that_say_nothing(fields: dict[str, int]) -> None:
    assert find([send(100, 32, 0, **fields)]) == []


def test_any_numbers_of_a_target() -> None:
    """More than can be handed to a call, more taken than handed, parents in a circle, times that go back."""
    assert find([send(100, OFFERED_MAX + 1, 0), send(200, 3, 0xFFFFFFFF)]) == []
    random = np.random.default_rng(5)
    for _ in range(200):
        wild = np.frombuffer(random.bytes(CALL.itemsize * 50), CALL).copy()
        wild["function"], wild["flags"] = random.integers(2, 5, 50), SEND
        wild["parent"] = random.integers(0, 60, 50)
        wild["value"] = random.integers(0, 40, 50) | random.integers(0, 40, 50) << 32
        assert all(0 < packets <= 40 * 50 for _, _, packets in find([wild]))
