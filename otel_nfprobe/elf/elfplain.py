# SPDX-License-Identifier: Apache-2.0
"""Tables of ELF files with the layout that linkers write: the same parts as elfworker.py returns, read in this process.

A process that loads lief takes most of a second of processor time to start, and a dozen milliseconds per file. Here
NumPy and struct parse the bytes, which no file can exploit; each loop is bounded. Unusual files are left to lief.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.processors import BY_ELF_MACHINE
from otel_nfprobe.elf.elfparser import HEAD, RELOCATIONS, SYMBOLS
from otel_nfprobe.elf.elftables import SYMBOLS_MAX
from otel_nfprobe.elf.filecontent import Content

# ---- the file -------------------------------------------------------------------------------------------------------
# An ELF file with the layout that linkers write: headers, the dynamic section, string and symbol tables, by NumPy.
#
# The file is untrusted: each table must lie inside it, each number is checked before use, the total text is bounded;
# section headers, segments and the dynamic section must agree.


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
# Tags that may occur at most once: others may repeat, and are not used.
T_SINGLE = (2, 5, 6, 7, 8, 10, 14, 17, 20, 23, 35, 36, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE)
FLAGS = 7  # of segments
IN_MEMORY = 2  # SHF_ALLOC
LOADS_MAX = 64
HEADERS_MAX = 0xFF00 - 1  # a file with more stores the count elsewhere
DYNAMIC_MAX = 1 << 14
TABLE_BYTES_MAX = 128 << 20
Table = NDArray[Any]


class OddError(Exception):
    """The file does not have the usual layout, or uses features that are not supported here."""


class Strings:
    """A string table.

    Args:
        data: its bytes.
    """

    TEXT_BYTES_MAX = 64 << 20  # total of all strings read: in a hostile file they may overlap

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
    """A file's headers and the tables they refer to. Everything raises OddError, and NfprobeError as `Content.part`.

    Args:
        content: its bytes.

    Attributes:
        segments, sections: rows of SEGMENT and SECTION.
        processor: whose code is in it.
    """

    def __init__(self, content: Content) -> None:
        self._content = content
        header = HEADER.unpack(self.take(0, HEADER.size))
        _, machine, _, _, at, sections_at, _, _, size, count, section_size, section_count, names = header
        sizes = size, section_size
        if (
            machine not in BY_ELF_MACHINE
            or sizes != (SEGMENT.itemsize, SECTION.itemsize)
            or not 0 < count <= HEADERS_MAX
        ):
            raise OddError
        self.processor = BY_ELF_MACHINE[machine]
        if not 0 < count <= HEADERS_MAX or not 0 < names < section_count <= HEADERS_MAX:
            raise OddError
        self.segments = np.frombuffer(self.take(at, count * size), SEGMENT)
        self.sections = np.frombuffer(self.take(sections_at, section_count * section_size), SECTION)
        self._name_table = names
        self._check_places()

    def _check_places(self) -> None:
        """Checks that loaded sections lie in the file, where the section headers say."""
        loads = self.segments[self.segments["type"] == LOAD]
        if not 0 < len(loads) <= LOADS_MAX or (self.segments["flags"] & ~np.uint32(FLAGS)).any():
            raise OddError
        chosen = (self.sections["flags"] & np.uint64(IN_MEMORY) != 0) & (self.sections["type"] != NOBITS)
        missing = chosen & (self.sections["bytes"] != 0)
        for load in loads:
            if int(load["offset"]) + int(load["file_bytes"]) > self._content.size_bytes:
                raise OddError
            inside = self.sections["address"] - load["address"]  # wraps to a huge value for sections before it
            is_there = (inside == self.sections["offset"] - load["offset"]) & (inside < load["file_bytes"])
            missing &= ~(is_there & (self.sections["bytes"] <= load["file_bytes"] - inside))
        if missing.any():
            raise OddError

    def take(self, offset: int, size_bytes: int) -> bytes:
        """Returns bytes of the file; all must exist."""
        if size_bytes > TABLE_BYTES_MAX or offset + size_bytes > self._content.size_bytes:
            raise OddError
        found = self._content.part(offset, size_bytes)
        if len(found) != size_bytes:
            raise OddError
        return found

    def rows(self, section: Any, row: np.dtype[Any]) -> Table:
        """Returns the content of a section that is a table."""
        size_bytes = int(section["bytes"])
        if size_bytes % row.itemsize or int(section["entry_bytes"]) != row.itemsize:
            raise OddError
        return np.frombuffer(self.bytes_of(section), row)

    def bytes_of(self, section: Any) -> bytes:
        """Returns the content of a section."""
        if section["type"] == NOBITS:
            raise OddError
        return self.take(int(section["offset"]), int(section["bytes"]))

    def only(self, kind: int) -> Any | None:
        """Returns the section of a type, or None; raises OddError if there are several."""
        found = np.flatnonzero(self.sections["type"] == kind)
        if len(found) > 1:
            raise OddError
        return self.sections[found[0]] if len(found) else None

    def strings(self, index: int) -> Strings:
        """Returns a section that is a string table."""
        if not 0 < index < len(self.sections) or self.sections[index]["type"] != STRTAB:
            raise OddError
        return Strings(self.bytes_of(self.sections[index]))

    def section_names(self) -> list[str]:
        """Returns the names of all sections."""
        names = self.strings(self._name_table)
        return [names.at(offset) for offset in self.sections["name"].tolist()]

    def at_address(self, address: int, size_bytes: int) -> bytes:
        """Returns the file's bytes at an address."""
        for segment in self.segments[self.segments["type"] == LOAD]:
            inside = address - int(segment["address"])
            if inside >= 0 and inside + size_bytes <= int(segment["file_bytes"]):
                return self.take(int(segment["offset"]) + inside, size_bytes)
        raise OddError

    @cached_property
    def dynamic(self) -> dict[int, int]:
        """Returns the dynamic section's values by tag; empty without one."""
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
        """Returns the string table of the dynamic section and symbols."""
        section = self.only(SECTION_DYNAMIC)
        if section is None or not 0 < section["link"] < len(self.sections):
            raise OddError
        table = self.sections[section["link"]]
        if (table["address"], table["bytes"]) != (self.dynamic.get(T_STRTAB), self.dynamic.get(T_STRSZ)):
            raise OddError
        return self.strings(int(section["link"]))

    def dynamic_symbols(self) -> Table:
        """Returns all of .dynsym."""
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
        """Returns all of .symtab, and its names."""
        section = self.only(SYMTAB)
        if section is None:
            return np.empty(0, SYMBOL), Strings(b"")
        return self._symbols(section), self.strings(int(section["link"]))

    def tagged(self, kind: int, tag: int) -> Any | None:
        """Returns the section of a type that the dynamic section refers to, too; None if neither has it."""
        section = self.only(kind)
        if (None if section is None else section["address"]) != self.dynamic.get(tag):
            raise OddError
        return section


