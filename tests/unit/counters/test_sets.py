# SPDX-License-Identifier: Apache-2.0
"""Counters that were changed while a session ran: which readings are compared, what is summed, what it is called."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.base.columns import (
    CALL_COUNTERS,
    COUNTER_COST,
    RECORD,
    CountersFlag,
    Rows,
    concatenate,
    counter_cost_rows,
)
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.counters.sets import CounterSet, SessionSums
from otel_nfprobe.counters.sums import CounterSums
from otel_nfprobe.export.span import SETS_KEPT, SpanEncoder
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.flightrecorder import FlightWriter
from otel_nfprobe.recording.recording import COUNTING, RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo
from otel_nfprobe.report.views.table import counter_rows
from otel_nfprobe.shm.control import AnswerError, Control, ask
from tests.support.span_expectation import attributes_of, make_clock
from tests.support.synthetic_columns import make_columns
from tests.unit.counters.test_sums import ENTRY, EXIT, Thread, by_function, counted_columns

VALID = CountersFlag.VALID
NO_COSTS = np.zeros(0, COUNTER_COST)


def call(thread: Thread, function: int, cycles: int, labels: tuple[int, int]) -> None:
    """A call whose readings say which counters they are of."""
    for kind, label in zip((ENTRY, EXIT), labels, strict=True):
        thread.lock = thread.lock % (1 << 18) | label << 18
        thread.add(kind, function, 8000)
        thread.work(cycles if kind == ENTRY else 0, 7)


@pytest.mark.parametrize(("number", "label"), [(1, 1), (63, 63), (64, 0), (65, 1)])
def test_readings_of_other_counters_are_left_out(number: int, label: int) -> None:
    """Late ones of the counters before, labelled as such, and calls that were open when they were changed."""
    thread, before = Thread(), (label - 1) % 64
    call(thread, 1, 10, (0, 0))
    thread.lock = 10
    thread.add(ENTRY, 2, 9000)  # open when they are changed
    first = len(thread.records)
    thread.add(EXIT, 2, 9000)
    call(thread, 3, 30, (before, before))
    call(thread, 4, 40, (before, label))
    call(thread, 5, 50, (label, before))
    call(thread, 6, 60, (label, label))
    rows = np.array(thread.records, RECORD)
    with Pipeline(np.zeros(8, np.uint8)) as pipeline:
        pipeline.feed(0, rows[:first])
        pipeline.set_counter_set(number, counter_cost_rows({6: ([5], [9])}))
        pipeline.feed(0, rows[first:])
        pipeline.finish()
        found = by_function(pipeline.take())
    judged = {function: (bool(row["flags"] & VALID), int(row["set"])) for function, row in found.items()}
    assert judged == {1: (True, 0), 2: (False, 0), 5: (False, number), 6: (True, number)}
    assert (found[1]["inclusive"][0], found[6]["inclusive"][0]) == (10, 55)


def counts(cycles: int, instructions: int, number: int, function: int = 0) -> Any:
    columns = make_columns(0)
    columns.calls = np.zeros(1, columns.calls.dtype)
    columns.calls["function"], columns.calls["batch"] = function, 0xFFFFFFFF
    columns.counters = np.zeros(1, CALL_COUNTERS)
    columns.counters["inclusive"][0, :2] = cycles, instructions
    columns.counters["flags"], columns.counters["set"] = VALID, number
    return columns


def test_sums_over_sets() -> None:
    """A counter's sum goes over all sets that have it, a ratio over those with both of its counters."""
    sums = SessionSums([CounterSet(0, (("cycles", 1), ("instructions", 1)), NO_COSTS)])
    sums.begin(CounterSet(1, (("cache-misses", 2), ("cycles", 1)), NO_COSTS))
    for columns in (counts(100, 50, 0), counts(100, 250, 0), counts(8, 1000, 1), counts(3, 3, 9)):
        sums.add(columns)
    found = sums.of_function(0)
    assert {name: found[name]["total"] for name in sums.names} == {
        "cycles": 1200,
        "instructions": 300,
        "cache-misses": 16,
    }
    assert (found["cycles"]["calls"], found["cycles"]["mean"], found["instructions"]["mean"]) == (3, 400, 150)
    assert found["ipc"] == 1.5  # of the 200 cycles that were counted with instructions
    assert sums.count_calls() == {"calls": 3, "invalid_calls": 0}
    late = SessionSums([CounterSet(1, (("cache-misses", 1),), NO_COSTS)])
    late.add(counts(8, 0, 1))
    rows = counter_rows([{"name": "f", "counters": found}, {"name": "late", "counters": late.of_function(0)}])
    assert rows[2] == ["late", "1", "0", "-", "-", "8.0", "-"]
    (item,) = sums.counted_functions()
    assert (item.calls, item.counts["cycles"]) == (3, 1200)


