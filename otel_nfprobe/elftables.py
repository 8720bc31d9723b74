# SPDX-License-Identifier: Apache-2.0
"""Tables of an ELF64 file: program headers, notes, and what the dynamic section leads to. Bytes in, arrays out.

Everything in a file is hostile until checked: a table that is cut off ends there, one that leads nowhere is empty,
and none is longer than the file. Section headers are read by names/objectfile.py. Called by elf.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from otel_nfprobe.columns import Rows

HEADER_BYTES = 64
PROGRAM_HEADER_BYTES = 56
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
RELOCATION = np.dtype([("address", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

_NULL, _PLT_BYTES, _HASH, _STRINGS, _SYMBOLS, _RELOCATIONS, _RELOCATIONS_BYTES, _STRINGS_BYTES = 0, 2, 4, 5, 6, 7, 8, 10
_SONAME, _PLT_RELOCATIONS, _PACKED_BYTES, _PACKED = 14, 23, 35, 36
_GNU_HASH, _VERSION_OF, _DEFINED, _NEEDED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
_VERSIONS_BYTES_MAX = 1 << 18  # the largest library has some KiB of versions
_VERSION_MASK = 0x7FFF

Read = Callable[[int, int], bytes]


class ProgramHeader(NamedTuple):
    """One program header, fields in the file's order."""

    kind: int
    flags: int
    offset: int
    address: int
    physical_address: int
    file_bytes: int
    memory_bytes: int
    alignment: int


class Note(NamedTuple):
    """One note."""

    name: bytes
    kind: int
    content: bytes


def read_program_headers(part: Read) -> list[ProgramHeader]:
    """The program headers; none when they are of an unknown size.

    Args:
        part: bytes from an offset of the file.
    """
    header = part(0, HEADER_BYTES)
    (start,) = struct.unpack_from("<Q", header, 32)
    entry_bytes, count = struct.unpack_from("<HH", header, 54)
    if entry_bytes != PROGRAM_HEADER_BYTES:
        return []
    table = part(start, count * PROGRAM_HEADER_BYTES)
    whole = len(table) - len(table) % PROGRAM_HEADER_BYTES
    return [ProgramHeader(*row) for row in struct.iter_unpack("<IIQQQQQQ", table[:whole])]


def notes_in(content: bytes, alignment: int) -> Iterator[Note]:
    """The notes of a section or segment, which are aligned to 8 bytes or to 4."""
    mask = 7 if alignment == 8 else 3
    position = 0
    while position + 12 <= len(content):
        name_bytes, value_bytes, kind = struct.unpack_from("<III", content, position)
        value = position + 12 + name_bytes + mask & ~mask
        yield Note(
            content[position + 12 : position + 12 + name_bytes].rstrip(b"\0"), kind, content[value:][:value_bytes]
        )
        position = value + value_bytes + mask & ~mask


