# SPDX-License-Identifier: Apache-2.0
"""ELF files: segments, symbols, slots, frames. Each file is read once and cached.

Reads files only. Everything in a file is hostile until checked: what cannot be used raises NfprobeError with
a reason.
"""

from __future__ import annotations

import shlex
import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

from otel_nfprobe.base.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.base.processors import BY_ELF_MACHINE, NAMES, Processor
from otel_nfprobe.elf import elfanswers, elfplain
from otel_nfprobe.elf.cursor import FrameError
from otel_nfprobe.elf.ehframe import FrameTable, parse_frames
from otel_nfprobe.elf.elfparser import HEAD, RELOCATIONS, SYMBOLS, ParserError
from otel_nfprobe.elf.elftables import (
    Relocations,
    Segment,
    Slot,
    Symbol,
    read_head,
    read_relocations,
    read_symbols,
)
from otel_nfprobe.elf.filecontent import Content, FileContent
from otel_nfprobe.elf.objectfile import FILE_BYTES_MAX

CACHE_ENTRIES = 256
PAGE_BYTES = 4096
FILE_TYPES = (2, 3)  # ET_EXEC, ET_DYN
SEGMENT_LOAD, SEGMENT_INTERP, SEGMENT_FRAMES = 1, 3, 0x6474E550
EXECUTABLE = 1
GO_SECTIONS = (".go.buildinfo", ".gopclntab", ".note.go.buildid")
_Answer = TypeVar("_Answer")


class UnreadableError(NfprobeError):
    """What reads ELF files did not survive this one, or gave up."""


class ElfImage:
    """One ELF file for a supported processor.

    Args:
        path: what to call it in messages.
        content: its bytes, or where they are read.

    Attributes:
        processor: whose code is in it.
        failure: why one of its tables was not read; "" while all were that somebody asked for.

    Raises:
        UsageError: it is no ELF file, or a malformed one.
        RefusedError: it is for another machine.
        UnreadableError: it was not read.
    """

    def __init__(self, path: str, content: bytes | Content) -> None:
        self.path = path
        self.content = Content(content) if isinstance(content, bytes) else content
        self.cache: dict[str, Any] = {}  # what others worked out about the file
        self.failure = ""  # why a table of the file could not be read
        header = self.content.part(0, 64)
        self.processor = _check_header(path, header)
        head = self._parse(HEAD, read_head)
        self.has_interpreter = any(kind == SEGMENT_INTERP for kind, _ in head.segments)
        self.segments = [segment for kind, segment in head.segments if kind == SEGMENT_LOAD]
        if not self.segments:
            raise UsageError(f"{path} has nothing that is loaded.", "nfprobe functions ELF-FILE")
        self._ranges = [(segment.address, segment.file_bytes, segment.offset) for segment in self.segments]
        self.lowest = min(segment.address for segment in self.segments) & -PAGE_BYTES
        self.code_ranges = [
            (segment.address, segment.address + segment.file_bytes)
            for segment in self.segments
            if segment.flags & EXECUTABLE
        ]
        self.sections = head.sections
        frames = (segment.address for kind, segment in head.segments if kind == SEGMENT_FRAMES)
        self._frame_header_address = next(frames, None)
        self.build_id = next((text.hex() for name, kind, text in head.notes if (name, kind) == ("GNU", 3)), "")
        is_of_go = any(name in GO_SECTIONS for name, _, _ in self.sections)
        self.is_go = is_of_go or any(name == "Go" for name, _, _ in head.notes)
        self.soname = head.soname

    def _parse(self, question: bytes, read: Callable[[list[memoryview]], _Answer]) -> _Answer:
        """What another process reads of the file (elfparser.py), or read earlier.

        Raises:
            UsageError: it is no ELF file.
            UnreadableError: it was not read, now or before.
        """
        if self.failure:
            raise self._unreadable()
        try:
            found = elfanswers.ask(question, self.content, read)
        except ParserError as error:
            self.failure = str(error)
            raise self._unreadable() from None
        if found is None:
            raise UsageError(f"{self.path} is not a readable ELF file.", "nfprobe functions ELF-FILE")
        return found

    def _parse_or(self, nothing: _Answer, question: bytes, read: Callable[[list[memoryview]], _Answer]) -> _Answer:
        """As `_parse`; without raising: the file's functions are refused later on, and the others are not."""
        try:
            return self._parse(question, read)
        except UnreadableError:
            return nothing

    def _unreadable(self) -> UnreadableError:
        return UnreadableError(f"{self.path} cannot be read: {self.failure}.", f"file {shlex.quote(self.path)}")

    @property
    def unread(self) -> bool:
        """Whether a table of the file cannot be read: too little is known of its code then to change any."""
        _ = self.symbols, self._relocations
        return bool(self.failure)

    def check(self) -> None:
        """Raises UnreadableError when a table of the file could not be read."""
        if self.failure:
            raise self._unreadable()

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
        return self._parse_or([], SYMBOLS, read_symbols)

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

    def find_export(self, name: str) -> Symbol | None:
        """One of `exports`, without reading the others; nothing is read in nearly all files without such a symbol."""
        if not self.may_name(name):
            return None
        known: dict[str, Symbol | None] = self.cache.setdefault("found exports", {})
        if name not in known and "symbols" not in self.__dict__:
            parts = elfplain.read_dynamic_symbols(self.content, name)
            with suppress(ValueError, struct.error):
                if parts is not None:
                    named = [symbol for symbol in read_symbols(parts) if symbol.name == name]
                    known[name] = min(named, key=lambda symbol: symbol.rank, default=None)
        return known[name] if name in known else self.exports.get(name)

    def may_name(self, *names: str) -> bool:
        """Whether it can import or export a symbol of one of the names: quick, and for nearly all files right."""
        known: dict[str, bool] = self.cache.setdefault("may name", {})
        wanted = [name for name in names if name not in known]
        if wanted:
            found = elfplain.dynamic_names(self.content)
            known.update({name: found is None or name.encode() + b"\0" in found for name in wanted})
        return any(known[name] for name in names)

    def may_define(self, name: str) -> bool:
        """Whether one of `symbols` can have that name: as quick, and never wrongly False."""
        known: dict[str, bool] = self.cache.setdefault("may define", {})
        if name not in known:
            found = elfplain.symbol_names(self.content)
            known[name] = found is None or any(name.encode() + end in found for end in (b"\0", b"@"))
        return known[name]

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
        found = self._parse_or(Relocations([], [], []), RELOCATIONS, read_relocations)
        targets = [*found.pointers, *(int.from_bytes(self.read(address, 8), "little") for address in found.words)]
        pointers = sorted(item for item in targets if any(start <= item < end for start, end in self.code_ranges))
        return found.slots, pointers

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
            return parse_frames(content, address, self.processor)
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


