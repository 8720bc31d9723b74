# SPDX-License-Identifier: Apache-2.0
"""Samples: joined to calls as a plain search does it, named by their places, opened where the kernel allows it."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from otel_nfprobe.base.clock import Clock, ClockPair
from otel_nfprobe.base.columns import CALL, NONE
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.profiling.profiler import HARDWARE, SOURCES, Placing, Profiler, Source, record_dtype
from otel_nfprobe.profiling.samples import SAMPLE, AddressNames, AddressRange, SampleFlag, describe_samples, find_calls

CLOCK = Clock.from_pairs([ClockPair(0, 0, 1), ClockPair(1000, 1000, 1)])


def nested_calls(random: np.random.Generator, room: int, depth: int = 0) -> list[tuple[int, int, int]]:
    """(start, end, depth) of calls in [0, room), each around some others."""
    found, at = [], 0
    while at < room - 4:
        start = at + int(random.integers(0, 5))
        end = min(room, start + 1 + int(random.integers(1, max(2, room // 2))))
        if end <= start:
            break
        found.append((start, end, depth))
        if depth < 5:
            found += [(start + s, start + e, d) for s, e, d in nested_calls(random, end - start, depth + 1)]
        at = end
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_innermost_call_as_a_plain_search_finds_it(seed: int) -> None:
    random = np.random.default_rng(seed)
    spans = sorted(nested_calls(random, 200), key=lambda span: (span[0], span[2]))
    calls = np.zeros(len(spans), CALL)
    for row, (start, end, depth) in zip(calls, spans, strict=True):
        row["start_ticks"], row["end_ticks"], row["depth"] = start, end, depth
    for index, (start, _, depth) in enumerate(spans):
        above = [i for i in range(index) if spans[i][2] == depth - 1 and spans[i][0] <= start < spans[i][1]]
        calls["parent"][index] = above[-1] if above else NONE
    ticks = np.arange(210, dtype=np.uint64)
    expected = [max((i for i, (s, e, _) in enumerate(spans) if s <= t < e), default=-1) for t in range(210)]
    assert find_calls(calls, ticks).tolist() == expected


def test_no_calls_hold_nothing() -> None:
    assert find_calls(np.empty(0, CALL), np.array([1, 2], np.uint64)).tolist() == [-1, -1]


def test_names_of_addresses() -> None:
    names = AddressNames(
        [
            AddressRange(0x1000, 0x1000, "/lib/far.so", 0x400, ""),
            AddressRange(0x1100, 0x10, "/lib/far.so", 0x500, "work"),
            AddressRange(0x1100, 0x20, "/lib/far.so", 0x500, "work2"),  # a later one holds
            AddressRange(0x3000, 0x10, "[vdso]", 0, ""),
            AddressRange(0xFFFFFFFF81000000, 0x10, "[kernel]", 0, "do_it"),
        ]
    )
    asked = {0x1100: "work2", 0x111F: "work2", 0x1120: "far.so+0x520", 0x3001: "[vdso]", 0x5000: "[unknown]"}
    assert {address: names.name(address, False) for address in asked} == asked
    assert names.name(0xFFFFFFFF81000001, True) == "do_it_[k]"
    assert names.name(0xFFFFFFFF91000001, True) == "[kernel]"
    assert AddressNames([]).name(1, False) == "[unknown]"


class Kernel:
    """Opens what it is told to allow."""

    def __init__(self, allowed: Source | None, number: int = errno.ENOENT) -> None:
        self.allowed, self.number = allowed, number
        self.asked: list[Source] = []

    def __call__(self, source: Source, hertz: int, placing: Placing) -> int:
        assert (hertz, placing) == (99, Placing(1234))
        self.asked.append(source)
        if source == self.allowed:
            raise ProcessLookupError(errno.ESRCH, "No such process")  # so that nothing needs to be mapped
        raise OSError(self.number, os.strerror(self.number))


def test_the_most_precise_event_is_asked_for_first() -> None:
    names = [source.name for source in SOURCES]
    assert names == [
        *("cycles:ppp", "cycles:uppp", "cycles:pp", "cycles:upp", "cycles:p", "cycles:up", "cycles", "cycles:u"),
        *("cpu-clock", "cpu-clock:u"),
    ]
    for index, source in enumerate(SOURCES):
        kernel = Kernel(source)
        Profiler(CLOCK, 99, lambda tid: True, open_one=kernel).watch([1234])
        assert kernel.asked == list(SOURCES[: index + 1])


def test_a_refusal_is_one_sentence() -> None:
    with pytest.raises(NfprobeError) as refused:
        Profiler(CLOCK, 99, lambda tid: True, open_one=Kernel(None, errno.EACCES)).watch([1234])
    assert refused.value.sentence == "Profiling failed: perf_event_open says Permission denied."
    assert refused.value.next_command


def test_flags_say_what_was_seen() -> None:
    profiler = Profiler(CLOCK, 99, lambda tid: True)
    events = np.zeros(3, record_dtype(0))
    events["misc"] = [2, 2 | 1 << 14, 1]  # user; user, exact; kernel
    events["period"] = [5, 1 << 40, 7]
    rows = profiler._describe(events, 3, Source(HARDWARE, 2, False))
    assert rows["flags"].tolist() == [
        SampleFlag.HARDWARE,
        SampleFlag.HARDWARE | SampleFlag.PRECISE,
        SampleFlag.HARDWARE | SampleFlag.IN_KERNEL,
    ]
    assert rows["period"].tolist() == [5, 0xFFFFFFFF, 7]
    assert describe_samples(rows) == {"event": "cycles", "samples": 3, "precise": 1, "in_kernel": 1}
    assert describe_samples(np.empty(0, SAMPLE)) is None