class Dynamic:
    """What the dynamic section leads to.

    Args:
        content: of the dynamic section; b"": the file has none.
        read: bytes at one of the file's own addresses; fewer where the file has no more.
        size_bytes: of the file.
    """

    def __init__(self, content: bytes, read: Read, size_bytes: int) -> None:
        self._read = read
        self._size_bytes = size_bytes
        self.entries: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<QQ", content[: len(content) & ~15]):
            if tag == _NULL:
                break
            self.entries.setdefault(tag, value)

    def _table(self, tag: int, bytes_tag: int, dtype: Any) -> Rows:
        if tag not in self.entries:
            return np.empty(0, dtype)
        return _rows(self._read(self.entries[tag], self.entries.get(bytes_tag, 0)), np.dtype(dtype))

    @cached_property
    def strings(self) -> bytes:
        """Names, each ended by a zero byte."""
        return self._read(self.entries.get(_STRINGS, 0), self.entries.get(_STRINGS_BYTES, 0))

    @property
    def soname(self) -> bytes:
        """DT_SONAME, or b""."""
        return name_at(self.strings, self.entries[_SONAME]) if _SONAME in self.entries else b""

    @cached_property
    def relocations(self) -> Rows:
        """Relocations with addends, those of the PLT last (dtype RELOCATION)."""
        parts = [(_RELOCATIONS, _RELOCATIONS_BYTES), (_PLT_RELOCATIONS, _PLT_BYTES)]
        return np.concatenate([self._table(tag, bytes_tag, RELOCATION) for tag, bytes_tag in parts])

    def packed_relocations(self) -> list[int]:
        """Addresses of the words that DT_RELR says are relative: what they hold is their addend."""
        found: list[int] = []
        address = 0
        for word in self._table(_PACKED, _PACKED_BYTES, "<u8").tolist():
            if len(found) > self._size_bytes // 8:  # more than the file can hold
                break
            if not word & 1:
                found.append(word)
                address = word + 8
                continue
            found += [address + 8 * bit for bit in range(63) if word >> bit + 1 & 1]
            address += 63 * 8
        return found

    def symbols(self, count: int | None) -> Rows:
        """The dynamic symbols (dtype SYMBOL).

        Args:
            count: by the file's section headers, or None: then the hash tables tell, and the relocations.
        """
        if _SYMBOLS not in self.entries:
            return np.empty(0, SYMBOL)
        if count is None:
            count = max(self._hashed(), int(self.relocations["symbol"].max(initial=0)) + 1)
        return _rows(self._read(self.entries[_SYMBOLS], min(count * SYMBOL.itemsize, self._size_bytes)), SYMBOL)

    def _hashed(self) -> int:
        """Number of symbols by the hash tables."""
        if _HASH in self.entries:
            return int.from_bytes(self._read(self.entries[_HASH] + 4, 4), "little")
        header = self._read(self.entries[_GNU_HASH], 16) if _GNU_HASH in self.entries else b""
        if len(header) < 16:
            return 0
        bucket_count, first, bloom_words, _ = struct.unpack("<IIII", header)
        buckets_at = self.entries[_GNU_HASH] + 16 + 8 * bloom_words
        buckets = _rows(self._read(buckets_at, 4 * bucket_count), np.dtype("<u4"))
        last = int(buckets.max(initial=0))
        if last < first:
            return int(first)
        # The chain of the last bucket ends with an odd word.
        chain = _rows(self._read(buckets_at + 4 * (bucket_count + last - first), self._size_bytes), np.dtype("<u4"))
        ends = np.flatnonzero(np.bitwise_and(chain, 1))
        return last + 1 + int(ends[0]) if len(ends) else last + 1

    def version_numbers(self, count: int) -> Rows:
        """Of each dynamic symbol; empty when the file has no versions."""
        if _VERSION_OF not in self.entries:
            return np.empty(0, "<u2")
        return _rows(self._read(self.entries[_VERSION_OF], 2 * count), np.dtype("<u2"))

    @cached_property
    def version_names(self) -> dict[int, str]:
        """Names of versions that the file defines or needs, by number without the bit that hides a symbol."""
        found: dict[int, str] = {}
        if _DEFINED in self.entries:
            self._add_defined(self._read(self.entries[_DEFINED], _VERSIONS_BYTES_MAX), found)
        if _NEEDED in self.entries:
            self._add_needed(self._read(self.entries[_NEEDED], _VERSIONS_BYTES_MAX), found)
        return found

    def _add_defined(self, content: bytes, found: dict[int, str]) -> None:
        for position, (_, _, number, _, _, first, _) in _chain(content, 0, "<HHHHIII", -1):
            if position + first + 4 <= len(content):
                (name,) = struct.unpack_from("<I", content, position + first)
                found.setdefault(number & _VERSION_MASK, self._text(name))

    def _add_needed(self, content: bytes, found: dict[int, str]) -> None:
        for position, (_, _, _, first, _) in _chain(content, 0, "<HHIII", -1):
            for _, (_, _, number, name, _) in _chain(content, position + first, "<IHHII", -1):
                found.setdefault(number & _VERSION_MASK, self._text(name))

    def _text(self, offset: int) -> str:
        return name_at(self.strings, offset).decode("utf-8", "replace")


def _chain(content: bytes, position: int, form: str, next_field: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Structures that lead one to the next by a distance in bytes, each with its position."""
    size_bytes = struct.calcsize(form)
    while position + size_bytes <= len(content):
        row = struct.unpack_from(form, content, position)
        yield position, row
        if not row[next_field]:
            return
        position += row[next_field]


def _rows(content: bytes, dtype: np.dtype[Any]) -> Rows:
    return np.frombuffer(content[: len(content) - len(content) % dtype.itemsize], dtype)


def name_at(names: bytes, offset: int) -> bytes:
    """The name that ends with a zero byte, or with the table; b"" outside of it."""
    end = names.find(b"\0", offset)
    return names[offset : end if end >= 0 else len(names)]
