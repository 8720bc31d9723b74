# SPDX-License-Identifier: Apache-2.0
"""Threads that come and go beside many that stay: each stream holds one thread's records after the other's, whole.

The oracle is the target's: each call is handed its thread's number and its own, so it is known of each captured value
whose it is and which one comes next.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import CallFlag, Columns
from tests.integration.test_snippets import Captured
from tests.support.probed import Talker

pytestmark = pytest.mark.integration

CAPTURE = "thread_storm*:note: mov rax, rdi"
LIVING, BRIEF_PER_SECOND = 500, 1000
TURNS_PER_SECOND, CALLS = 20, 5
BRIEF_CALLS = 20
END_S = 60.0  # a session that does not end at all is meant, not a slow machine
FREE_FOR_S = 0.25  # the free part of the thread table lasts for twice as long at this rate
SEQUENCE = (1 << 32) - 1


class Streams:
    """What became of the calls: whose they are, by stream.

    Attributes:
        mixed: threads of whom something was found behind the records of another one, or in two streams.
        gaps: calls that are missing between two of one thread.
        runs: first and last call of each thread, by its number.
    """

    def __init__(self) -> None:
        self.mixed: list[int] = []
        self.gaps = 0
        self.runs: dict[int, tuple[int, int]] = {}
        self._now: dict[int, int] = {}  # the thread that each stream is of

    def add(self, columns: Columns) -> None:
        """The calls of one take."""
        calls = columns.calls[(columns.calls["flags"] & CallFlag.VALUE) != 0]
        calls = calls[np.lexsort((calls["start_ticks"], calls["thread"]))]
        streams, numbers = calls["thread"].astype(np.int64), (calls["value"] >> np.uint64(32)).astype(np.int64)
        sequence = (calls["value"] & np.uint64(SEQUENCE)).astype(np.int64)
        same = (streams[1:] == streams[:-1]) & (numbers[1:] == numbers[:-1])
        self.gaps += int((np.diff(sequence)[same] != 1).sum())
        edges = np.flatnonzero(np.concatenate(([True], ~same, [True]))) if len(calls) else np.zeros(0, np.int64)
        for first, behind in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            self._add_run(int(streams[first]), int(numbers[first]), int(sequence[first]), int(sequence[behind - 1]))

    def _add_run(self, stream: int, number: int, first: int, last: int) -> None:
        if number not in self.runs:
            self.runs[number] = first, last
        elif self._now.get(stream) != number:
            self.mixed.append(number)
        else:
            self.gaps += first != self.runs[number][1] + 1
            self.runs[number] = self.runs[number][0], last
        self._now[stream] = number


class Storm(Captured):
    """A session on the storm that looks at every call, and keeps none."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid, [CAPTURE], ring_bytes=256 << 10)
        self.streams = Streams()
        self.longest_pause_s = 0.0

    def __enter__(self) -> Storm:
        super().__enter__()
        statistics, drain = self.monitor.drain.statistics, self.monitor.drain
        add, round_ = type(statistics).add, drain.round
        before = time.monotonic()

        def look(columns: Columns) -> None:
            self.streams.add(columns)
            add(statistics, columns)

        def take_turn() -> int:
            nonlocal before
            now = time.monotonic()
            self.longest_pause_s, before = max(self.longest_pause_s, now - before), now
            return round_()

        statistics.add = look  # type: ignore[method-assign]
        drain.round = take_turn  # type: ignore[method-assign]
        return self


@pytest.fixture
def storm(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    words = LIVING, TURNS_PER_SECOND, CALLS, BRIEF_PER_SECOND, BRIEF_CALLS
    return Talker(spawn(compile_target("thread_storm"), *words, stdin=subprocess.PIPE))


def watch(storm: Talker, seconds: float) -> None:
    with Storm(storm.pid) as session:
        began = int(storm.ask("made"))
        time.sleep(seconds)
        ended = int(storm.ask("calm"))
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < END_S
    streams = session.streams
    brief = [streams.runs.get(number) for number in range(began + 1, ended + 1)]
    whole = brief.count((0, BRIEF_CALLS - 1))
    print(
        f"{len(brief)} threads came and went, {whole} were seen whole; {session.unregistered} records were lost for"
        f" want of a ring; the longest pause of the monitor took {session.longest_pause_s:.3f} s"
    )
    assert streams.mixed == []
    assert session.lost == (0, 0, 0)  # no ring was ever full
    assert streams.gaps == 0
    assert len(brief) > 100
    if session.longest_pause_s < FREE_FOR_S:
        assert session.unregistered == (0, 0, 0)
    if session.unregistered == (0, 0, 0):
        assert whole == len(brief)
        assert session.torn == 0
        assert (session.counts.unpaired_entries, session.counts.unpaired_exits) == (0, 0)
    assert session.not_restored == []


def test_storm(storm: Talker) -> None:
    watch(storm, 20)


@pytest.mark.long
def test_long_storm(storm: Talker) -> None:
    watch(storm, 600)


def test_more_living_threads_than_entries(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """Those without an entry lose their records, counted; the others lose nothing, and get no second thread."""
    crowd = Talker(spawn(compile_target("thread_storm"), 1100, 5, 2, 100, BRIEF_CALLS, stdin=subprocess.PIPE))
    with Storm(crowd.pid) as session:
        time.sleep(3)
    assert session.streams.mixed == []
    assert (session.lost, session.streams.gaps) == ((0, 0, 0), 0)
    assert session.unregistered[0] > 0
    assert len(session.streams.runs) >= 1024
    assert crowd.ask("stop")