# ---- answers --------------------------------------------------------------------------------------------------------


RELOCATION = np.dtype("<u8, <u4, <u4, <i8")
RELOCATION.names = ("address", "type", "symbol", "addend")
NOTE = 4  # of segments
RELA, SECTION_NOTE, REL, RELR = 4, 7, 9, 19
VERDEF, VERNEED, VERSYM = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
T_PLTRELSZ, T_RELA, T_RELASZ, T_SONAME, T_REL, T_PLTREL, T_JMPREL = 2, 7, 8, 14, 17, 20, 23
T_RELRSZ, T_RELR, T_VERSYM, T_VERDEF, T_VERNEED = 35, 36, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
TYPE_MAX = 42  # of relocations
SYMBOL_KINDS = (1, 2, 10)  # objects, functions, indirect functions
NOTES_MAX, VERSIONS_MAX = 256, 4096
NOTE_BYTES_MAX = 1 << 20
RELR_BYTES_MAX = 1 << 18  # each of them may stand for 64
HIDDEN_VERSION = 0x8000
PLACES_MAX = 1 << 10  # of a name in a string table


def read_plain(question: bytes, content: Content) -> list[memoryview] | None:
    """Returns the parts with which elfworker.py answers a question; None: ask lief.

    Args:
        question: HEAD, SYMBOLS, RELOCATIONS of elfparser.py; any other is left to lief.

    Raises:
        NfprobeError: the file was removed or replaced.
    """
    reader = _READERS.get(question)
    if reader is None:
        return None
    try:
        return [memoryview(part) for part in reader(_open(content))]
    except (OddError, UnicodeDecodeError):
        return None


