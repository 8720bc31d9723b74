# SPDX-License-Identifier: Apache-2.0
"""An ELF file as linkers write them: headers, the dynamic section, tables of strings and symbols, by NumPy.

The file is hostile: each table lies inside it, each number is checked before it is used, all texts together are
bounded; section headers, segments and the dynamic section must agree.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.elf.elftables import SYMBOLS_MAX
from otel_nfprobe.elf.filecontent import Content
from otel_nfprobe.elf.names.objectfile import MACHINE_X86_64

HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
SEGMENT = np.dtype("<u4, <u4, <u8, <u8, <u8, <u8, <u8, <u8")
SEGMENT.names = ("type", "flags", "offset", "address", "physical", "file_bytes", "memory_bytes", "alignment")
SECTION = np.dtype("<u4, <u4, <u8, <u8, <u8, <u8, <u4, <u4, <u8, <u8")
SECTION.names = ("name", "type", "flags", "address", "offset", "bytes", "link", "info", "alignment", "entry_bytes")
SYMBOL = np.dtype("<u4, u1, u1, <u2, <u8, <u8")
SYMBOL.names = ("name", "info", "other", "section", "address", "bytes")
LOAD, DYNAMIC = 1, 2  # of segments
SYMTAB, STRTAB, SECTION_DYNAMIC, NOBITS, DYNSYM = 2, 3, 6, 8, 11
T_STRTAB, T_SYMTAB, T_STRSZ = 5, 6, 10
# Of the dynamic section, each at most once: the rest may be repeated, and nobody asks for it.
T_SINGLE = (2, 5, 6, 7, 8, 10, 14, 17, 20, 23, 35, 36, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE)
FLAGS = 7  # of segments
IN_MEMORY = 2  # SHF_ALLOC
LOADS_MAX = 64
HEADERS_MAX = 0xFF00 - 1  # a file with more of them says so elsewhere
DYNAMIC_MAX = 1 << 14
TABLE_BYTES_MAX = 128 << 20
Table = NDArray[Any]


class OddError(Exception):
    """The file is not one that linkers write, or has what is not read here."""


class Strings:
    """A table of strings.

    Args:
        data: its bytes.
    """

    TEXT_BYTES_MAX = 64 << 20  # of all that are asked for: in a hostile file they may overlap

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._left_bytes = self.TEXT_BYTES_MAX

    def at(self, offset: int) -> str:
        """The string at an offset."""
        end = self.data.find(b"\0", offset, offset + self._left_bytes)
        if not 0 <= offset <= end:
            raise OddError
        self._left_bytes -= end - offset
        return self.data[offset:end].decode()


class PlainFile:
    """Headers of a file, and what they lead to. All of it raises OddError, and NfprobeError as `Content.part`.

    Args:
        content: its bytes.

    Attributes:
        segments, sections: rows of SEGMENT and SECTION.
    """

    def __init__(self, content: Content) -> None:
        self._content = content
        header = HEADER.unpack(self.take(0, HEADER.size))
        _, machine, _, _, at, sections_at, _, _, size, count, section_size, section_count, names = header
        sizes = size, section_size
        if machine != MACHINE_X86_64 or sizes != (SEGMENT.itemsize, SECTION.itemsize) or not 0 < count <= HEADERS_MAX:
            raise OddError
        if not 0 < names < section_count <= HEADERS_MAX:
            raise OddError
        self.segments = np.frombuffer(self.take(at, count * size), SEGMENT)
        self.sections = np.frombuffer(self.take(sections_at, section_count * section_size), SECTION)
        self._name_table = names
        self._check_places()

    def _check_places(self) -> None:
        """What is loaded must be in the file, and stand where the section headers say."""
        loads = self.segments[self.segments["type"] == LOAD]
        if not 0 < len(loads) <= LOADS_MAX or (self.segments["flags"] & ~np.uint32(FLAGS)).any():
            raise OddError
        chosen = (self.sections["flags"] & np.uint64(IN_MEMORY) != 0) & (self.sections["type"] != NOBITS)
        missing = chosen & (self.sections["bytes"] != 0)
        for load in loads:
            if int(load["offset"]) + int(load["file_bytes"]) > self._content.size_bytes:
                raise OddError
            inside = self.sections["address"] - load["address"]  # of what lies before it, a huge one
            is_there = (inside == self.sections["offset"] - load["offset"]) & (inside < load["file_bytes"])
            missing &= ~(is_there & (self.sections["bytes"] <= load["file_bytes"] - inside))
        if missing.any():
            raise OddError

    def take(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the file, all of them."""
        if size_bytes > TABLE_BYTES_MAX or offset + size_bytes > self._content.size_bytes:
            raise OddError
        found = self._content.part(offset, size_bytes)
        if len(found) != size_bytes:
            raise OddError
        return found

    def rows(self, section: Any, row: np.dtype[Any]) -> Table:
        """The content of a section that is a table."""
        size_bytes = int(section["bytes"])
        if size_bytes % row.itemsize or int(section["entry_bytes"]) != row.itemsize:
            raise OddError
        return np.frombuffer(self.bytes_of(section), row)

    def bytes_of(self, section: Any) -> bytes:
        """The content of a section."""
        if section["type"] == NOBITS:
            raise OddError
        return self.take(int(section["offset"]), int(section["bytes"]))

    def only(self, kind: int) -> Any | None:
        """The section of a type, or None; raises OddError where there are several."""
        found = np.flatnonzero(self.sections["type"] == kind)
        if len(found) > 1:
            raise OddError
        return self.sections[found[0]] if len(found) else None

    def strings(self, index: int) -> Strings:
        """The strings of a section that is a table of them."""
        if not 0 < index < len(self.sections) or self.sections[index]["type"] != STRTAB:
            raise OddError
        return Strings(self.bytes_of(self.sections[index]))

    def section_names(self) -> list[str]:
        """Of all sections."""
        names = self.strings(self._name_table)
        return [names.at(offset) for offset in self.sections["name"].tolist()]

    def at_address(self, address: int, size_bytes: int) -> bytes:
        """What the file has for an address."""
        for segment in self.segments[self.segments["type"] == LOAD]:
            inside = address - int(segment["address"])
            if inside >= 0 and inside + size_bytes <= int(segment["file_bytes"]):
                return self.take(int(segment["offset"]) + inside, size_bytes)
        raise OddError

    @cached_property
    def dynamic(self) -> dict[int, int]:
        """What the dynamic section says, by its tags; empty without one."""
        segments = self.segments[self.segments["type"] == DYNAMIC]
        section = self.only(SECTION_DYNAMIC)
        if section is None and not len(segments):
            return {}
        if section is None or len(segments) != 1:
            raise OddError
        places = {(item["address"], item["offset"]) for item in (segments[0], section)}
        if len(places) != 1 or segments[0]["file_bytes"] != section["bytes"]:
            raise OddError
        words = np.frombuffer(self.rows(section, np.dtype("<u8, <u8")), "<u8").reshape(-1, 2)
        ends = np.flatnonzero(words[:, 0] == 0)
        if not len(ends) or len(words) > DYNAMIC_MAX:
            raise OddError
        tags: list[int] = words[: ends[0], 0].tolist()
        if any(tags.count(tag) > 1 for tag in T_SINGLE):
            raise OddError
        return dict(zip(tags, words[: ends[0], 1].tolist(), strict=True))

    def dynamic_strings(self) -> Strings:
        """The names of the dynamic section and symbols."""
        section = self.only(SECTION_DYNAMIC)
        if section is None or not 0 < section["link"] < len(self.sections):
            raise OddError
        table = self.sections[section["link"]]
        if (table["address"], table["bytes"]) != (self.dynamic.get(T_STRTAB), self.dynamic.get(T_STRSZ)):
            raise OddError
        return self.strings(int(section["link"]))

    def dynamic_symbols(self) -> Table:
        """All of .dynsym."""
        section = self.only(DYNSYM)
        if (0 if section is None else section["address"]) != self.dynamic.get(T_SYMTAB, 0):
            raise OddError
        return np.empty(0, SYMBOL) if section is None else self._symbols(section)

    def _symbols(self, section: Any) -> Table:
        rows = self.rows(section, SYMBOL)
        if len(rows) > SYMBOLS_MAX:
            raise OddError
        return rows

    def other_symbols(self) -> tuple[Table, Strings]:
        """All of .symtab, and their names."""
        section = self.only(SYMTAB)
        if section is None:
            return np.empty(0, SYMBOL), Strings(b"")
        return self._symbols(section), self.strings(int(section["link"]))

    def tagged(self, kind: int, tag: int) -> Any | None:
        """The section of a type which the dynamic section names, too; None where neither does."""
        section = self.only(kind)
        if (None if section is None else section["address"]) != self.dynamic.get(tag):
            raise OddError
        return section