_images: OrderedDict[tuple[int, ...], ElfImage | UnreadableError] = OrderedDict()


def read_image(file: Any, path: str) -> ElfImage:
    """The image of an open file, from the cache if the file has not changed.

    Raises:
        UsageError, RefusedError, UnreadableError: as ElfImage; a file that was not read is not tried again.
    """
    content = FileContent(file, path)
    key = content.key
    known = _images.get(key)
    if known is None:
        if content.size_bytes > FILE_BYTES_MAX:
            raise UsageError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB.")
        try:
            with content.read_from(file):
                known = ElfImage(path, content)
        except UnreadableError as error:
            known = error
        _images[key] = known
        while len(_images) > CACHE_ENTRIES:
            _images.popitem(last=False)
    _images.move_to_end(key)
    if isinstance(known, UnreadableError):
        raise UnreadableError(known.sentence, known.next_command)
    return known


def _check_header(path: str, data: bytes) -> Processor:
    if len(data) < 64 or data[:4] != b"\x7fELF":
        raise UsageError(f"{path} is not an ELF file.", "nfprobe functions ELF-FILE")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if data[4] != 2:
        raise RefusedError(f"{path} is a 32-bit program; nfprobe probes 64-bit x86 programs only.")
    if data[5] != 1 or machine not in BY_ELF_MACHINE:
        raise RefusedError(f"{path} is for another processor (ELF machine {machine}), not for {NAMES}.")
    if kind not in FILE_TYPES:
        raise UsageError(f"{path} is an ELF file, but neither a program nor a shared library.")
    return BY_ELF_MACHINE[machine]


def _until_terminator(content: bytes) -> bytes:
    position = 0
    while position + 4 <= len(content):
        size = struct.unpack_from("<I", content, position)[0]
        if size == 0 or size == 0xFFFFFFFF or position + 4 + size > len(content):
            return content[:position]
        position += 4 + size
    return content[:position]