def read_dynamic_symbols(content: Content, name: str) -> list[memoryview] | None:
    """Returns the parts as of SYMBOLS with the dynamic symbols of one name, or more; None: all must be read.

    Raises:
        NfprobeError: the file was removed or replaced.
    """
    try:
        file = _open(content)
        table = file.dynamic_strings().data
        places = re.finditer(re.escape(name.encode()) + rb"(?=[\0@])", table)  # one may be the end of another
        offsets = [place.start() for place in islice(places, PLACES_MAX + 1)]
        if len(offsets) > PLACES_MAX:
            return None
        return [memoryview(part) for part in _read_symbols(file, offsets)]
    except (OddError, UnicodeDecodeError):
        return None


def dynamic_names(content: Content) -> bytes | None:
    """Returns all names of the dynamic symbols, each zero-terminated; None: they must be read from the symbols.

    Raises:
        NfprobeError: the file was removed or replaced.
    """
    try:
        return _open(content).dynamic_strings().data
    except OddError:
        return None


def symbol_names(content: Content) -> bytes | None:
    """As `dynamic_names`, with those of the other symbols, which may have a version after an @."""
    try:
        file = _open(content)
        others = file.only(SYMTAB)
        return file.dynamic_strings().data + (b"" if others is None else file.strings(int(others["link"])).data)
    except OddError:
        return None


def _open(content: Content) -> PlainFile:
    """The file's headers, read and checked once."""
    if "plain" not in content.known:
        try:
            content.known["plain"] = PlainFile(content)
        except OddError:
            content.known["plain"] = None
    file: PlainFile | None = content.known["plain"]
    if file is None:
        raise OddError
    return file


def _joined(names: list[str]) -> bytes:
    return "\0".join(names).encode()


# ---- segments, sections, notes --------------------------------------------------------------------------------------


def _read_head(file: PlainFile) -> list[bytes]:
    names = ("type", "address", "offset", "file_bytes", "memory_bytes", "flags")
    segments = np.stack([file.segments[name].astype("<u8") for name in names], axis=1)
    sections = np.stack([file.sections[name].astype("<u8") for name in ("address", "bytes")], axis=1)
    notes = list(dict.fromkeys(_notes(file)))
    soname = file.dynamic_strings().at(file.dynamic[T_SONAME]) if T_SONAME in file.dynamic else ""
    return [
        segments.tobytes(),
        sections.tobytes(),
        _joined(file.section_names()),
        b"".join(struct.pack("<QQQ", kind, len(name), len(text)) for name, kind, text in notes),
        b"".join(name + text for name, _, text in notes),
        soname.encode(),
    ]


