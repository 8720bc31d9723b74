# SPDX-License-Identifier: Apache-2.0
"""What is made of the counters of calls: pairing, sums, reports, spans, on synthetic records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.base.columns import (
    CALL_COUNTERS,
    RECORD,
    CallFlag,
    Columns,
    CountersFlag,
    concatenate,
    counter_cost_rows,
)
from otel_nfprobe.counters.choice import Counter, CounterChoice
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.counters.namelist import COUNTERS_MAX, read_names
from otel_nfprobe.counters.sums import CounterSums, batch_counts
from otel_nfprobe.export.span import SpanEncoder
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.report.report import build_report
from otel_nfprobe.report.views.table import counter_rows, describe_batches
from tests.support.span_expectation import attributes_of, make_clock
from tests.support.synthetic_columns import START_TICKS, make_columns

ENTRY, EXIT, VALUE, MARK, COUNTERS = 0, 1, 4, 7, 32
BOTH = CountersFlag.VALID | CountersFlag.SELF_VALID


class Thread:
    """Writes the records of one thread with two counters, cycles and instructions."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int]] = []
        self.now = START_TICKS
        self.low = [0xFFFFFFF0, 100]
        self.lock = 10

    def work(self, cycles: int, instructions: int) -> None:
        self.low = [(self.low[0] + cycles) & 0xFFFFFFFF, (self.low[1] + instructions) & 0xFFFFFFFF]

    def read(self, rsp: int) -> None:
        self.records.append((self.low[0] | self.low[1] << 32, COUNTERS << 24 | self.lock, rsp))

    def add(self, kind: int, function: int, rsp: int, counted: bool = True) -> None:
        if counted:
            self.read(rsp)
        self.now += 100
        self.records.append((self.now, kind << 24 | function, rsp))

    def columns(self, pieces: int = 1, costs: Mapping[int, tuple[list[int], list[int]]] | None = None) -> Columns:
        rows = np.array(self.records, RECORD)
        taken = []
        with Pipeline(np.zeros(8, np.uint8)) as pipeline:
            pipeline.set_counter_costs(counter_cost_rows(costs or {}))
            for part in np.array_split(rows, pieces):
                pipeline.feed(0, part)
                taken.append(pipeline.take())
            pipeline.finish()
            taken.append(pipeline.take())
        return concatenate(taken)


def in_slots(*counts: int) -> list[int]:
    return [*counts, *[0] * (COUNTERS_MAX - len(counts))]


def by_function(columns: Columns) -> dict[int, np.void]:
    return {int(columns.calls["function"][row["call"]]): row for row in columns.counters}


def nested() -> Thread:
    thread = Thread()
    thread.add(ENTRY, 1, 8000)
    thread.work(1000, 500)
    thread.add(ENTRY, 2, 7000)
    thread.work(30, 20)
    thread.add(EXIT, 2, 7000)
    thread.work(5, 1)
    thread.add(EXIT, 1, 8000)
    return thread


@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 8])
def test_inclusive_and_self(pieces: int) -> None:
    """Also when a take comes between a reading and its record."""
    rows = by_function(nested().columns(pieces))
    assert rows[1]["inclusive"].tolist() == in_slots(1035, 521)
    assert rows[1]["self"].tolist() == in_slots(1005, 501)
    assert (rows[1]["inside"], rows[1]["flags"]) == (1, BOTH)
    assert rows[2]["self"].tolist() == rows[2]["inclusive"].tolist() == in_slots(30, 20)


def test_what_probes_count_is_taken_off() -> None:
    """Of a call what its own probe counts between its readings, of those around it all that a probe counts."""
    costs = {1: ([100, 10], [180, 25]), 2: ([7, 3], [20, 5]), 3: ([0, 0], [40, 1])}
    thread = Thread()
    thread.add(ENTRY, 1, 8000)
    thread.work(1000, 500)
    thread.add(ENTRY, 2, 7000)
    thread.work(30, 2)
    thread.add(MARK, 3, 6000)
    thread.add(EXIT, 2, 7000)
    thread.add(EXIT, 1, 8000)
    rows = by_function(thread.columns(costs=costs))
    assert set(rows) == {1, 2}
    assert rows[2]["inclusive"].tolist()[:2] == [0, 0]  # never below
    assert rows[1]["inclusive"].tolist()[:2] == [1030 - 100 - 20 - 40, 502 - 10 - 5 - 1]
    assert rows[1]["self"].tolist() == rows[1]["inclusive"].tolist()
    later = by_function(nested().columns(costs={2: ([10, 5], [20, 6]), 9: ([1], [1])}))
    assert later[2]["inclusive"].tolist()[:2] == [20, 15]
    assert later[1]["inclusive"].tolist()[:2] == [1015, 515]
    assert later[1]["self"].tolist()[:2] == [995, 500]


