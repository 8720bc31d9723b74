# SPDX-License-Identifier: Apache-2.0
"""ELF files: segments, symbols, slots, frames. Each file is read once and cached.

Reads files only. Everything in a file is hostile until checked: what cannot be used raises NfprobeError with
a reason. Called by modules.py and by everything that looks at functions.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from otel_nfprobe.columns import Rows
from otel_nfprobe.cursor import FrameError
from otel_nfprobe.ehframe import FrameTable, parse_frames
from otel_nfprobe.elftables import SYMBOL, Dynamic, Note, ProgramHeader, name_at, notes_in, read_program_headers
from otel_nfprobe.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.filecontent import Content, FileContent
from otel_nfprobe.names.objectfile import FILE_BYTES_MAX, MACHINE_X86_64, NOTE, SYMTAB, ObjectError, ObjectFile, Section

CACHE_ENTRIES = 256
PAGE_BYTES = 4096
FILE_TYPES = (2, 3)  # ET_EXEC, ET_DYN
SEGMENT_LOAD, SEGMENT_DYNAMIC, SEGMENT_INTERP, SEGMENT_NOTE, SEGMENT_FRAMES = 1, 2, 3, 4, 0x6474E550
SECTION_DYNAMIC_SYMBOLS = 11
SYMBOL_KINDS = (1, 2, 10)  # STT_OBJECT, STT_FUNC, STT_GNU_IFUNC
EXECUTABLE = 1
JUMP_SLOT, GLOB_DAT, RELATIVE = 7, 6, 8
GO_SECTIONS = (".go.buildinfo", ".gopclntab", ".note.go.buildid")
UNREADABLE_NAME = "?"


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
    kind: int  # STT_FUNC 2, STT_OBJECT 1, STT_GNU_IFUNC 10
    rank: int  # smaller is the better name among those of one address
    source: str  # one of SOURCES in names.py
    version: str = ""  # "@@VERSION" what programs bind to, "@VERSION" kept for old ones
    binding: int = 1  # STB_LOCAL 0, STB_GLOBAL 1, STB_WEAK 2


class Slot(NamedTuple):
    """A word that the dynamic linker fills with the address of a named function or object."""

    address: int
    name: str
    lazy: bool  # JUMP_SLOT: may still lead to the dynamic linker


class ElfImage:
    """One x86-64 ELF file.

    Args:
        path: what to call it in messages.
        content: its bytes, or where they are read.

    Raises:
        UsageError: it is no ELF file, or a malformed one.
        RefusedError: it is for another machine.
    """

    def __init__(self, path: str, content: bytes | Content) -> None:
        self.path = path
        self.content = Content(content) if isinstance(content, bytes) else content
        self.cache: dict[str, Any] = {}  # what others worked out about the file
        header = self.content.part(0, 64)
        _check_header(path, header)
        self.is_fixed = struct.unpack_from("<H", header, 16)[0] == 2
        self._headers = read_program_headers(self.content.part)
        self.has_interpreter = any(item.kind == SEGMENT_INTERP for item in self._headers)
        self.segments = [_segment_of(item) for item in self._headers if item.kind == SEGMENT_LOAD]
        if not self.segments:
            raise UsageError(f"{path} has nothing that is loaded.", "nfprobe functions ELF-FILE")
        self.lowest = min(segment.address for segment in self.segments) & -PAGE_BYTES
        self.code_ranges = [
            (segment.address, segment.address + segment.file_bytes)
            for segment in self.segments
            if segment.flags & EXECUTABLE
        ]
        self._sections = _read_sections(self.content)
        self.sections = [(section.name, section.address, section.size) for section in self._sections]

    @property
    def data(self) -> bytes:
        """All bytes of the file. Whoever looks at many keeps them in a variable: they may have to be read again."""
        return self.content.whole()

    def read(self, address: int, size: int) -> bytes:
        """Bytes at one of the file's own addresses; fewer, or none, where the file has no more."""
        offset, size = self._place(address, size)
        return self.data[offset : offset + size] if size else b""

    def _read_table(self, address: int, size: int) -> bytes:
        """As read, for tables of files that are not looked at otherwise."""
        return self.content.part(*self._place(address, size))

    def _place(self, address: int, size: int) -> tuple[int, int]:
        """Where in the file the bytes at an address are, and how many of them."""
        for segment in self.segments:
            inside = address - segment.address
            if 0 <= inside < segment.file_bytes:
                return segment.offset + inside, min(size, segment.file_bytes - inside)
        return 0, 0

    def segment_at_offset(self, offset: int) -> Segment | None:
        """The loaded segment that a mapping of the file from this offset belongs to."""
        for segment in self.segments:
            start = segment.offset & -PAGE_BYTES
            if start <= offset < segment.offset + max(segment.file_bytes, 1):
                return segment
        return None

    def _notes(self) -> Iterator[Note]:
        for header in self._headers:
            if header.kind == SEGMENT_NOTE:
                yield from notes_in(self.content.part(header.offset, header.file_bytes), header.alignment)
        for section in self._sections:
            if section.kind == NOTE:
                yield from notes_in(self.content.part(section.offset, section.size), 4)

    @cached_property
    def build_id(self) -> str:
        """The build id in hex, or "" when the file has none."""
        return next((note.content.hex() for note in self._notes() if note.name == b"GNU" and note.kind == 3), "")

    @cached_property
    def is_go(self) -> bool:
        """Whether the Go compiler made it."""
        if any(name in GO_SECTIONS for name, _, _ in self.sections):
            return True
        return any(note.name == b"Go" for note in self._notes())

    @cached_property
    def _dynamic(self) -> Dynamic:
        header = next((item for item in self._headers if item.kind == SEGMENT_DYNAMIC), None)
        content = b"" if header is None else self.content.part(header.offset, header.file_bytes)
        return Dynamic(content, self._read_table, self.content.size_bytes)

    @cached_property
    def soname(self) -> str:
        """DT_SONAME, or ""."""
        return _text(self._dynamic.soname)

    @cached_property
    def symbols(self) -> list[Symbol]:
        """Defined functions and objects of .dynsym and .symtab."""
        table = self._dynamic_symbols()
        found = list(_symbols_of(table, self._dynamic.strings, "dynsym", self._versions(len(table))))
        for section in self._sections:
            if section.kind == SYMTAB and section.link < len(self._sections):
                names = self._sections[section.link]
                rows = self.content.part(section.offset, section.size - section.size % SYMBOL.itemsize)
                rows = rows[: len(rows) - len(rows) % SYMBOL.itemsize]
                texts = self.content.part(names.offset, names.size)
                found += _symbols_of(np.frombuffer(rows, SYMBOL), texts, "symtab", None)
        return found

    def _dynamic_symbols(self) -> Rows:
        sizes = [section.size for section in self._sections if section.kind == SECTION_DYNAMIC_SYMBOLS]
        return self._dynamic.symbols(sizes[0] // SYMBOL.itemsize if sizes else None)

    def _versions(self, count: int) -> list[str] | None:
        """Of each dynamic symbol: "@@VERSION", "@VERSION" or ""; None when the file has no versions."""
        numbers = self._dynamic.version_numbers(count).tolist()
        if len(numbers) < count:
            return None
        names = {0: "", 1: "", **{number: name for number, name in self._dynamic.version_names.items() if number > 1}}
        known = {number: _version(names.get(number & 0x7FFF, ""), number & 0x8000 != 0) for number in set(numbers)}
        return [known[number] for number in numbers]

    def names_address(self, low: int, high: int) -> bool:
        """Whether a symbol stands for an address in [low, high)."""
        position = bisect_left(self._symbol_addresses, low)
        return position < len(self._symbol_addresses) and self._symbol_addresses[position] < high

    @cached_property
    def _symbol_addresses(self) -> list[int]:
        return sorted({symbol.address for symbol in self.symbols})

    @cached_property
    def exports(self) -> dict[str, Symbol]:
        """Symbols that other modules can bind to, by name; the default version where there are several."""
        found: dict[str, Symbol] = {}
        for symbol in self.symbols:
            if symbol.source == "dynsym":
                known = found.get(symbol.name)
                if known is None or symbol.rank < known.rank:
                    found[symbol.name] = symbol
        return found

    @cached_property
    def slots(self) -> list[Slot]:
        """The GOT slots that stand for a name (JUMP_SLOT and GLOB_DAT)."""
        rows = self._dynamic.relocations
        rows = rows[(rows["kind"] == JUMP_SLOT) | (rows["kind"] == GLOB_DAT)]
        symbols, strings = self._dynamic_symbols(), self._dynamic.strings
        found = {}
        for address, kind, symbol, _ in rows.tolist():
            name = name_at(strings, int(symbols["name"][symbol])) if 0 < symbol < len(symbols) else b""
            found[address] = Slot(address, _text(name), kind == JUMP_SLOT)
        return [found[address] for address in sorted(found)]

    @cached_property
    def slot_names(self) -> dict[int, str]:
        """Names by slot address."""
        return {slot.address: slot.name for slot in self.slots}

    @cached_property
    def code_pointers(self) -> list[int]:
        """Code addresses that relocated data holds (jump targets of computed gotos, callbacks), sorted."""
        rows = self._dynamic.relocations
        targets = rows["addend"][rows["kind"] == RELATIVE].tolist()
        # The addend stands in the relocated word.
        targets += [int.from_bytes(self.read(address, 8), "little") for address in self._dynamic.packed_relocations()]
        return sorted(target for target in targets if any(start <= target < end for start, end in self.code_ranges))

    @cached_property
    def frames(self) -> FrameTable:
        """Function ranges and frame rules.

        Raises:
            NfprobeError: `.eh_frame` is malformed.
        """
        address, content = self._frame_section()
        try:
            return parse_frames(content, address)
        except FrameError as error:
            raise NfprobeError(f"The .eh_frame section of {self.path} is malformed: {error}.") from error

    def _frame_section(self) -> tuple[int, bytes]:
        for name, address, size in self.sections:
            if name == ".eh_frame" and address:
                return address, self.read(address, size)
        # No section headers: PT_GNU_EH_FRAME leads to a header with a pointer to the section.
        for segment in self._headers:
            if segment.kind == SEGMENT_FRAMES:
                header = self.read(segment.address, 8)
                if len(header) == 8 and header[0] == 1 and header[1] == 0x1B:
                    address = segment.address + 4 + struct.unpack_from("<i", header, 4)[0]
                    return address, _until_terminator(self.read(address, FILE_BYTES_MAX))
        return 0, b""

    def section_of(self, address: int) -> str:
        """Name of the section that holds the address, or ""."""
        ranges, starts = self._section_ranges
        index = bisect_right(starts, address) - 1
        if index >= 0 and address < ranges[index][1]:
            return ranges[index][2]
        return ""

    @cached_property
    def _section_ranges(self) -> tuple[list[tuple[int, int, str]], list[int]]:
        ranges = sorted((address, address + size, name) for name, address, size in self.sections if address)
        return ranges, [start for start, _, _ in ranges]


_images: OrderedDict[tuple[int, ...], ElfImage] = OrderedDict()


def read_image(file: Any, path: str) -> ElfImage:
    """The image of an open file, from the cache if the file has not changed.

    Raises:
        UsageError, RefusedError: as ElfImage.
    """
    content = FileContent(file, path)
    key = content.key
    image = _images.get(key)
    if image is None:
        if content.size_bytes > FILE_BYTES_MAX:
            raise UsageError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB.")
        image = ElfImage(path, content)
        _images[key] = image
        while len(_images) > CACHE_ENTRIES:
            _images.popitem(last=False)
    _images.move_to_end(key)
    return image


def _check_header(path: str, data: bytes) -> None:
    if len(data) < 64 or data[:4] != b"\x7fELF":
        raise UsageError(f"{path} is not an ELF file.", "nfprobe functions ELF-FILE")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if data[4] != 2:
        raise RefusedError(f"{path} is a 32-bit program; nfprobe probes 64-bit x86 programs only.")
    if data[5] != 1 or machine != MACHINE_X86_64:
        raise RefusedError(f"{path} is for another processor (ELF machine {machine}), not for x86-64.")
    if kind not in FILE_TYPES:
        raise UsageError(f"{path} is an ELF file, but neither a program nor a shared library.")


def _segment_of(header: ProgramHeader) -> Segment:
    return Segment(header.address, header.offset, header.file_bytes, header.memory_bytes, header.flags)


def _read_sections(content: Content) -> list[Section]:
    # What is loaded is found without them.
    try:
        return ObjectFile(content.part).sections
    except ObjectError:
        return []


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return UNREADABLE_NAME


def _symbols_of(table: Rows, names: bytes, source: str, versions: list[str] | None) -> Iterator[Symbol]:
    kinds = table["info"] & 0xF
    wanted = (table["value"] != 0) & (table["section"] != 0) & np.isin(kinds, SYMBOL_KINDS)
    places = np.flatnonzero(wanted)
    for place, (offset, info, _, _, address, size) in zip(places.tolist(), table[places].tolist(), strict=True):
        name, version = split_version(_text(name_at(names, offset)))
        if name:
            if source == "dynsym":
                version = "" if versions is None else versions[place]
            rank, binding = rank_of(name, info >> 4, version), info >> 4
            yield Symbol(address, size, name, info & 0xF, rank, source, version, binding)


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


def _version(name: str, is_hidden: bool) -> str:
    if not name:
        return "@" if is_hidden else ""
    return f"{'@' if is_hidden else '@@'}{name}"


def _until_terminator(content: bytes) -> bytes:
    position = 0
    while position + 4 <= len(content):
        size = struct.unpack_from("<I", content, position)[0]
        if size == 0 or size == 0xFFFFFFFF or position + 4 + size > len(content):
            return content[:position]
        position += 4 + size
    return content[:position]