def _notes(file: PlainFile) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields name, type and content of each note, some twice."""
    parts = [(item, item["file_bytes"]) for item in file.segments[file.segments["type"] == NOTE]]
    parts += [(item, item["bytes"]) for item in file.sections[file.sections["type"] == SECTION_NOTE]]
    for item, size_bytes in parts[: NOTES_MAX + 1]:
        if size_bytes > NOTE_BYTES_MAX or len(parts) > NOTES_MAX:
            raise OddError
        yield from _notes_of(file.take(int(item["offset"]), int(size_bytes)), int(item["alignment"]))


def _notes_of(data: bytes, alignment: int) -> Iterator[tuple[bytes, int, bytes]]:
    if alignment not in (0, 1, 2, 4, 8):
        raise OddError
    mask, place = max(alignment, 4) - 1, 0
    for _ in range(NOTES_MAX):
        if place == len(data):
            return
        if len(data) - place < 12:
            break
        name_bytes, text_bytes, kind = struct.unpack_from("<III", data, place)
        text_at = (place + 12 + name_bytes + mask) & ~mask
        if text_at + text_bytes > len(data):
            break
        name = data[place + 12 : place + 12 + name_bytes]
        name.decode()
        place = min((text_at + text_bytes + mask) & ~mask, len(data))
        yield name.rstrip(b"\0"), kind, data[text_at:place]  # with padding, as lief returns it
    raise OddError


# ---- symbols --------------------------------------------------------------------------------------------------------


def _read_symbols(file: PlainFile, offsets: Sequence[int] | None = None) -> list[bytes]:
    """Returns all symbols; with offsets of names only dynamic symbols, those with these."""
    dynamic, (others, other_names) = file.dynamic_symbols(), file.other_symbols()
    numbers = _version_numbers(file, len(dynamic))
    chosen = _is_wanted(dynamic)
    if offsets is not None:
        chosen &= np.isin(dynamic["name"], np.array(offsets, dtype=np.uint32))
        others = others[:0]
    names_of_versions = _version_names(file) if numbers.any() else {}
    versions = [_version(names_of_versions, number) for number in numbers[chosen].tolist()]
    dynamic, others = dynamic[chosen], others[_is_wanted(others)]
    both = np.concatenate((dynamic, others))
    strings = file.dynamic_strings() if len(dynamic) else Strings(b"")
    names = [strings.at(offset) for offset in dynamic["name"].tolist()]
    names += [other_names.at(offset) for offset in others["name"].tolist()]
    texts = {text: number for number, text in enumerate(dict.fromkeys(["", *versions]))}
    indexes = np.zeros(len(both), dtype="<u4")
    indexes[: len(versions)] = [texts[version] for version in versions]
    return [
        both["address"].astype("<u8").tobytes(),
        both["bytes"].astype("<u8").tobytes(),
        (both["info"] & 15).tobytes(),
        (both["info"] >> 4).tobytes(),
        bytes([1] * len(dynamic) + [0] * len(others)),
        indexes.tobytes(),
        _joined(names),
        _joined(list(texts)),
    ]


def _is_wanted(symbols: Table) -> NDArray[np.bool_]:
    is_kept = np.isin(symbols["info"] & 15, SYMBOL_KINDS)
    wanted: NDArray[np.bool_] = is_kept & (symbols["address"] != 0) & (symbols["section"] != 0)
    return wanted


def _version_numbers(file: PlainFile, count: int) -> Table:
    """Returns the version index of each dynamic symbol; 0 if there are no versions."""
    section = file.tagged(VERSYM, T_VERSYM)
    if section is None:
        return np.zeros(count, "<u2")
    numbers = file.rows(section, np.dtype("<u2"))
    if len(numbers) != count:
        raise OddError
    return numbers


def _version(names: dict[int, str], number: int) -> str:
    text = names.get(number & ~HIDDEN_VERSION, "")
    sign = "@" if number & HIDDEN_VERSION else "@@"
    return f"{sign}{text}" if text else "@" if number & HIDDEN_VERSION else ""


def _version_names(file: PlainFile) -> dict[int, str]:
    """Returns version names by index: those that the file defines, and those that it needs."""
    strings, found, steps = file.dynamic_strings(), dict[int, str](), iter(range(VERSIONS_MAX))
    defined, needed = file.tagged(VERDEF, T_VERDEF), file.tagged(VERNEED, T_VERNEED)
    if defined is not None:
        data = file.bytes_of(defined)
        for place in _chain(data, 0, (20, 16), steps):
            _, _, number, count, _, first, _ = struct.unpack_from("<HHHHIII", data, place)
            if not count or not _is_inside(data, place + first, 8):
                raise OddError
            if number > 1:
                found[number] = strings.at(struct.unpack_from("<I", data, place + first)[0])
    if needed is not None:
        data = file.bytes_of(needed)
        for place in _chain(data, 0, (16, 12), steps):
            first = struct.unpack_from("<I", data, place + 8)[0]
            for part in _chain(data, place + first, (16, 12), steps):
                _, _, number, name, _ = struct.unpack_from("<IHHII", data, part)
                found.setdefault(number & ~HIDDEN_VERSION, strings.at(name))
    return found


def _chain(data: bytes, place: int, row: tuple[int, int], steps: Iterator[int]) -> Iterator[int]:
    """Yields the offsets of a list's rows, each of which holds the distance to the next.

    Args:
        row: size of a row, and the offset of the distance in it.
        steps: limit for all lists of a file together.
    """
    size_bytes, next_at = row
    for _ in steps:
        if not _is_inside(data, place, size_bytes):
            break
        yield place
        step = struct.unpack_from("<I", data, place + next_at)[0]
        if not step:
            return
        place += step
    raise OddError


def _is_inside(data: bytes, place: int, size_bytes: int) -> bool:
    return place + size_bytes <= len(data)


# ---- relocations ----------------------------------------------------------------------------------------------------


def _read_relocations(file: PlainFile) -> list[bytes]:
    tables, processor = _dynamic_relocations(file), file.processor
    rows = np.concatenate(tables) if tables else np.empty(0, RELOCATION)
    if len(rows) and int(rows["type"].max()) > TYPE_MAX:
        raise OddError
    named = rows[np.isin(rows["type"], (processor.lazy_slot, processor.slot))]
    symbols = file.dynamic_symbols()
    if len(named) and int(named["symbol"].max()) >= len(symbols):
        raise OddError
    strings = file.dynamic_strings() if len(named) else Strings(b"")
    pointers = rows["addend"][rows["type"] == processor.relative]
    return [
        named["address"].astype("<u8").tobytes(),
        (named["type"] == processor.lazy_slot).astype("u1").tobytes(),
        _joined([strings.at(offset) for offset in symbols["name"][named["symbol"]].tolist()]),
        pointers.astype("<i8").tobytes(),
        _relocated_words(file).astype("<u8").tobytes(),
    ]


def _dynamic_relocations(file: PlainFile) -> list[Table]:
    """Returns the relocations that the dynamic linker applies. Others are unusual in a loaded file."""
    dynamic, ranges = file.dynamic, []
    if T_REL in dynamic or dynamic.get(T_PLTREL, T_RELA) != T_RELA:
        raise OddError
    for place, size in ((T_RELA, T_RELASZ), (T_JMPREL, T_PLTRELSZ)):
        if (place in dynamic) != (size in dynamic):
            raise OddError
        if place in dynamic:
            ranges.append((dynamic[place], dynamic[size]))
    for section in file.sections[np.isin(file.sections["type"], (REL, RELA))]:
        low, size_bytes = int(section["address"]), int(section["bytes"])
        is_known = any(start <= low and low + size_bytes <= start + length for start, length in ranges)
        if not section["flags"] & IN_MEMORY or section["type"] == REL or not is_known:
            raise OddError
    if any(length % RELOCATION.itemsize for _, length in ranges):
        raise OddError
    return [np.frombuffer(file.at_address(*part), RELOCATION) for part in ranges]


def _relocated_words(file: PlainFile) -> Table:
    """Returns addresses of words relocated in place (DT_RELR): an address, then bitmaps of the next 63 words each."""
    dynamic = file.dynamic
    if (T_RELR in dynamic) != (T_RELRSZ in dynamic) or (T_RELR in dynamic) != (file.only(RELR) is not None):
        raise OddError
    if T_RELR not in dynamic:
        return np.empty(0, "<u8")
    if dynamic[T_RELRSZ] % 8 or dynamic[T_RELRSZ] > RELR_BYTES_MAX:
        raise OddError
    words = np.frombuffer(file.at_address(dynamic[T_RELR], dynamic[T_RELRSZ]), "<u8")
    is_bits = (words & np.uint64(1)) != 0
    if not len(words):
        return words
    if is_bits[0]:
        raise OddError
    places = np.flatnonzero(~is_bits)
    last = np.repeat(places, np.diff(np.append(places, len(words))))
    behind = (np.arange(len(words)) - last - 1).astype(np.uint64)  # bitmaps since the last address
    starts = words[last] + np.uint64(8) + behind * np.uint64(63 * 8)
    bits = words[is_bits, None] >> np.arange(1, 64, dtype=np.uint64) & np.uint64(1) != 0
    addresses = starts[is_bits, None] + np.arange(63, dtype=np.uint64) * np.uint64(8)
    return np.concatenate((words[~is_bits], addresses[bits]))


_READERS: dict[bytes, Callable[[PlainFile], list[bytes]]] = {
    HEAD: _read_head,
    SYMBOLS: _read_symbols,
    RELOCATIONS: _read_relocations,
}
