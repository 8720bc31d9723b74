# SPDX-License-Identifier: Apache-2.0
"""A made-up NF with several threads writes records and keeps its own books: the pipeline must agree.

Its threads nest calls, leave some by longjmp, receive, hand packets to each other, refuse, retry, drop
and forget them; the records are fed in random pieces, threads lagging behind each other. Noise must not
crash it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_nfprobe.base.columns import DROPPED, NONE, RECORD, TRANSMITTED, UNKNOWN, CallFlag, Columns, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from tests.support.marks import thorough
from tests.support.synthetic_records import (
    CALL,
    DROP,
    RECEIVE,
    TRANSMIT,
    Row,
    burst,
    entry,
    leave,
    poll,
    records,
    value,
)

ENGINE, RX, TX, DR, F, G, H = range(7)
ROLES = np.array([CALL, RECEIVE, TRANSMIT, DROP, CALL, CALL, CALL], np.uint8)
SEEDS = 800
EACH = SEEDS // 20
BATCHES_MAX = 50  # fewer than 64: no packet is given up for its age


@dataclass
class Batch:
    start: int
    size: int
    calls: list[tuple[int, int, int, bool]] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    handed: int = 0


@dataclass
class Thread:
    records: list[Row] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    outside: list[tuple[int, int, int, bool]] = field(default_factory=list)
    current: Batch | None = None
    queue: list[int] = field(default_factory=list)


class Nf:
    """The generator and its books. One step is one loop of one thread; time is a counter."""

    def __init__(self, rng: random.Random, threads: int, engine: bool, described: bool) -> None:
        self.rng = rng
        self.engine, self.described = engine, described
        self.threads = [Thread() for _ in range(threads)]
        self.now = 1000
        self.free = list(range(0x1000, 0x1000 + 64 * 400, 64))
        self.fate: dict[tuple[int, int], tuple[int, int, int]] = {}  # (receive ticks, buffer) -> fate
        self.received: dict[int, int] = {}  # buffer -> receive ticks
        self.abandoned = 0

    def tick(self) -> int:
        self.now += self.rng.randint(1, 9)
        return self.now

    def call(self, thread: Thread, rsp: int, depth: int) -> list[tuple[int, int, int, bool]]:
        """A random nest; returns its finished calls by their start."""
        function, start = self.rng.choice((F, G, H)), self.tick()
        thread.records.append(entry(function, start, rsp))
        inner: list[tuple[int, int, int, bool]] = []
        for _ in range(self.rng.choice((0, 0, 1, 2)) if depth < 4 else 0):
            inner += self.call(thread, rsp - 16 * self.rng.randint(1, 9), depth + 1)
        if depth and self.rng.random() < 0.1:
            self.abandoned += 1
            return inner
        end = self.tick()
        thread.records.append(leave(function, end, rsp))
        return [(function, start, end, False), *inner]

    def log(self, thread: Thread, calls: list[tuple[int, int, int, bool]]) -> None:
        (thread.current.calls if thread.current else thread.outside).extend(calls)

    def receive(self, thread: Thread, rsp: int) -> bool:
        start = self.tick()
        inner = self.call(thread, rsp - 64, 1) if self.rng.random() < 0.3 else []
        end = self.tick()
        count = min(self.rng.randint(0, 5), len(self.free))
        if not count or len(thread.batches) == BATCHES_MAX:
            self.log(thread, inner)
            return False
        batch = Batch(start, count, [(RX, start, end, False), *inner])
        batch.buffers = [self.free.pop(self.rng.randrange(len(self.free))) for _ in range(count)]
        thread.records += poll(RX, start, end, rsp, count)
        if self.described:
            thread.records += burst(RX, batch.buffers)
        for buffer in batch.buffers:
            self.received[buffer] = end
            self.fate[(end, buffer)] = (UNKNOWN, 0, NONE)
        thread.batches.append(batch)
        thread.current = batch
        thread.queue += batch.buffers
        return True

    def hand_on(self, thread: Thread, rsp: int) -> None:
        taken, thread.queue = thread.queue[:8], thread.queue[8:]
        function = self.rng.choice((TX, TX, TX, DR))
        start = self.tick()
        accepted = len(taken) if function == DR else self.rng.randint(0, len(taken))
        thread.records.append(entry(function, start, rsp))
        if self.described:
            thread.records += burst(function, taken)
        inner = self.call(thread, rsp - 64, 1) if self.rng.random() < 0.2 else []
        end = self.tick()
        thread.records += [value(function, accepted | len(taken) << 32, rsp), leave(function, end, rsp)]
        self.log(thread, [(function, start, end, False), *inner])
        for buffer in taken[:accepted]:
            disposition = DROPPED if function == DR else TRANSMITTED
            self.fate[(self.received[buffer], buffer)] = (disposition, end, function)
            self.free.append(buffer)
        if thread.current:
            thread.current.handed += accepted
        thread.queue = taken[accepted:] + thread.queue

    def step(self) -> None:
        thread = self.rng.choice(self.threads)
        rsp, engine_start = 0x7000, self.tick()
        if self.engine:
            thread.records.append(entry(ENGINE, engine_start, 0x8000))
        before = thread.current
        got = self.receive(thread, rsp)
        idle_at = len(before.calls if before else thread.outside) if not got else 0
        for _ in range(self.rng.randint(0, 2)):
            self.log(thread, self.call(thread, rsp, 0))
        self.shuffle_queues(thread)
        for _ in range(self.rng.randint(0, 2)):
            if thread.queue:
                self.hand_on(thread, rsp)
        if self.engine:
            self.end_engine(thread, engine_start, got, idle_at)

    def shuffle_queues(self, thread: Thread) -> None:
        """Hands packets to another thread, or forgets them as an NF does on a way that is not probed."""
        if thread.queue and self.rng.random() < 0.3:
            moved = thread.queue.pop()
            if self.rng.random() < 0.2:
                self.free.append(moved)
            else:
                self.rng.choice(self.threads).queue.append(moved)

    def end_engine(self, thread: Thread, start: int, got: bool, idle_at: int) -> None:
        end = self.tick()
        thread.records.append(leave(ENGINE, end, 0x8000))
        batch = thread.current
        if got and batch:
            batch.calls.insert(0, (ENGINE, batch.start, end, True))
            if batch.handed >= batch.size:
                thread.current = None
            return
        self.log(thread, [(ENGINE, start, end, False)])


def feed_in_rounds(nf: Nf, pipeline: Pipeline, rng: random.Random, steps: int) -> Columns:
    """Steps and takes; a thread is drained at least up to where it was when the round before began, or the NF did."""
    for thread in nf.threads:
        nf.log(thread, nf.call(thread, 0x7000, 0))
    fed, due = [0] * len(nf.threads), [len(thread.records) for thread in nf.threads]
    parts = []
    for _ in range(steps):
        nf.step()
        if rng.random() < 0.8:
            continue
        for index in rng.sample(range(len(nf.threads)), len(nf.threads)):
            rows = nf.threads[index].records
            until = rng.randint(max(due[index], fed[index]), len(rows))
            pipeline.feed(index, records(rows[fed[index] : until]))
            fed[index] = until
            if rng.random() < 0.3:
                parts.append(pipeline.take(is_part=True))
        due = [len(thread.records) for thread in nf.threads]
        parts.append(pipeline.take())
    for index, thread in enumerate(nf.threads):
        nf.log(thread, nf.call(thread, 0x7000, 0))  # shows that what lies below it was left
        pipeline.feed(index, records(thread.records[fed[index] :]))
    parts.append(pipeline.take())
    pipeline.finish()
    parts.append(pipeline.take())
    return concatenate(parts)


def rows_of(calls: np.ndarray) -> list[tuple[int, int, int, bool]]:
    rows = calls[["function", "start_ticks", "end_ticks", "flags"]].tolist()
    return sorted((f, start, end, bool(flags & CallFlag.CLIPPED)) for f, start, end, flags in rows)


def check_shape(columns: Columns) -> None:
    """Parents stand before their children and enclose them; own times add up."""
    calls = columns.calls
    own = (calls["end_ticks"] - calls["start_ticks"]).astype(np.int64)
    for index, call in enumerate(calls):
        if call["parent"] == NONE:
            assert call["depth"] == 0
            continue
        parent = calls[call["parent"]]
        assert call["parent"] < index
        assert parent["start_ticks"] <= call["start_ticks"] <= call["end_ticks"] <= parent["end_ticks"]
        assert (parent["batch"], parent["thread"]) == (call["batch"], call["thread"])
        assert call["depth"] == parent["depth"] + 1
        own[call["parent"]] -= int(call["end_ticks"] - call["start_ticks"])
    assert (own == calls["self_ticks"].astype(np.int64)).all()


def check_books(nf: Nf, columns: Columns) -> None:
    for index, thread in enumerate(nf.threads):
        of_thread = columns.batches[columns.batches["thread"] == index]
        of_thread = of_thread[np.argsort(of_thread["id"])]
        assert of_thread[["start_ticks", "size"]].tolist() == [(b.start, b.size) for b in thread.batches]
        for row, batch in zip(of_thread, thread.batches, strict=True):
            first, packet = int(row["first_call"]), int(row["first_packet"])
            calls = columns.calls[first : first + int(row["calls"])]
            assert rows_of(calls) == sorted(batch.calls)
            assert (np.diff(calls["start_ticks"].astype(np.int64)) >= 0).all()
            assert int(row["end_ticks"]) == max(end for _, _, end, _ in batch.calls)
            assert not nf.described or (
                columns.packets["buffer"][packet : packet + int(row["packets"])].tolist() == batch.buffers
            )
        outside = columns.calls[(columns.calls["batch"] == NONE) & (columns.calls["thread"] == index)]
        assert rows_of(outside) == sorted(thread.outside)


def check_packets(nf: Nf, columns: Columns) -> None:
    fields = ["receive_ticks", "buffer", "disposition", "done_ticks", "done_function"]
    got = {(row[0], row[1]): row[2:] for row in columns.packets[fields].tolist()}
    assert got == nf.fate


@pytest.mark.parametrize("first", [0, *thorough(*range(EACH, SEEDS, EACH))])
def test_pipeline_agrees_with_the_books(first: int) -> None:
    for seed in range(first, first + EACH):
        check_session(random.Random(seed))


def check_session(rng: random.Random) -> None:
    threads, engine, described, steps = rng.randint(1, 4), rng.random() < 0.5, rng.random() < 0.5, rng.randint(1, 120)
    nf = Nf(rng, threads, engine, described)
    with Pipeline(ROLES) as pipeline:
        columns = feed_in_rounds(nf, pipeline, rng, steps)
        counts = pipeline.counts()
    check_shape(columns)
    check_books(nf, columns)
    assert (counts.unpaired_entries + counts.open, counts.unpaired_exits) == (nf.abandoned, 0)
    assert (counts.invalid, counts.stray_packets, counts.generated, counts.pending) == (0, 0, 0, 0)
    fates = [fate for fate, _, _ in nf.fate.values()]
    assert counts.received == len(fates)
    assert (counts.transmitted, counts.dropped) == (fates.count(TRANSMITTED), fates.count(DROPPED))
    assert counts.unknown == fates.count(UNKNOWN)
    if described:
        check_packets(nf, columns)
    statistics = Statistics()
    statistics.add(columns)
    assert statistics.summary(Distribution.BATCH_SIZE)["total"] == counts.received


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=0, max_size=800)), max_size=12))
def test_noise_does_not_crash(chunks: list[tuple[int, bytes]]) -> None:
    with Pipeline(ROLES) as pipeline:
        for thread, data in chunks:
            rows = np.frombuffer(data[: len(data) // 16 * 16], RECORD).copy()
            rows["tag"] &= np.uint32(0x0F000007)
            pipeline.feed(thread, rows)
            check_shape_only(pipeline.take())
        pipeline.finish()
        check_shape_only(pipeline.take())
        assert pipeline.counts().records == sum(len(data) // 16 for _, data in chunks)


def check_shape_only(columns: Columns) -> None:
    assert (columns.calls["start_ticks"] <= columns.calls["end_ticks"]).all()
    assert (columns.calls["function"] < len(ROLES)).all()
    assert (columns.batches["first_call"] + columns.batches["calls"] <= len(columns.calls)).all()