def test_batches_of_several_sets_in_one_take() -> None:
    """Each batch is judged once; one with calls of two sets was not counted."""
    columns = counted_columns()
    whole = CounterSums(["a", "b"])
    whole.add(columns)
    half = len(columns.batches) // 2
    columns.counters["set"] = np.where(columns.calls["batch"] < half, 0, 1)
    sums = SessionSums([CounterSet(0, (("a", 1), ("b", 1)), NO_COSTS), CounterSet(1, (("a", 1),), NO_COSTS)])
    sums.add(columns)
    found, expected = sums.of_batches(), whole.of_batches()
    for key in ("batches", "invalid_batches", "packets", "a", "a_per_packet"):
        assert found[key] == expected[key]
    assert 0 < found["b"] < expected["b"]
    assert found["b_per_packet"] == found["b"] / int(columns.batches["size"][:half].sum())
    columns.counters["set"] = np.arange(len(columns.counters)) % 2
    mixed = SessionSums([CounterSet(number, (("a", 1),), NO_COSTS) for number in (0, 1)])
    mixed.add(columns)
    judged = mixed.of_batches()
    assert judged["batches"] + judged["invalid_batches"] == len(columns.batches)
    assert judged["invalid_batches"] > expected["invalid_batches"]


def test_spans_have_the_names_of_their_set() -> None:
    columns = counted_columns()
    columns.counters["set"] = np.array([0, 70, 99])[np.arange(len(columns.counters)) % 3]
    encoder = SpanEncoder({}, ["f"] * 20, 1, make_clock())
    for number in range(71):
        encoder.set_counters([(f"c{number}", 1)], number)
    assert len(encoder._counters) == SETS_KEPT
    encoder.set_counters([("first", 1), ("second", 1)], 70)
    selected = np.arange(len(columns.packets), dtype=np.uint32)
    seen = set()
    for request in encoder.encode(columns, selected, np.full(len(selected), 2, np.uint8)):
        for span in ExportTraceServiceRequest.FromString(request.data).resource_spans[0].scope_spans[0].spans:
            found = attributes_of(list(span.attributes))
            seen.add(tuple(sorted(key for key in found if key.startswith("nf.counter."))))
    both = ("nf.counter.first", "nf.counter.first.self", "nf.counter.second", "nf.counter.second.self")
    assert seen == {(), both}  # those of set 0 are forgotten, and 99 never was


def test_recordings(tmp_path: Path) -> None:
    """What a recording says of changed counters, also one that was kept in memory and began after the change."""
    header = RecordingHeader(session="1", pid=7, settings={"counter_choice": "cycles*1"})
    sets = [CounterSet(number, ((f"c{number}", number),), costs(number)) for number in (1, 2)]
    whole = RecordingWriter(tmp_path / "whole.nfp", header)
    flight = FlightWriter(str(tmp_path / "flight.nfp"), header, seconds=0)
    for writer in (whole, flight):
        writer.functions([FunctionInfo(6, 0, "/bin/nf", 6, 64, "f", "", "")])
        writer.threads([ThreadInfo(0, 4711, "worker")])
        for counted in sets:
            thread = Thread()
            writer.counting(counted)
            call(thread, 6, 100, (counted.number, counted.number))
            writer.records(0, np.array(thread.records, RECORD))
            writer.flush()  # of a flight recorder: what came before is forgotten
    flight.ask()
    flight.complete()
    whole.finish({})
    flight.finish({})
    assert [(row["set"], row["inclusive"][0]) for row in replayed(whole.path)] == [(1, 99), (2, 98)]
    assert [(row["set"], row["inclusive"][0]) for row in replayed(flight.files[0])] == [(2, 98)]
    facts = read_facts(RecordingReader(whole.path))
    assert [counted.counters for counted in facts.counter_sets] == [(("cycles", 1),), (("c1", 1),), (("c2", 2),)]
    kinds = [block.type for block in RecordingReader(flight.files[0]).blocks()]
    assert kinds.count(COUNTING) == 2


def costs(number: int) -> Rows:
    return counter_cost_rows({6: ([number], [2 * number])})


def replayed(path: str) -> Rows:
    reader = RecordingReader(path)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        return concatenate(list(replay(reader, facts, pipeline))).counters


@contextmanager
def listening(inode: int) -> Iterator[Control]:
    def prepare(request: dict[str, Any]) -> int:
        if "wrong" in request:
            raise UsageError("That is wrong.", "nfprobe counters PID")
        return int(request["number"])

    control = Control(inode, prepare, lambda number: {"twice": 2 * number})
    try:
        yield control
    finally:
        control.close()


def test_control() -> None:
    """Requests wait for the thread that drains; what is refused, and what comes too late, has an answer."""
    inode = 0xFEED0000 + np.random.default_rng().integers(1 << 16)
    with listening(int(inode)) as control, pytest.raises(AnswerError, match="That is wrong") as refused:
        ask(int(inode), {"wrong": 1})
    assert refused.value.answer["status"] == 2
    del control
    with pytest.raises(OSError, match="refused"):
        ask(int(inode), {"number": 4})


def test_control_acts_in_the_thread_that_steps() -> None:
    inode = 0xFEEE0000 + int(np.random.default_rng().integers(1 << 16))
    answers: list[Any] = []

    def talk(number: int) -> None:
        try:
            answers.append(ask(inode, {"number": number}))
        except (AnswerError, NfprobeError) as error:
            answers.append(str(error))

    with listening(inode) as control:
        talking = threading.Thread(target=talk, args=(4,))
        talking.start()
        while talking.is_alive():
            control.step()
        late = threading.Thread(target=talk, args=(5,))
        late.start()
        while control._asked.empty():
            pass
    late.join()
    assert answers == [{"twice": 8}, "The session is ending."]
