# SPDX-License-Identifier: Apache-2.0
"""Frame tables against readelf, and against damage."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from otel_nfprobe.base.processors import X86_64
from otel_nfprobe.elf import ehframe
from otel_nfprobe.elf.cursor import FrameError
from otel_nfprobe.elf.ehframe import DEREFERENCED, EXPRESSION, FrameTable, parse_frames
from otel_nfprobe.elf.modules import Module
from tests.support.marks import thorough

LIBRARIES = [path for name in ("libz.so.1", "libc.so.6", "libcrypto.so.3") for path in Path("/lib").glob(f"*/{name}")]
REGISTERS = (
    "rax",
    "rdx",
    "rcx",
    "rbx",
    "rsi",
    "rdi",
    "rbp",
    "rsp",
    *(f"r{number}" for number in range(8, 16)),
)
FRAME = re.compile(r"FDE cie=\w+ pc=(\w+)\.\.(\w+)")
RULE = re.compile(r"^([0-9a-f]{16}) (\S+)")


def _expected(path: Path) -> dict[tuple[int, int], list[tuple[int, str]]]:
    """readelf's frames: (start, end) -> rows of (address, CFA rule)."""
    words = ["readelf", "--wide", "--debug-dump=frames-interp", str(path)]
    # It exits with 1 for libc, whose frames it warns about; what it prints is compared whole.
    text = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found: dict[tuple[int, int], list[tuple[int, str]]] = {}
    rows: list[tuple[int, str]] | None = None
    for line in text.splitlines():
        header = FRAME.search(line)
        if header:
            rows = found.setdefault((int(header[1], 16), int(header[2], 16)), [])
        elif " CIE " in line:
            rows = None
        else:
            rule = RULE.match(line)
            if rule and rows is not None:
                rows.append((int(rule[1], 16), rule[2]))
    return found


def _rule_text(register: int, offset: int) -> str:
    return "exp" if register in (EXPRESSION, DEREFERENCED) else f"{REGISTERS[register]}+{offset}"


@pytest.mark.parametrize("path", [*LIBRARIES[:2], *thorough(*LIBRARIES[2:])], ids=lambda path: path.name)
def test_ranges_and_rules_are_those_of_readelf(path: Path) -> None:
    expected = {span: rows for span, rows in _expected(path).items() if span[0] != span[1]}
    table = Module.from_file(path).image.frames
    assert {(frame.start, frame.start + frame.size) for frame in table.frames} == set(expected)
    assert len(table.frames) > 50
    for frame in table.frames:
        rows = frame.rules().rows
        for address, rule in expected[frame.start, frame.start + frame.size]:
            row = [row for row in rows if row.address <= address][-1]
            assert _rule_text(row.register, row.offset) == rule, hex(address)


def test_find_knows_the_ends_of_a_range() -> None:
    table = Module.from_file(LIBRARIES[0]).image.frames
    frame = table.frames[10]
    assert table.find(frame.start) is frame
    assert table.find(frame.start + frame.size - 1) is frame
    assert table.find(frame.start + frame.size) is not frame
    assert table.find(table.starts[0] - 1) is None


def _section() -> tuple[int, bytes]:
    return Module.from_file(LIBRARIES[0]).image._frame_section()


def _read_all(address: int, content: bytes) -> FrameTable | None:
    """Everything that can be asked of a damaged section; only FrameError may come out."""
    try:
        table = parse_frames(content, address, X86_64)
    except FrameError:
        return None
    for frame in table.frames:
        try:
            frame.rules()
        except FrameError:
            continue
    return table


def test_cut_anywhere_is_an_error_or_a_shorter_table() -> None:
    address, content = _section()
    whole = len(parse_frames(content, address, X86_64).frames)
    lengths = [len(table.frames) for end in range(0, len(content), 7) if (table := _read_all(address, content[:end]))]
    assert lengths == sorted(lengths)
    assert lengths[-1] <= whole


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_damaged_bytes_raise_only_frame_errors(seed: int) -> None:
    address, content = _section()
    random_ = random.Random(seed)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(random_.randrange(1, 6)):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        refused += _read_all(address, bytes(damaged)) is None
    assert refused > 0


def test_overlapping_ranges_are_dropped() -> None:
    address, content = _section()
    table = parse_frames(content, address, X86_64)
    doubled = FrameTable([*table.frames, *table.frames])
    assert doubled.starts == table.starts
    assert doubled.overlapping == len(table.frames)


def test_a_program_that_remembers_without_end_is_refused() -> None:
    table = Module.from_file(LIBRARIES[0]).image.frames
    frame = table.frames[10]
    frame_copy = type(frame)(frame.start, frame.size, frame.common, b"\x0a" * 100_000, False)
    with pytest.raises(FrameError, match="remembers"):
        frame_copy.rules()


def _parsed(section: bytes) -> list[tuple[int, int, bytes, bool]] | str:
    try:
        found = parse_frames(section, 0x1000, X86_64).frames
    except FrameError as error:
        return str(error)
    return [(frame.start, frame.size, frame.instructions, frame.has_lsda) for frame in found]


def test_usual_entries_are_read_as_all_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Good ones and damaged ones."""
    sections = []
    for path in LIBRARIES[:2]:
        section = bytearray(Module.from_file(path).image._frame_section()[1][:20_000])
        sections.append(bytes(section))
        for seed in range(60):
            chance, damaged = random.Random(seed), bytearray(section)
            for _ in range(3):
                damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            sections.append(bytes(damaged))
    found = [_parsed(section) for section in sections]
    monkeypatch.setattr(ehframe, "_parse_usual", lambda *_: None)
    assert found == [_parsed(section) for section in sections]
    assert sum(isinstance(item, list) for item in found) > 10
    assert sum(isinstance(item, str) for item in found) > 10