def test_a_switch_inside_spoils_what_is_around_it() -> None:
    thread = Thread()
    thread.add(ENTRY, 1, 8000)
    thread.add(ENTRY, 2, 7000)
    thread.lock += 2
    thread.add(EXIT, 2, 7000)
    thread.add(ENTRY, 3, 7000)
    thread.work(7, 3)
    thread.add(EXIT, 3, 7000)
    thread.add(EXIT, 1, 8000)
    rows = by_function(thread.columns())
    assert [int(rows[function]["flags"]) for function in (1, 2, 3)] == [0, 0, BOTH]


def test_a_call_that_was_not_counted_leaves_no_self() -> None:
    thread = Thread()
    thread.add(ENTRY, 1, 8000)
    thread.add(ENTRY, 2, 7000, counted=False)
    thread.work(50, 50)
    thread.add(EXIT, 2, 7000, counted=False)
    thread.add(EXIT, 1, 8000)
    rows = by_function(thread.columns())
    assert set(rows) == {1}
    assert (rows[1]["flags"], rows[1]["inclusive"][0]) == (CountersFlag.VALID, 50)


def test_readings_of_others_are_not_taken() -> None:
    thread = Thread()
    thread.add(ENTRY, 1, 8000)
    thread.read(8000)  # a signal handler came before the record: the probe has read once more
    thread.add(ENTRY, 3, 6000)
    thread.add(EXIT, 3, 6000)
    thread.read(8000)
    thread.add(VALUE, 1, 8000, counted=False)  # its readings are no exit's
    thread.add(EXIT, 1, 8000, counted=False)
    rows = by_function(thread.columns())
    assert int(rows[1]["flags"]) == 0
    assert int(rows[3]["flags"]) == BOTH


def test_sums_of_functions() -> None:
    sums = CounterSums(["cycles", "instructions"], [6, 1])
    thread = nested()
    thread.lock += 2
    thread.add(ENTRY, 2, 7000)
    thread.lock += 2
    thread.add(EXIT, 2, 7000)
    sums.add(thread.columns())
    sums.add(nested().columns())
    found = sums.of_function(1)
    assert found["cycles"] == {
        "total": 2 * 1035 * 6, "mean": 1035 * 6, "self": 2 * 1005 * 6, "calls": 2, "self_calls": 2, "invalid": 0,
        "probe": {"inside": 0, "whole": 0},
    }  # fmt: skip
    assert found["ipc"] == pytest.approx(521 / (1035 * 6))
    assert sums.of_function(2)["instructions"]["invalid"] == 1
    functions = sums.counted_functions()
    assert [(item.function, item.calls, item.invalid) for item in functions] == [(1, 2, 0), (2, 2, 1)]
    assert functions[0].counts == {"cycles": 2 * 1035 * 6, "instructions": 2 * 521}
    assert sums.of_function(5) == sums.of_function(99) == {}
    assert sums.count_calls() == {"calls": 4, "invalid_calls": 1}
    rows = counter_rows([{"name": "outer", "counters": found}, {"name": "none", "counters": {}}])
    assert rows[0] == ["counters per call", "counted", "not counted", "cycles", "instructions", "ipc"]
    assert rows[1] == ["outer", "2", "0", "6,210.0", "521.0", "0.084"]
    assert counter_rows([{"name": "none", "counters": {}}]) == []
    assert not sums.are_compensated
    sums.costs = counter_cost_rows({1: ([4], [9])})
    assert sums.are_compensated
    found = sums.of_function(1)
    assert found["cycles"]["probe"] == {"inside": 4 * 6, "whole": 9 * 6}
    assert counter_rows([{"name": "outer", "counters": found}])[0][0] == "counters per call, without the probes"


def test_report_of_a_recording(tmp_path: Path) -> None:
    """A recording holds raw readings, and what was to be taken off."""
    header = RecordingHeader(session="1", pid=7, settings={"counter_choice": "cycles*1,slots-all*6"})
    writer = RecordingWriter(tmp_path / "x.nfprobe", header)
    plain = FunctionInfo(0, 0, "/bin/nf", 0, 64, "", "symbol", "in-stack call")
    outer = replace(plain, id=1, name="outer", probe_inside_counts=(100, 10), probe_whole_counts=(150, 20))
    inner = replace(plain, id=2, name="inner", probe_inside_counts=(5, 1), probe_whole_counts=(9, 2))
    writer.functions([plain, outer, inner])
    writer.records(0, np.array(nested().records, RECORD))
    writer.finish({})
    found = {
        item["name"]: item["counters"] for item in build_report(RecordingReader(writer.path)).document["functions"]
    }
    assert (found["outer"]["cycles"]["total"], found["inner"]["cycles"]["total"]) == (1035 - 100 - 9, 30 - 5)
    assert found["outer"]["slots-all"]["self"] == 6 * ((521 - 10 - 2) - (20 - 1))
    assert found["inner"]["slots-all"]["probe"] == {"inside": 6, "whole": 12}


