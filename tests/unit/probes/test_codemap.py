# SPDX-License-Identifier: Apache-2.0
"""The ELF object that describes trampolines, read by the binutils."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.probes.codemap import (
    BODY,
    DISPLACED,
    HEAD_BYTES,
    PROBE,
    CodeObject,
    CodePart,
    build_head,
    build_object,
    object_room_bytes,
)
from otel_nfprobe.probes.trampoline import Frames

ARENA = 0x7F1234500000
OBJECT_OFFSET = 0x3000
NAMES = ["poll", "_ZN3net4recvEi", "_RNvC4main4loop"]


def shape_bytes() -> int:
    return int(lib.nfp_trampoline_bytes(lib.NFP_SHAPE_CALL))


@pytest.fixture
def described() -> tuple[bytes, CodeObject]:
    """Unwind rows and the object."""
    frames, parts = Frames(), []
    for index, name in enumerate(NAMES):
        address = ARENA + HEAD_BYTES + 1024 * index
        frames.add(lib.NFP_SHAPE_CALL, address, 32)
        kind = BODY if index == 0 else DISPLACED
        parts += [CodePart(address, shape_bytes(), name, PROBE), CodePart(address + shape_bytes(), 32, name, kind)]
    rows = frames.encode()
    return rows, build_object(parts, rows, ARENA + OBJECT_OFFSET)


def readelf(path: Path, option: str) -> str:
    done = subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def check_tables(path: Path) -> None:
    symbols = re.findall(r"([0-9a-f]{16}) +(\d+) FUNC +(LOCAL|GLOBAL) +DEFAULT +\d+ (\S+)", readelf(path, "--symbols"))
    found = {(int(address, 16), int(size), where, name) for address, size, where, name in symbols}
    expected = set()
    for index, name in enumerate(NAMES):
        address = ARENA + HEAD_BYTES + 1024 * index
        expected.add((address, shape_bytes(), "LOCAL", f"{name}.nfprobe"))
        expected.add((address + shape_bytes(), 32, "GLOBAL" if index == 0 else "LOCAL", name))
    assert found == expected
    ranges = re.findall(r"pc=([0-9a-f]+)\.\.([0-9a-f]+)", readelf(path, "--debug-dump=frames"))
    assert [(int(low, 16), int(high, 16)) for low, high in ranges] == sorted(
        (address, address + size) for address, size, _, _ in expected
    )


def test_object_in_memory(described: tuple[bytes, CodeObject], tmp_path: Path) -> None:
    rows, code = described
    path = tmp_path / "object"
    path.write_bytes(code.image)
    check_tables(path)
    assert code.image[code.rows_offset : code.rows_offset + len(rows)] == rows
    assert len(code.image) <= object_room_bytes((name, 2) for name in NAMES) + 2 * len(rows)


def test_object_as_file(described: tuple[bytes, CodeObject], tmp_path: Path) -> None:
    _, code = described
    size = OBJECT_OFFSET + len(code.image)
    image = bytearray(size)
    image[OBJECT_OFFSET:] = code.image
    image[:HEAD_BYTES] = build_head(code, OBJECT_OFFSET, (ARENA, size))
    path = tmp_path / "arena.so"
    path.write_bytes(image)
    check_tables(path)
    loaded = re.findall(r"LOAD +0x0+ 0x([0-9a-f]+) .* R E ", readelf(path, "--segments"))
    assert [int(address, 16) for address in loaded] == [ARENA]
    assert "Build ID" in readelf(path, "--notes")


def test_neighbours_of_one_kind_are_one_symbol(tmp_path: Path) -> None:
    """The exits of a relocated body and its entry."""
    frames = Frames()
    frames.add(lib.NFP_SHAPE_CALL, ARENA, 0)
    parts = [CodePart(ARENA + 128 * i, 100, "poll", PROBE) for i in range(3)] + [CodePart(ARENA + 384, 9, "poll", BODY)]
    path = tmp_path / "object"
    path.write_bytes(build_object(list(reversed(parts)), frames.encode(), ARENA + 4096).image)
    symbols = re.findall(r"([0-9a-f]{16}) +(\d+) FUNC", readelf(path, "--symbols"))
    assert [(int(address, 16) - ARENA, int(size)) for address, size in symbols] == [(0, 356), (384, 9)]
