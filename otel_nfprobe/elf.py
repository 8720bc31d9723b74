# SPDX-License-Identifier: Apache-2.0
"""ELF files: segments, symbols, slots, frames. Each file is read once and cached.

Reads files only. Everything in a file is hostile until checked: what cannot be used raises NfprobeError with
a reason. Called by modules.py and by everything that looks at functions.
"""

from __future__ import annotations

import io
import struct
import warnings
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from functools import cached_property
from typing import Any, NamedTuple

import lief

from otel_nfprobe.cursor import FrameError
from otel_nfprobe.ehframe import FrameTable, parse_frames
from otel_nfprobe.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.filecontent import Content, FileContent
from otel_nfprobe.names.objectfile import FILE_BYTES_MAX, MACHINE_X86_64

CACHE_ENTRIES = 256
PAGE_BYTES = 4096
FILE_TYPES = (2, 3)  # ET_EXEC, ET_DYN
SEGMENT_LOAD, SEGMENT_INTERP, SEGMENT_FRAMES = 1, 3, 0x6474E550
EXECUTABLE = 1
JUMP_SLOT, GLOB_DAT, RELATIVE = 7, 6, 8
GO_SECTIONS = (".go.buildinfo", ".gopclntab", ".note.go.buildid")
UNREADABLE_NAME = "?"
SONAME = 14  # DT_SONAME
_TABLES = ("dyn_symbols", "symtab_symbols", "symbol_versions", "relocations", "notes", "overlay")

