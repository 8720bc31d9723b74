# SPDX-License-Identifier: Apache-2.0
"""ELF files that are not loaded: debug files and members of static archives. Sections and symbols only.

Such files may be large and little of them is needed: the header is read at once, sections on demand. The content is
untrusted until checked: malformed parts raise ObjectError with a reason.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from otel_nfprobe.base.processors import BY_ELF_MACHINE

FILE_BYTES_MAX = 1 << 30
SECTIONS_MAX = 1 << 20
SYMTAB, RELA, NOTE, NOBITS = 2, 4, 7, 8  # section types
COMPRESSED = 0x800  # section flag
COMPRESSED_BY_ZLIB = 1
BUILD_ID_NOTE = 3
_HEADER_BYTES, _SECTION_BYTES, _SYMBOL_BYTES, _RELOCATION_BYTES = 64, 64, 24, 24


class ObjectError(ValueError):
    """The file cannot be used; the text says why."""


class Section(NamedTuple):
    """One section header."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int


class ObjectSymbol(NamedTuple):
    """One named symbol, as the file has it."""

    name: str
    value: int
    size: int
    kind: int
    binding: int
    section: int  # index; 0 undefined


class ObjectFile:
    """An ELF64 file for a supported processor.

    Args:
        read: returns bytes from an offset; fewer at the end of the file.

    Attributes:
        processor: which one.

    Raises:
        ObjectError: not such a file, or malformed.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        header = read(0, _HEADER_BYTES)
        if len(header) < _HEADER_BYTES or header[:6] != b"\x7fELF\x02\x01":
            raise ObjectError("it is not a 64-bit ELF file")
        machine = struct.unpack_from("<H", header, 18)[0]
        if machine not in BY_ELF_MACHINE:
            raise ObjectError(f"it is for another processor (ELF machine {machine})")
        self.processor = BY_ELF_MACHINE[machine]
        start = struct.unpack_from("<Q", header, 40)[0]
        entry_bytes, count, names = struct.unpack_from("<HHH", header, 58)
        self.sections = self._read_sections(start, entry_bytes, count, names) if start else []

    @classmethod
    def of_bytes(cls, content: bytes) -> ObjectFile:
        """Returns a file that is in memory."""
        return cls(lambda offset, size: content[offset : offset + size])

    def _read_sections(self, start: int, entry_bytes: int, count: int, names: int) -> list[Section]:
        if entry_bytes != _SECTION_BYTES:
            raise ObjectError("its section headers have an unknown size")
        first = self._take(start, _SECTION_BYTES)
        if not count:  # too many for the header's field: the first section has the count
            count = struct.unpack_from("<Q", first, 32)[0]
        if names == 0xFFFF:
            names = struct.unpack_from("<I", first, 40)[0]
        if count > SECTIONS_MAX:
            raise ObjectError("it has too many sections")
        table = self._take(start, count * _SECTION_BYTES)
        rows = list(struct.iter_unpack("<IIQQQQIIQQ", table))
        if names >= len(rows):
            raise ObjectError("its sections have no names")
        texts = self._take(rows[names][4], rows[names][5])
        return [Section(text_at(texts, row[0]), *row[1:8]) for row in rows]

    def _take(self, offset: int, size: int) -> bytes:
        if size > FILE_BYTES_MAX:
            raise ObjectError("one of its parts is too large")
        content = self._read(offset, size)
        if len(content) != size:
            raise ObjectError("it is truncated")
        return content

    def section(self, name: str) -> Section | None:
        """Returns the first section of this name that has bytes in the file."""
        return next((item for item in self.sections if item.name == name and item.kind != NOBITS), None)

    def content(self, section: Section) -> bytes:
        """Returns a section's bytes, decompressed.

        Raises:
            ObjectError: they are truncated, or their compression is unknown.
        """
        if section.kind == NOBITS:
            return b""
        content = self._take(section.offset, section.size)
        if not section.flags & COMPRESSED:
            return content
        if len(content) < 24:
            raise ObjectError(f"the section {section.name} is cut off")
        method, _, size = struct.unpack_from("<IIQ", content)
        if method != COMPRESSED_BY_ZLIB or size > FILE_BYTES_MAX:
            raise ObjectError(f"the section {section.name} is compressed in an unknown way")
        try:
            unpacked = zlib.decompressobj().decompress(content[24:], size)
        except zlib.error as error:
            raise ObjectError(f"the section {section.name} cannot be decompressed") from error
        if len(unpacked) != size:
            raise ObjectError(f"the section {section.name} is cut off")
        return unpacked

    def symbols(self) -> Iterator[ObjectSymbol]:
        """Returns the named symbols of .symtab, defined or not.

        Raises:
            ObjectError: the table is truncated.
        """
        for names, row in self._symbol_rows():
            name = text_at(names, row[0])
            if name:
                yield ObjectSymbol(name, row[4], row[5], row[1] & 0xF, row[1] >> 4, row[3])

    def _symbol_rows(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        for section in self.sections:
            if section.kind == SYMTAB and section.link < len(self.sections):
                names = self.content(self.sections[section.link])
                table = self.content(section)
                whole = len(table) - len(table) % _SYMBOL_BYTES
                for row in struct.iter_unpack("<IBBHQQ", table[:whole]):
                    yield names, row

    @property
    def has_symbols(self) -> bool:
        """Returns whether it has a non-empty .symtab."""
        return any(section.kind == SYMTAB and section.size for section in self.sections)

    def relocations(self) -> Iterator[tuple[int, int, int]]:
        """Returns (section index, offset in it, type) of all relocations with addends."""
        for section in self.sections:
            if section.kind == RELA:
                table = self.content(section)
                whole = len(table) - len(table) % _RELOCATION_BYTES
                for offset, information, _ in struct.iter_unpack("<QQq", table[:whole]):
                    yield section.info, offset, information & 0xFFFFFFFF

    @property
    def build_id(self) -> str:
        """Returns the build ID in hex, or ""."""
        for section in self.sections:
            if section.kind == NOTE:
                found = _build_id_in(self.content(section))
                if found:
                    return found
        return ""


def text_at(texts: bytes, offset: int) -> str:
    """Returns the zero-terminated text at an offset; "" if there is none."""
    end = texts.find(b"\0", offset)
    return texts[offset:end].decode("utf-8", "replace") if 0 <= offset < end else ""


def _build_id_in(notes: bytes) -> str:
    position = 0
    while position + 12 <= len(notes):
        name_bytes, value_bytes, kind = struct.unpack_from("<III", notes, position)
        value = position + 12 + (name_bytes + 3 & ~3)
        if kind == BUILD_ID_NOTE and notes[position + 12 : position + 16] == b"GNU\0":
            return notes[value : value + value_bytes].hex()
        position = value + (value_bytes + 3 & ~3)
    return ""
