# SPDX-License-Identifier: Apache-2.0
"""Readings of receive calls: theirs only, whole, and counted in their batches where a recording has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import RECORD, CallFlag, CountersFlag
from otel_nfprobe.counters.sets import CounterSet, SessionSums
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.report.report import build_report
from tests.unit.counters.test_sums import BOTH, COUNTERS, ENTRY, EXIT, MARK, Thread, by_function, nested

POLL_ENTRY, POLL_EXIT, LOST, POLL_QUEUE = 2, 3, 5, 16
RECEIVE, RSP = 4, 9000
Costs = Mapping[int, tuple[list[int], list[int]]]


@dataclass
class Open:
    """A receive call that has not returned: when it began, and what was read then."""

    start: int
    reading: tuple[int, int, int]


class Receiving(Thread):
    """As Thread, with receive calls, whose records come when they return."""

    def begin(self) -> Open:
        self.now += 100
        return Open(self.now, (self.low[0] | self.low[1] << 32, COUNTERS << 24 | self.lock, RSP))

    def end(self, call: Open, packets: int = 4, at_entry: bool = True, at_exit: bool = True, rsp: int = RSP) -> None:
        self.now += 100
        self.records += [(*call.reading[:2], rsp)] if at_entry else []
        self.records.append((call.start, POLL_ENTRY << 24 | RECEIVE, RSP))
        self.records.append((call.start, POLL_QUEUE << 24 | RECEIVE, 7))
        if at_exit:
            self.read(rsp)
        self.records.append((self.now, POLL_EXIT << 24 | RECEIVE, packets | 32 << 16))


def received(**how: bool | int) -> Receiving:
    """A receive call with a call and a mark inside; then a call of its batch."""
    thread = Receiving()
    receive(thread, **how)
    return thread


def receive(thread: Receiving, **how: bool | int) -> None:
    call = thread.begin()
    thread.work(300, 200)
    thread.add(ENTRY, 2, 7000)
    thread.work(30, 20)
    thread.add(EXIT, 2, 7000)
    thread.add(MARK, 3, 7000)
    thread.work(5, 1)
    thread.end(call, **how)  # type: ignore[arg-type]
    thread.add(ENTRY, 1, 8000)
    thread.work(1000, 500)
    thread.add(EXIT, 1, 8000)


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 13])
def test_receive_call(pieces: int) -> None:
    """Inclusive and self; not counted where calls inside it were given away before it was known."""
    columns = received().columns(pieces)
    rows = by_function(columns)
    assert rows[1]["inclusive"].tolist()[:2] == [1000, 500]
    row = rows[RECEIVE]
    assert columns.calls["flags"][row["call"]] & CallFlag.RECEIVE
    if row["flags"]:
        assert row["flags"] == BOTH
        assert row["inclusive"].tolist()[:2] == [335, 221]
        assert row["self"].tolist()[:2] == [305, 201]
        assert row["inside"] == 1
    assert bool(row["flags"]) == (pieces < 3)


def test_what_probes_count_is_taken_off() -> None:
    costs: Costs = {2: ([7, 3], [20, 5]), 3: ([0, 0], [40, 1]), RECEIVE: ([100, 10], [500, 300])}
    rows = by_function(received().columns(costs=costs))
    assert rows[RECEIVE]["inclusive"].tolist()[:2] == [335 - 100 - 20 - 40, 221 - 10 - 5 - 1]
    assert rows[RECEIVE]["self"].tolist()[:2] == [175 - 23, 205 - 17]
    assert rows[1]["inclusive"].tolist()[:2] == [1000, 500]


@pytest.mark.parametrize("how", [{"at_exit": False}, {"rsp": RSP + 16}, {"at_entry": False}])
def test_readings_of_one_end(how: dict[str, bool | int]) -> None:
    """Counters began or ended meanwhile, or the readings are another call's."""
    rows = by_function(received(**how).columns())
    assert rows[1]["flags"] == BOTH
    assert RECEIVE not in rows or not rows[RECEIVE]["flags"]
    assert (RECEIVE in rows) == ("at_exit" in how)