lief.logging.disable()
# lief warns of numbers that it has no name for; they are ordinary in files of other compilers.
warnings.filterwarnings("ignore", ".* is not a valid ", RuntimeWarning)


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
        parsed = self._parse("notes")
        self.has_interpreter = any(int(segment.type) == SEGMENT_INTERP for segment in parsed.segments)
        self.segments = [_segment_of(segment) for segment in parsed.segments if int(segment.type) == SEGMENT_LOAD]
        if not self.segments:
            raise UsageError(f"{path} has nothing that is loaded.", "nfprobe functions ELF-FILE")
        self._ranges = [(segment.address, segment.file_bytes, segment.offset) for segment in self.segments]
        self.lowest = min(segment.address for segment in self.segments) & -PAGE_BYTES
        self.code_ranges = [
            (segment.address, segment.address + segment.file_bytes)
            for segment in self.segments
            if segment.flags & EXECUTABLE
        ]
        self.sections = [
            (_text(section), int(section.virtual_address), int(section.size)) for section in parsed.sections
        ]
        frames = (int(item.virtual_address) for item in parsed.segments if int(item.type) == SEGMENT_FRAMES)
        self._frame_header_address = next(frames, None)
        notes = [(_name_of(note), int(note.original_type), bytes(note.description)) for note in parsed.notes]
        self.build_id = next((content.hex() for name, kind, content in notes if (name, kind) == ("GNU", 3)), "")
        self.is_go = any(name in GO_SECTIONS for name, _, _ in self.sections) or any(note[0] == "Go" for note in notes)
        self.soname = next((_text(entry) for entry in parsed.dynamic_entries if int(entry.tag) == SONAME), "")

    def _parse(self, *tables: str) -> Any:
        """What lief reads of the file. Nobody keeps it: with all tables it takes several times the file's size.

        Args:
            tables: those of its ParserConfig that are wanted.
        """
        wanted = lief.ELF.ParserConfig()
        for table in _TABLES:
            setattr(wanted, f"parse_{table}", table in tables)
        content = self.content.part(0, self.content.size_bytes)  # of most files nothing else is looked at: not kept
        parsed = lief.ELF.parse(io.BytesIO(content), wanted)
        if parsed is None:
            raise UsageError(f"{self.path} is not a readable ELF file.", "nfprobe functions ELF-FILE")
        return parsed

    @property
    def data(self) -> bytes:
        """All bytes of the file. Whoever looks at many keeps them in a variable: they may have to be read again."""
        return self.content.whole()

    def read(self, address: int, size: int) -> bytes:
        """Bytes at one of the file's own addresses; fewer, or none, where the file has no more."""
        for start, file_bytes, offset in self._ranges:
            inside = address - start
            if 0 <= inside < file_bytes:
                return self.content.whole()[offset + inside : offset + min(inside + size, file_bytes)]
        return b""

    def code_at_offset(self, offset: int) -> Segment | None:
        """The loaded segment that an executable mapping of the file from this offset belongs to.

        LLVM's linker leaves no gaps in files: a page may hold the end of one segment and the beginning of the next,
        and is mapped for both.
        """
        around = [
            segment
            for segment in self.segments
            if segment.offset & -PAGE_BYTES <= offset < segment.offset + max(segment.file_bytes, 1)
        ]
        return next((segment for segment in around if segment.flags & EXECUTABLE), next(iter(around), None))

    @cached_property
    def symbols(self) -> list[Symbol]:
        """Defined functions and objects of .dynsym and .symtab."""
        found = []
        versions: dict[int, str] = {}
        parsed = self._parse("dyn_symbols", "symtab_symbols", "symbol_versions")
        for source, table in (("dynsym", parsed.dynamic_symbols), ("symtab", parsed.symtab_symbols)):
            for symbol in table:
                kind = int(symbol.type) & 0xF
                address = int(symbol.value)
                if kind in (1, 2, 10) and address and int(symbol.shndx) != 0:
                    name, version = split_version(_text(symbol))
                    if name:
                        version = _version_of(symbol, versions) if source == "dynsym" else version
                        rank = rank_of(name, int(symbol.binding), version)
                        size, binding = int(symbol.size), int(symbol.binding)
                        found.append(Symbol(address, size, name, kind, rank, source, version, binding))
        return found

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
    def names_by_version(self) -> frozenset[str]:
        """Names of exported functions whose versions are different ones."""
        found = set()
        for symbol in self.symbols:
            if symbol.source == "dynsym" and symbol.address != self.exports[symbol.name].address:
                found.add(symbol.name)
        return frozenset(found)

    @property
    def slots(self) -> list[Slot]:
        """The GOT slots that stand for a name (JUMP_SLOT and GLOB_DAT)."""
        return self._relocations[0]

    @property
    def code_pointers(self) -> list[int]:
        """Code addresses that relocated data holds (jump targets of computed gotos, callbacks), sorted."""
        return self._relocations[1]

    @cached_property
    def _relocations(self) -> tuple[list[Slot], list[int]]:
        slots, targets = {}, []
        parsed = self._parse("dyn_symbols", "relocations")  # what it holds ends with it
        for relocation in parsed.relocations:
            if relocation.is_relatively_encoded:  # DT_RELR: the addend stands in the relocated word
                targets.append(int.from_bytes(self.read(int(relocation.address), 8), "little"))
                continue
            kind = int(relocation.r_info(lief.ELF.Header.CLASS.ELF64)) & 0xFFFFFFFF
            if kind == RELATIVE:
                targets.append(int(relocation.addend))
            elif kind in (JUMP_SLOT, GLOB_DAT):
                symbol, address = relocation.symbol, int(relocation.address)
                slots[address] = Slot(address, _text(symbol) if symbol else "", kind == JUMP_SLOT)
        pointers = sorted(item for item in targets if any(start <= item < end for start, end in self.code_ranges))
        return [slots[address] for address in sorted(slots)], pointers

    @cached_property
    def slot_names(self) -> dict[int, str]:
        """Names by slot address."""
        return {slot.address: slot.name for slot in self.slots}

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
        if self._frame_header_address is not None:
            header = self.read(self._frame_header_address, 8)
            if len(header) == 8 and header[0] == 1 and header[1] == 0x1B:
                address = self._frame_header_address + 4 + struct.unpack_from("<i", header, 4)[0]
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


def _segment_of(segment: Any) -> Segment:
    return Segment(
        int(segment.virtual_address),
        int(segment.file_offset),
        int(segment.physical_size),
        int(segment.virtual_size),
        int(segment.flags),
    )


def _text(item: Any) -> str:
    # lief raises for a name that is not UTF-8.
    try:
        return str(item.name)
    except UnicodeDecodeError:
        return UNREADABLE_NAME


def _name_of(note: Any) -> str:
    return _text(note).rstrip("\0")


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


def _version_of(symbol: Any, known: dict[int, str]) -> str:
    if not symbol.has_version:
        return ""
    value = int(symbol.symbol_version.value)
    if value not in known:
        version = symbol.symbol_version
        text = _text(version.symbol_version_auxiliary) if version.has_auxiliary_version else ""
        known[value] = f"{'@' if value & 0x8000 else '@@'}{text}" if text else "@" if value & 0x8000 else ""
    return known[value]


def _until_terminator(content: bytes) -> bytes:
    position = 0
    while position + 4 <= len(content):
        size = struct.unpack_from("<I", content, position)[0]
        if size == 0 or size == 0xFFFFFFFF or position + 4 + size > len(content):
            return content[:position]
        position += 4 + size
    return content[:position]
