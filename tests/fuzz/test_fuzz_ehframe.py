# SPDX-License-Identifier: Apache-2.0
"""Damaged .eh_frame sections: frames and rules, or a FrameError; in time that grows with the section only.

NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_ehframe.py reads more of them.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from otel_nfprobe.base.processors import X86_64
from otel_nfprobe.elf.cursor import FrameError
from otel_nfprobe.elf.ehframe import ENTRY_BYTES, EXPRESSION, FrameTable, parse_frames
from tests.fuzz.mutate import Layout, mutate_frames
from tests.fuzz.seeds import seeds

LIBZ = next(Path("/lib").glob("*/libz.so.1"))
ADDRESS = 0x1A000
CASE_SECONDS = 20  # of processor time: a loop that never ends takes longer on any machine


def _section() -> bytes:
    data = LIBZ.read_bytes()
    offset, size = Layout(data).frames
    assert size > 1000
    return data[offset : offset + size]


def _walk(table: FrameTable) -> int:
    """Asks for everything. Returns the number of frames whose rules are right."""
    usable, end = 0, 0
    for frame in table.frames:
        assert frame.start >= end
        end = frame.start + frame.size
        assert table.find(frame.start) is frame
        with suppress(FrameError):
            rules = frame.rules()
            assert rules == frame._run(frame.common.initial_state(), None)  # the C core's rows, and the other way
            near = tuple(row for row in rules.rows if row.address <= frame.start + ENTRY_BYTES)
            assert frame.rules(frame.start + ENTRY_BYTES).rows == near
            rows = rules.rows
            addresses = [row.address for row in rows]
            assert addresses == sorted(set(addresses))
            assert addresses[0] == frame.start
            assert all(row.register < X86_64.return_address and abs(row.offset) < 1 << 31 for row in rows)
            assert all(row.offset == 0 for row in rows if row.register == EXPRESSION)
            steps = frame.steps()
            assert [place for place, _ in steps] == sorted(place for place, _ in steps)
            assert sum(len(operations) for _, operations in steps) <= len(frame.instructions)
            usable += 1
    return usable


def _read(content: bytes) -> tuple[int, str]:
    """Frames whose rules are right, and the reason of a refusal."""
    started = time.process_time()
    try:
        usable, reason = _walk(parse_frames(content, ADDRESS, X86_64)), ""
    except FrameError as error:
        usable, reason = 0, str(error)
        assert reason
    assert time.process_time() - started < CASE_SECONDS
    return usable, reason


def test_damaged_sections() -> None:
    good = _section()
    whole, reason = _read(good)
    assert (whole > 100, reason) == (True, "")
    found = [_read(mutate_frames(good, seed)) for seed in seeds(150)]
    assert {bool(reason) for _, reason in found} == {True, False}
    assert any(0 < usable < whole for usable, _ in found)


def test_random_bytes() -> None:
    for seed in seeds(200):
        chance = random.Random(seed)
        _read(chance.randbytes(chance.randrange(400)))


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF])
def test_huge_lengths(length: int) -> None:
    with pytest.raises(FrameError):
        parse_frames(length.to_bytes(4, "little") + b"\xff" * 64, ADDRESS, X86_64)


def test_many_terminators_take_no_time() -> None:
    assert parse_frames(bytes(1 << 20), ADDRESS, X86_64).frames == []
