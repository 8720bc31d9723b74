# SPDX-License-Identifier: Apache-2.0
"""What a trial keeps: functions that are called a few times a batch, outlast their probe and cost little."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from otel_nfprobe.base.columns import BATCH, CALL, NONE, CallFlag, Columns
from otel_nfprobe.elf.symbols import Function
from otel_nfprobe.monitor.trial import CALLS_ALWAYS, CHOSEN_MAX, COST_SHARE_MAX, Counted, Tally, thin

CALL_TICKS = 40.0
LONG_BATCH = 1e6


def counted(
    name: str, per_batch: float = 1, elsewhere: float = 0, clipped: float = 0, mean: float = 100, own: int = 1000
) -> Counted:
    return Counted(cast(Function, name), per_batch, elsewhere, clipped, mean, own)


def names(rows: list[Counted]) -> list[str]:
    return [str(row.function) for row in rows]


def test_the_longest_come_first() -> None:
    kept, left_out = thin([counted("a", own=1), counted("b", own=3), counted("c", own=2)], CALL_TICKS, LONG_BATCH)
    assert names(kept) == ["b", "c", "a"]
    assert left_out == {}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (counted("engine", clipped=0.9), "around the receive call"),
        (counted("timer", per_batch=0), "mostly outside of batches"),
        (counted("poll", elsewhere=7), "mostly outside of batches"),
        (counted("free", per_batch=32), "called more than 4 times a batch"),
        (counted("tiny", mean=CALL_TICKS - 1), "shorter than a probe"),
    ],
)
def test_what_is_left_out(row: Counted, reason: str) -> None:
    kept, left_out = thin([row, counted("work")], CALL_TICKS, LONG_BATCH)
    assert names(kept) == ["work"]
    assert left_out == {reason: 1}


def test_at_most_so_many() -> None:
    kept, left_out = thin([counted(str(number)) for number in range(CHOSEN_MAX + 5)], CALL_TICKS, LONG_BATCH)
    assert len(kept) == CHOSEN_MAX
    assert sum(left_out.values()) == 5


def test_probes_cost_a_small_part_of_a_batch() -> None:
    batch_ticks = 20 * CALL_TICKS / COST_SHARE_MAX
    rows = [counted(str(number), per_batch=3) for number in range(30)]
    kept, _ = thin(rows, CALL_TICKS, batch_ticks)
    assert len(kept) == 6
    assert sum(row.per_batch for row in kept) * CALL_TICKS <= COST_SHARE_MAX * batch_ticks


def test_a_few_calls_are_worth_it_in_the_shortest_batch() -> None:
    kept, _ = thin([counted(str(number)) for number in range(30)], CALL_TICKS, 1.0)
    assert len(kept) == CALLS_ALWAYS


def test_a_dear_function_does_not_keep_cheap_ones_out() -> None:
    kept, left_out = thin([counted("a", 3, own=9), counted("b", 3, own=8), counted("c", own=7)], CALL_TICKS, 1.0)
    assert names(kept) == ["a", "c"]
    assert left_out == {"beyond what may be spent on a batch": 1}


def test_the_tally_tells_batches_from_the_rest() -> None:
    tally = Tally()
    calls = np.zeros(4, CALL)
    calls["function"] = 2, 2, 5, 2
    calls["batch"] = 0, NONE, 0, 0
    calls["flags"] = 0, 0, CallFlag.CLIPPED, 0
    calls["end_ticks"] = 10
    for _ in range(2):
        tally.add(Columns(calls, np.zeros(1, BATCH)))
    assert tally.batches == 2
    assert tally.in_batches.tolist() == [0, 0, 4, 0, 0, 2]
    assert tally.elsewhere.tolist() == [0, 0, 2, 0, 0, 0]
    assert tally.clipped.tolist() == [0, 0, 0, 0, 0, 2]