def counted_columns() -> Columns:
    columns = make_columns(40, batch_size=8)
    counters = np.zeros(len(columns.calls), CALL_COUNTERS)
    counters["call"] = np.arange(len(columns.calls))
    counters["inclusive"] = np.arange(1, COUNTERS_MAX + 1)
    counters["self"] = np.arange(1, COUNTERS_MAX + 1) * 100
    counters["flags"] = BOTH
    columns.counters = counters
    return columns


def test_batches_and_packets() -> None:
    columns = counted_columns()
    columns.calls["flags"][::7] |= np.uint16(CallFlag.RECEIVE)
    left_out = CallFlag.CLIPPED | CallFlag.MARK
    sums, counted = batch_counts(columns)
    for index, batch in enumerate(columns.batches):
        rows = columns.calls[int(batch["first_call"]) : int(batch["first_call"]) + int(batch["calls"])]
        special = (rows["flags"] & left_out) != 0
        outermost = [
            call
            for call, is_special in zip(rows, special, strict=True)
            if not is_special
            and (call["parent"] == 0xFFFFFFFF or (columns.calls[call["parent"]]["flags"] & left_out) != 0)
        ]
        assert sums[index].tolist() == [len(outermost) * number for number in range(1, COUNTERS_MAX + 1)]
        assert counted[index] == bool(outermost)
    whole = CounterSums(["a", "b"])
    whole.add(columns)
    found = whole.of_batches()
    assert found["a_per_packet"] == found["a"] / found["packets"]
    assert "per packet, divided over the packets of its batch: a " in describe_batches({"counters": found})
    columns.counters["flags"] = 0
    assert not batch_counts(columns)[1].any()


def test_batches_that_nothing_was_read_in() -> None:
    """They are no matter, whatever comes with the same take."""
    columns = counted_columns()
    columns.counters = columns.counters[columns.calls["batch"] < 3]
    whole = CounterSums(["a", "b"])
    whole.add(columns)
    found = whole.of_batches()
    assert 0 < found["batches"] + found["invalid_batches"] <= 3 < len(columns.batches)


def test_attributes_of_spans() -> None:
    columns = counted_columns()
    columns.counters["flags"][0::3] = 0
    columns.counters["flags"][1::3] = CountersFlag.VALID
    columns.counters = columns.counters[columns.counters["call"] % 5 != 4]  # these were not counted
    long = "cpu/" + "event=0xc2," * 30
    encoder = SpanEncoder({}, ["f"] * 20, 1, make_clock())
    encoder.set_counters([("cycles", 3), (long, 1)])
    selected = np.arange(len(columns.packets), dtype=np.uint32)
    seen = set()
    for request in encoder.encode(columns, selected, np.full(len(selected), 2, np.uint8)):
        message = ExportTraceServiceRequest.FromString(request.data)
        assert message.SerializeToString(deterministic=True) == request.data
        for span in message.resource_spans[0].scope_spans[0].spans:
            found = {
                key: value
                for key, value in attributes_of(list(span.attributes)).items()
                if key.startswith("nf.counter.")
            }
            seen.add(tuple(sorted((key if len(key) < 40 else key[-8:], value) for key, value in found.items())))
            assert all(len(key) <= 96 for key in found)
    assert () in seen
    assert (("nf.counter.invalid", True),) in seen
    cycles = {tuple(word for word in words if "cycles" in word[0]) for words in seen}
    assert (("nf.counter.cycles", 3),) in cycles
    assert (("nf.counter.cycles", 3), ("nf.counter.cycles.self", 300)) in cycles
    assert len(seen) == 4


def test_names_in_a_recording() -> None:
    made = CounterChoice(
        counters=(Counter("cpu/event=1,umask=2/", (Event(4),)), Counter("slots-all", (Event(4),), scale=6))
    )
    assert read_names(str(made)) == [("cpu/event=1,umask=2/", 1), ("slots-all", 6)]
    assert read_names("") == read_names(",") == read_names("cycles") == []
    assert str(CounterChoice()) == ""
