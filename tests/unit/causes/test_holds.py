# SPDX-License-Identifier: Apache-2.0
"""One thread that keeps all others from running: holds out of records, and packets that waited for their end."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE, RECORD, Columns, Rows, concatenate
from otel_nfprobe.base.holdrows import HOLD, join_holds
from otel_nfprobe.causes.holds import add_held, describe_hold, find_longest, hold_threads
from otel_nfprobe.pipeline.absences import ABSENCE, AbsenceFlag
from otel_nfprobe.pipeline.pipeline import Pipeline

COMMAND, SYNC, RELEASE = 0, 1, 2
ROLES = np.array([lib.NFP_ROLE_COMMAND, lib.NFP_ROLE_HOLD, lib.NFP_ROLE_RELEASE], np.uint8)
ENTRY, EXIT, PACKET, ID, TOPIC, TEXT, LOST = 0, 1, 8, 9, 24, 25, 5
LOST_CALL = 0  # class of lost records
LINE = b"ip route add 10.0.0.0/8\x07"


class Writer:
    """Records of one thread."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []

    def put(self, kind: int, function: int, word: int, rsp: int = 0) -> None:
        self._rows.append((word, function | kind << 24, rsp))

    def enter(self, function: int, ticks: int, rsp: int, text: bytes = b"") -> None:
        """A call, with its text."""
        self.put(ENTRY, function, ticks, rsp)
        if not text:
            return
        self.put(PACKET, function, 0x1000)
        self.put(ID, function, hash(text) & (1 << 63) - 1, 15 << 24)
        self.put(TOPIC, function, 0, len(text))
        for place in range(0, len(text), 12):
            piece = text[place : place + 12].ljust(12, b"\0")
            self.put(TEXT, function, int.from_bytes(piece[:8], "little"), int.from_bytes(piece[8:], "little"))

    def records(self) -> Rows:
        return np.array(self._rows, RECORD)


def feed(writer: Writer) -> Columns:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, writer.records())
        columns = concatenate([pipeline.take(), pipeline.take()])
        counts = pipeline.counts()
        assert (counts.invalid, counts.stray_packets) == (0, 0)
        return columns


def test_a_hold_has_the_text_of_its_command() -> None:
    writer = Writer()
    writer.enter(COMMAND, 100, 0x9000, LINE)
    writer.enter(SYNC, 110, 0x8000, b"load_balance_create")
    writer.put(EXIT, SYNC, 120, 0x8000)
    writer.enter(SYNC, 121, 0x7000, b"inside")  # once more: nothing changes
    writer.put(EXIT, SYNC, 122, 0x7000)
    writer.enter(RELEASE, 123, 0x7000)
    writer.put(EXIT, RELEASE, 124, 0x7000)
    writer.enter(RELEASE, 130, 0x8000)
    writer.put(EXIT, RELEASE, 140, 0x8000)
    writer.put(EXIT, COMMAND, 150, 0x9000)
    (hold,) = feed(writer).holds
    assert (hold["start_ticks"], hold["held_ticks"], hold["end_ticks"], hold["function"]) == (110, 120, 140, SYNC)
    assert describe_hold(hold) == "ip route add 10.0.0.0/8?"


def test_a_hold_without_command_has_its_own_text() -> None:
    """And one of a command on another stack, far away, too."""
    writer = Writer()
    writer.enter(COMMAND, 90, 0x900000, LINE)
    for ticks in (100, 200):
        writer.enter(SYNC, ticks, 0x8000, b"vl_msg_api_barrier_sync")
        writer.put(EXIT, SYNC, ticks + 1, 0x8000)
        writer.enter(RELEASE, ticks + 10, 0x8000)
        writer.put(EXIT, RELEASE, ticks + 11, 0x8000)
    holds = feed(writer).holds
    assert [describe_hold(hold) for hold in holds] == ["vl_msg_api_barrier_sync"] * 2
    assert holds["end_ticks"].tolist() == [111, 211]


def test_lost_records_hold_nobody_for_ever() -> None:
    writer = Writer()
    writer.enter(SYNC, 100, 0x8000, b"a")
    writer.put(EXIT, SYNC, 101, 0x8000)
    writer.put(LOST, 0, 5, LOST_CALL)
    writer.enter(RELEASE, 190, 0x8000)
    writer.put(EXIT, RELEASE, 191, 0x8000)
    writer.enter(SYNC, 200, 0x8000, b"b")
    writer.put(EXIT, SYNC, 201, 0x8000)
    writer.enter(RELEASE, 210, 0x8000)
    writer.put(EXIT, RELEASE, 211, 0x8000)
    (hold,) = feed(writer).holds
    assert (hold["start_ticks"], describe_hold(hold)) == (200, "b")


def test_the_last_holds_are_given_with_each_take() -> None:
    writer = Writer()
    for ticks in range(100, 100 + 20 * 300, 20):
        writer.enter(SYNC, ticks, 0x8000)
        writer.put(EXIT, SYNC, ticks + 1, 0x8000)
        writer.enter(RELEASE, ticks + 10, 0x8000)
        writer.put(EXIT, RELEASE, ticks + 11, 0x8000)
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, writer.records())
        first, second = pipeline.take(), pipeline.take()
    assert (len(first.holds), len(second.holds)) == (256, 32)
    assert second.holds["end_ticks"].tolist() == first.holds["end_ticks"][-32:].tolist()
    assert len(concatenate([first, second]).holds) == 256


def make_holds(*rows: tuple[int, int, int]) -> Rows:
    holds = np.zeros(len(rows), HOLD)
    for name, column in zip(("start_ticks", "held_ticks", "end_ticks"), zip(*rows, strict=True), strict=True):
        holds[name] = column
    holds["thread"] = 9
    return holds


def switch(*rows: tuple[int, int]) -> Rows:
    absences = np.zeros(len(rows), ABSENCE)
    absences["out_ticks"], absences["in_ticks"] = zip(*rows, strict=True)
    absences["thread"], absences["flags"] = 1, AbsenceFlag.PREEMPTED
    return absences


def spans(rows: Rows) -> list[tuple[int, int]]:
    order: Any = np.argsort(rows["out_ticks"])
    return list(zip(rows["out_ticks"][order].tolist(), rows["in_ticks"][order].tolist(), strict=True))


def test_a_thread_stands_still_from_the_end_of_its_last_batch_to_its_next() -> None:
    holds = make_holds((100, 150, 200), (400, 420, 500))
    starts, ends = np.array([50, 130, 195, 300]), np.array([90, 140, 250, 390])
    assert spans(hold_threads(holds, 1, starts, ends)) == [(140, 195), (400, 500)]
    assert spans(hold_threads(holds, 1, np.array([], np.int64), np.array([], np.int64))) == [(100, 200), (400, 500)]
    assert spans(hold_threads(holds, 9, starts, ends)) == []  # it is the one that holds the others


def test_what_the_scheduler_did_meanwhile_counts_once() -> None:
    held = hold_threads(make_holds((100, 100, 200)), 1, np.array([], np.int64), np.array([], np.int64))
    both = add_held(switch((50, 60), (90, 120), (150, 160), (180, 250), (300, 310)), held)
    assert spans(both) == [(50, 60), (90, 100), (100, 200), (200, 250), (300, 310)]


def test_the_longest_hold() -> None:
    holds = make_holds((100, 100, 200), (300, 310, 350))
    assert [find_longest(holds, *times) for times in ((0, 1000), (180, 400), (210, 290))] == [0, 1, -1]
    assert find_longest(join_holds([]), 0, NONE) == -1