def test_lost_records() -> None:
    """Of calls that may have been inside: the next receive call is not counted, the one after it is."""
    thread = received()
    calls = [thread.begin()]
    thread.records.append((3, LOST << 24, 0))
    thread.end(calls[0])
    thread.end(thread.begin())
    columns = thread.columns()
    rows = columns.counters[columns.calls["function"][columns.counters["call"]] == RECEIVE]
    assert [bool(row["flags"]) for row in rows] == [True, False, True]


def test_a_lost_receive_call() -> None:
    """What its probe counted in the call around it is not known."""
    thread = Receiving()
    thread.add(ENTRY, 1, 9500)
    thread.records.append((3, LOST << 24, 2))
    thread.add(EXIT, 1, 9500)
    thread.add(ENTRY, 1, 9500)
    thread.add(EXIT, 1, 9500)
    assert [bool(row["flags"]) for row in thread.columns().counters] == [False, True]


def test_a_call_inside_was_not_counted() -> None:
    thread = Receiving()
    call = thread.begin()
    thread.add(ENTRY, 2, 7000)
    thread.lock += 2
    thread.add(EXIT, 2, 7000)
    thread.lock -= 2
    thread.work(10, 10)
    thread.end(call)
    row = by_function(thread.columns())[RECEIVE]
    assert row["flags"] == CountersFlag.VALID
    assert row["inclusive"].tolist()[:2] == [10, 10]


def test_more_calls_inside_than_are_kept() -> None:
    """They are given away before the receive call returns: what their probes counted is not known any more."""
    for inside in (3000, 6000):
        thread = Receiving()
        call = thread.begin()
        for _ in range(inside):
            thread.add(ENTRY, 2, 7000)
            thread.work(2, 1)
            thread.add(EXIT, 2, 7000)
        thread.end(call)
        columns = thread.columns(costs={2: ([1, 0], [1, 0])})
        row = columns.counters[columns.calls["function"][columns.counters["call"]] == RECEIVE][0]
        assert bool(row["flags"]) == (inside < 4096)
        if row["flags"]:
            assert row["inclusive"].tolist()[:2] == [inside, inside]


def test_batches_of_a_recording(tmp_path: Path) -> None:
    """A batch counts its receive call."""
    settings = {"counter_choice": "cycles*1,instructions*1"}
    writer = RecordingWriter(tmp_path / "x.nfprobe", RecordingHeader(session="1", pid=7, settings=settings))
    plain = FunctionInfo(0, 0, "/bin/nf", 0, 64, "", "symbol", "in-stack call")
    writer.functions([replace(plain, id=id, name=f"f{id}", role=int(id == RECEIVE)) for id in range(5)])
    thread = received()
    writer.records(0, np.array(thread.records, RECORD))
    writer.finish({})
    found = build_report(RecordingReader(writer.path)).document["batches"]["counters"]
    expected = 1000 + 335
    assert (found["batches"], found["cycles"], found["cycles_per_packet"]) == (1, expected, expected / 4)
    assert found["invalid_batches"] == 0
    sums = SessionSums([CounterSet(0, (("cycles", 1), ("instructions", 1)), np.zeros(0))])
    sums.add(thread.columns())
    assert sums.of_batches()["cycles"] == expected


def test_batches_without_readings_are_no_matter() -> None:
    """Also where others come with the same take."""
    thread = Receiving()
    thread.end(thread.begin(), at_entry=False, at_exit=False)
    thread.add(ENTRY, 1, 8000, counted=False)
    thread.add(EXIT, 1, 8000, counted=False)
    receive(thread)
    sums = SessionSums([CounterSet(0, (("cycles", 1),), np.zeros(0))])
    sums.add(thread.columns())
    found = sums.of_batches()
    assert (found["batches"], found["invalid_batches"], found["packets"]) == (1, 0, 4)
    sums.add(nested().columns())
    assert sums.of_batches() == found  # these calls are in none
