# SPDX-License-Identifier: Apache-2.0
"""The tables that are read without lief are those that lief reads; what it reads differently is left to it."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.elf import elfparser, elfplain
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.elf.elfparser import HEAD, NAMES, RELOCATIONS, SYMBOLS
from otel_nfprobe.elf.elfplain import read_plain
from otel_nfprobe.elf.elftables import read_head, read_relocations, read_symbols
from otel_nfprobe.elf.filecontent import Content
from tests.support.marks import thorough

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
OTHERS = ("ld-linux-x86-64.so.2", "libz.so.1", "libstdc++.so.6", "libgcc_s.so.1", "libcrypto.so.3")
READERS: dict[bytes, Callable[..., Any]] = {HEAD: read_head, SYMBOLS: read_symbols, RELOCATIONS: read_relocations}
SOURCE = """
#include <stdio.h>
int shown = 1, *pointers[100] = {[3] = &shown, [64] = &shown, [99] = &shown};
static int twice(int x) { return 2 * x; }
int (*function)(int) = twice;
int old_name(int x) { return x + (int)fputs("x", stdout); }
int new_name(int x) { return x + 2; }
__asm__(".symver old_name,name@ONE\\n.symver new_name,name@@TWO");
"""
VERSIONS = "ONE { global: shown; local: twice; }; TWO { } ONE;"


def _sorted(found: Any) -> Any:
    """What stands in no order."""
    if hasattr(found, "pointers"):
        return found.slots, sorted(found.pointers), sorted(found.words)
    return (found.segments, found.sections, sorted(found.notes), found.soname) if hasattr(found, "notes") else found


def _compare(data: bytes) -> list[Any]:
    """What is read of a file, all of which must be there."""
    results = []
    for question, read in READERS.items():
        parts = read_plain(question, Content(data))
        expected = elfparser.parser.ask(question, Content(data))
        assert parts is not None, question
        assert expected is not None, question
        results.append(read(parts))
        assert _sorted(results[-1]) == _sorted(read(expected)), question
    return results


@pytest.mark.parametrize("name", ["libc.so.6", *thorough(*OTHERS)])
def test_libraries(name: str) -> None:
    head, symbols, relocations = _compare((LIBRARIES / name).read_bytes())
    assert head.soname == name
    assert len(symbols) > 30
    assert len(relocations.slots) > (0 if name.startswith("ld-") else 5)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., bytes]:
    """Compiles the source with these words."""

    def compile_with(*words: str) -> bytes:
        source, script, result = (tmp_path / name for name in ("a.c", "a.map", "a.so"))
        source.write_text(SOURCE)
        script.write_text(VERSIONS)
        all_words = ["-fPIC", str(source), "-o", str(result), "-shared", f"-Wl,--version-script={script}", *words]
        subprocess.run(["gcc", *all_words], check=True)
        return result.read_bytes()

    return compile_with


@pytest.mark.thorough
def test_own_libraries(build: Callable[..., bytes]) -> None:
    """Versions, local functions, and pointers that are packed (DT_RELR)."""
    _, symbols, relocations = _compare(build("-Wl,-soname=own.so", "-Wl,-z,pack-relative-relocs"))
    versions = {(symbol.name, symbol.version) for symbol in symbols if symbol.source == "dynsym"}
    assert {("name", "@ONE"), ("name", "@@TWO"), ("shown", "@@ONE")} <= versions
    assert "twice" in {symbol.name for symbol in symbols if symbol.source == "symtab"}
    assert len(relocations.words) > 3
    assert relocations.pointers == []


@pytest.mark.thorough
def test_a_library_with_as_few_tables_as_possible(build: Callable[..., bytes]) -> None:
    _compare(build("-s", "-nostdlib", "-Wl,--build-id=none"))


def test_what_is_not_a_table_is_left_to_lief() -> None:
    assert read_plain(NAMES, Content(b"_Z1fv")) is None


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", bytes(64), b"\x7fELF" + b"\xff" * 60, b"\x7fELF\x02\x01" + b"\xff" * 9999]
)
def test_what_is_no_file_of_a_linker_is_left_to_lief(data: bytes) -> None:
    assert [read_plain(question, Content(data)) for question in READERS] == [None] * 3


def test_sections_that_stand_elsewhere_than_the_segments_say_are_left_to_lief(build: Callable[..., bytes]) -> None:
    data = bytearray(build())
    headers, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    kinds = [struct.unpack_from("<I", data, headers + 64 * index + 4)[0] for index in range(count)]
    place = headers + 64 * kinds.index(11) + 24  # of .dynsym
    struct.pack_into("<Q", data, place, struct.unpack_from("<Q", data, place)[0] + 24)
    assert read_plain(SYMBOLS, Content(bytes(data))) is None


def test_names_that_overlap_take_no_more_than_they_may(
    build: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few megabytes could name a thousand gigabytes otherwise."""
    data = build()
    assert read_plain(SYMBOLS, Content(data)) is not None
    monkeypatch.setattr(elfplain.Strings, "TEXT_BYTES_MAX", 20)
    assert read_plain(SYMBOLS, Content(data)) is None


@pytest.mark.thorough
def test_names_that_a_file_may_have(build: Callable[..., bytes]) -> None:
    image = ElfImage("own.so", build())
    assert [image.may_name(name) for name in ("fputs", "shown", "name", "twice", "put", "fput")] == [True] * 3 + [
        False
    ] * 3
    damaged = bytearray(image.content.whole())
    damaged[60:62] = bytes(2)  # no sections
    assert ElfImage("own.so", bytes(damaged)).may_name("put")  # nobody knows
