# SPDX-License-Identifier: Apache-2.0
"""Tables of ELF files: the answers of elfworker.py, validated and unpacked. The answers are untrusted.

No I/O. Raises ValueError for an answer that elfworker.py cannot give.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SYMBOLS_MAX = 1 << 22
OBJECT, FUNCTION, IFUNC = 1, 2, 10  # STT_OBJECT, STT_FUNC, STT_GNU_IFUNC
KINDS = frozenset((OBJECT, FUNCTION, IFUNC))
DYNSYM, SYMTAB = "dynsym", "symtab"


class Segment(NamedTuple):
    """A loaded part of a file (PT_LOAD). Addresses are the file's own."""

    address: int
    offset: int
    file_bytes: int
    memory_bytes: int
    flags: int


class Symbol(NamedTuple):
    """A defined function or object symbol."""

    address: int
    size: int
    name: str
    kind: int  # one of KINDS
    rank: int  # among the names of one address, the lowest is preferred
    source: str  # one of SOURCES in names.py
    version: str = ""  # "@@VERSION": the default; "@VERSION": kept for old programs
    binding: int = 1  # STB_LOCAL 0, STB_GLOBAL 1, STB_WEAK 2


class Slot(NamedTuple):
    """A word that the dynamic linker fills with the address of a named function or object."""

    address: int
    name: str
    lazy: bool  # may still point to the dynamic linker


class Head(NamedTuple):
    """Tables read of every file.

    Attributes:
        segments: all of them, with their types (PT_*).
        sections: name, address, bytes.
        notes: name, type, content.
        soname: DT_SONAME, or "".
    """

    segments: list[tuple[int, Segment]]
    sections: list[tuple[str, int, int]]
    notes: list[tuple[str, int, bytes]]
    soname: str


class Relocations(NamedTuple):
    """What the dynamic linker relocates.

    Attributes:
        slots: by address.
        pointers: addends of relative relocations.
        words: addresses of words relocated in place (DT_RELR).
    """

    slots: list[Slot]
    pointers: list[int]
    words: list[int]


def read_head(parts: Sequence[memoryview]) -> Head:
    """Unpacks an answer to HEAD."""
    segments = [(row[0], Segment(*row[1:])) for row in struct.iter_unpack("<QQQQQQ", parts[0])]
    rows = list(struct.iter_unpack("<QQ", parts[1]))
    sections = [(name, *row) for name, row in zip(_names(parts[2], len(rows)), rows, strict=True)]
    notes, place, content = [], 0, bytes(parts[4])
    for kind, name_bytes, text_bytes in struct.iter_unpack("<QQQ", parts[3]):
        middle, end = place + name_bytes, place + name_bytes + text_bytes
        if end > len(content):
            raise ValueError("truncated notes")
        notes.append((content[place:middle].decode(), kind, content[middle:end]))
        place = end
    return Head(segments, sections, notes, bytes(parts[5]).decode())


def read_symbols(parts: Sequence[memoryview]) -> list[Symbol]:
    """Unpacks an answer to SYMBOLS."""
    addresses, sizes, numbers = _words(parts[0]), _words(parts[1]), _words(parts[5], "<u4")
    kinds, bindings, dynamic = bytes(parts[2]), bytes(parts[3]), bytes(parts[4])
    if len(addresses) > SYMBOLS_MAX or not KINDS.issuperset(kinds) or max(dynamic, default=0) > 1 or 0 in addresses:
        raise ValueError("symbols")
    versions = bytes(parts[7]).decode().split("\0")
    if max(numbers, default=0) >= len(versions):
        raise ValueError("versions")
    texts = _names(parts[6], len(addresses))
    found = []
    columns = zip(addresses, sizes, kinds, bindings, dynamic, numbers, texts, strict=True)
    for address, size, kind, binding, is_dynamic, number, text in columns:
        name, version = split_version(text)
        if name:
            version = versions[number] if is_dynamic else version
            rank = rank_of(name, binding, version)
            source = DYNSYM if is_dynamic else SYMTAB
            found.append(Symbol(address, size, name, kind, rank, source, version, binding))
    return found


def read_relocations(parts: Sequence[memoryview]) -> Relocations:
    """Unpacks an answer to RELOCATIONS."""
    addresses, lazy = _words(parts[0]), bytes(parts[1])
    rows = zip(addresses, _names(parts[2], len(addresses)), lazy, strict=True)
    slots = {address: Slot(address, name, bool(is_lazy)) for address, name, is_lazy in rows}  # the last one counts
    return Relocations([slots[address] for address in sorted(slots)], _words(parts[3], "<i8"), _words(parts[4]))


def split_version(text: str) -> tuple[str, str]:
    """Name and version ("@@V", "@V" or "") of a symbol as .symtab writes it."""
    at = text.find("@", 1)
    return (text, "") if at < 0 else (text[:at], text[at:])


def rank_of(name: str, binding: int, version: str = "") -> int:
    """How good a name is among those of one address; smaller is better."""
    hidden = version.startswith("@") and not version.startswith("@@")
    underscores = len(name) - len(name.lstrip("_"))
    order = (1, 0, 2)[binding] if binding < 3 else 3  # local, global, weak
    return (4096 if hidden else 0) + 1024 * min(underscores, 3) + 256 * order + min(len(name), 255)


def _words(part: memoryview, kind: str = "<u8") -> list[int]:
    numbers: list[int] = np.frombuffer(part, kind).tolist()
    return numbers


def _names(part: memoryview, count: int) -> list[str]:
    """So many texts with a zero byte between each two."""
    names = bytes(part).decode().split("\0") if count else []
    if len(names) != count:
        raise ValueError("names")
    return names
