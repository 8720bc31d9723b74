# SPDX-License-Identifier: Apache-2.0
"""The threshold of `--detail auto`: it follows the slowest batches, never above the age that was given."""

from __future__ import annotations

import types
from typing import Any, cast

import pytest

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Columns
from otel_nfprobe.monitor.detail import Detail, choose_detail, find_ages, follow_slow_batches
from otel_nfprobe.shm.session import GATE_AUTO, Session
from tests.support.synthetic_records import DR, TX
from tests.unit.monitor.test_latecapture import hand_on, receiver, run


def batches_of(ages: list[int]) -> Columns:
    """Batches of these ages in ticks; each is transmitted and then dropped in part."""
    rows = []
    for number, age in enumerate(ages):
        start = 10_000 * (number + 1)
        rows += [*receiver(start, 4), *hand_on(start + 20, start + 40, 3, [])]
        rows += hand_on(start + 50, start + age, 1, [], DR if number % 2 else TX)
    return run(rows)[0]


def session_of() -> Any:
    return types.SimpleNamespace(header=types.SimpleNamespace(detail_slow_ticks=0, detail_one_in=0))


def test_a_batch_is_as_old_as_its_last_call() -> None:
    assert find_ages(batches_of([100, 900, 300])).tolist() == [100, 900, 300]
    assert find_ages(run(receiver(1000, 4))[0]).tolist() == []  # it was not handed on


@pytest.mark.parametrize(("given_ns", "least", "most"), [(None, 200, 9000), (5_000, 200, 5000), (150, 150, 150)])
def test_the_threshold_follows(given_ns: int | None, least: int, most: int) -> None:
    session, clock = session_of(), cast(Clock, types.SimpleNamespace(find_ticks=lambda ns: ns))
    detail = Detail(given_ns, 0.02)
    assert choose_detail(cast(Session, session), detail, clock) == GATE_AUTO
    follower = follow_slow_batches(cast(Session, session), detail)
    assert follower is not None
    assert session.header.detail_slow_ticks == (given_ns or 0)
    follower.add(batches_of([100] * 50 + [200] * 48 + [9000] * 2))
    assert least <= session.header.detail_slow_ticks <= most


def test_without_a_share_it_stays() -> None:
    assert follow_slow_batches(cast(Session, session_of()), Detail(5_000)) is None
    assert follow_slow_batches(cast(Session, session_of()), None) is None
