# SPDX-License-Identifier: Apache-2.0
"""Code map: names and unwind rows of the code in an arena, for debuggers and unwinders.

One ELF object in the arena, after the code that it describes. Its .eh_frame is also passed to the C++ runtime's
unwinder (__register_frame), so the rows are in memory once. The target's probe library announces the object to gdb,
lldb and libunwind (native/probe/jit.c). docs/stacks.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.processors import HOST
from otel_nfprobe.shm.session import Session

# In the style of compilers' own function parts (.cold, .isra): demanglers know the form.
PROBE_SUFFIX = ".nfprobe"
PROBE, DISPLACED, BODY = range(3)

HEADER_BYTES = 64
SECTION_BYTES = 64
ALIGNMENT_BYTES = 8
MERGE_BYTES = 64  # padding between pieces that become one symbol
ROW_BYTES = 8  # per unwind entry in .eh_frame_hdr
FIXED_BYTES = 1024  # headers, section table, section names, padding
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
# Sections, in the order of the section table: native/probe/jit.c relies on the first three.
SECTION_NAMES = ("", ".text", ".eh_frame", ".eh_frame_hdr", ".symtab", ".strtab", ".shstrtab")
TEXT, EH_FRAME, EH_FRAME_HDR, SYMTAB, STRTAB, SHSTRTAB = range(1, 7)

ET_EXEC, EV_CURRENT = 2, 1
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS = 1, 2, 3, 8
SHF_ALLOC, SHF_EXECINSTR = 2, 4
LOCAL_FUNCTION, GLOBAL_FUNCTION = 0x02, 0x12  # st_info
HEAD_BYTES = 4096  # before the code of an arena that is a file
PROGRAM_HEADER_BYTES = 56
PT_LOAD, PT_GNU_EH_FRAME, PT_NOTE = 1, 0x6474E550, 4
PF_X, PF_R = 1, 4
NOTE_BUILD_ID = struct.pack("<III4s", 4, 20, 3, b"GNU\0")
# Encodings of .eh_frame_hdr: offset from the field, plain number, offset from the section's start.
HDR_ENCODINGS = bytes((1, 0x1B, 0x03, 0x3B))


@dataclass(frozen=True, slots=True)
class CodePart:
    """A piece of code in an arena.

    Attributes:
        address: in the target.
        size_bytes: greater than 0.
        function: raw name of the probed function.
        kind: PROBE for injected code; instructions of the function itself are DISPLACED or its whole BODY.
    """

    address: int
    size_bytes: int
    function: str
    kind: int

    @property
    def symbol(self) -> str:
        """Returns the symbol for debuggers: only injected code gets a name that differs from the function's."""
        return self.function + PROBE_SUFFIX if self.kind == PROBE else self.function


@dataclass(frozen=True, slots=True)
class CodeObject:
    """An ELF object for one address.

    Attributes:
        image: its bytes.
        rows_offset: offset of the .eh_frame in it.
    """

    image: bytes
    rows_offset: int


def object_room_bytes(functions: Iterable[tuple[str, int]]) -> int:
    """Returns the maximum size of an object, excluding twice its unwind rows.

    Args:
        functions: name of each, and its number of parts after merging neighbours of one kind.
    """
    symbol_bytes = SYMBOL.itemsize + len(PROBE_SUFFIX) + 1
    return FIXED_BYTES + sum(parts * (symbol_bytes + len(name.encode())) for name, parts in functions)


def build_object(parts: Sequence[CodePart], rows: bytes, address: int) -> CodeObject:
    """Builds the ELF object that describes code.

    Args:
        parts: not empty, in any order.
        rows: .eh_frame with its terminator and absolute addresses.
        address: of the object in the target.
    """
    merged = _merge(sorted(parts, key=lambda part: part.address))
    low, high = merged[0].address, merged[-1].address + merged[-1].size_bytes
    symbols, strings, locals_ = _symbols(merged)
    section_strings, _ = _string_table(SECTION_NAMES)
    index = _index_rows(rows)
    image = bytearray(HEADER_BYTES)
    offsets, sizes = {TEXT: HEADER_BYTES}, {TEXT: high - low}

    def append(section: int, body: bytes) -> None:
        image.extend(bytes(-len(image) % ALIGNMENT_BYTES))
        offsets[section], sizes[section] = len(image), len(body)
        image.extend(body)

    append(EH_FRAME, rows)
    append(EH_FRAME_HDR, bytes(len(HDR_ENCODINGS) + 8 + ROW_BYTES * len(index)))
    place = offsets[EH_FRAME_HDR]
    image[place : place + sizes[EH_FRAME_HDR]] = _eh_frame_hdr(index, address + offsets[EH_FRAME], address + place)
    append(SYMTAB, symbols)
    append(STRTAB, strings)
    append(SHSTRTAB, section_strings)
    addresses = {TEXT: low, **{section: address + offsets[section] for section in (EH_FRAME, EH_FRAME_HDR)}}
    append(len(SECTION_NAMES), _section_table(offsets, sizes, addresses, locals_))
    image[:HEADER_BYTES] = _header(offsets[len(SECTION_NAMES)])
    return CodeObject(bytes(image), offsets[EH_FRAME])


def publish(session: Session, address: int, code: CodeObject) -> None:
    """Announces an object that has been written to `address` in the target.

    Raises:
        NfprobeError: the helper thread does not respond, or the target is out of memory.
    """
    # Without libgcc_s in its file system a target has neither C++ exceptions nor backtrace() to support.
    session.ask(lib.NFP_COMMAND_REGISTER_FRAMES, address + code.rows_offset)
    if session.ask(lib.NFP_COMMAND_REGISTER_CODE, address, len(code.image)) != 0:
        raise NfprobeError(
            f"Process {session.pid} has no memory for the list of probes that debuggers read.",
            f"nfprobe doctor {session.pid}",
        )


def _merge(parts: Sequence[CodePart]) -> list[CodePart]:
    """Merges neighbours of one function and kind: the exits of a relocated body and its entry."""
    merged: list[CodePart] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last and (last.function, last.kind) == (part.function, part.kind):
            gap = part.address - (last.address + last.size_bytes)
            if 0 <= gap < MERGE_BYTES:
                merged[-1] = replace(last, size_bytes=part.address + part.size_bytes - last.address)
                continue
        merged.append(part)
    return merged


def _symbols(parts: Sequence[CodePart]) -> tuple[bytes, bytes, int]:
    """Returns symbol table, its strings, and the number of local symbols, which come first as ELF requires.

    Only whole bodies are global. The original of such a function never runs, so breakpoints on its name belong in its
    copy.
    """
    ordered = [part for part in parts if part.kind != BODY] + [part for part in parts if part.kind == BODY]
    strings, starts = _string_table([part.symbol for part in ordered])
    table = np.zeros(len(ordered) + 1, dtype=SYMBOL)
    rows = table[1:]
    rows["name"] = starts
    rows["info"] = [GLOBAL_FUNCTION if part.kind == BODY else LOCAL_FUNCTION for part in ordered]
    rows["section"] = TEXT
    rows["value"] = [part.address for part in ordered]
    rows["size"] = [part.size_bytes for part in ordered]
    return table.tobytes(), strings, 1 + sum(part.kind != BODY for part in ordered)


def _string_table(names: Sequence[str]) -> tuple[bytes, list[int]]:
    encoded = [name.encode(errors="replace") + b"\0" for name in names]
    starts = np.cumsum([1] + [len(name) for name in encoded])
    return b"\0" + b"".join(encoded), starts[:-1].tolist()


def _index_rows(rows: bytes) -> NDArray[np.int64]:
    """Returns (start address, offset) of each unwind entry (FDE), sorted by address."""
    found: list[tuple[int, int]] = []
    position = 0
    while size := int.from_bytes(rows[position : position + 4], "little"):
        if rows[position + 4 : position + 8] != b"\0\0\0\0":  # otherwise a common entry (CIE)
            found.append((int.from_bytes(rows[position + 8 : position + 16], "little"), position))
        position += 4 + size
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


def _eh_frame_hdr(index: NDArray[np.int64], rows_address: int, own_address: int) -> bytes:
    distances = np.array((-own_address, rows_address - own_address))
    table: bytes = (index + distances).astype("<i4").tobytes()
    pointer = rows_address - (own_address + len(HDR_ENCODINGS))
    return HDR_ENCODINGS + struct.pack("<iI", pointer, len(index)) + table


def _section_table(offsets: dict[int, int], sizes: dict[int, int], addresses: dict[int, int], locals_: int) -> bytes:
    _, names = _string_table(SECTION_NAMES)
    kinds = {  # type, flags, link, info, bytes of one entry
        TEXT: (SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, 0, 0, 0),
        EH_FRAME: (SHT_PROGBITS, SHF_ALLOC, 0, 0, 0),
        EH_FRAME_HDR: (SHT_PROGBITS, SHF_ALLOC, 0, 0, 0),
        SYMTAB: (SHT_SYMTAB, 0, STRTAB, locals_, SYMBOL.itemsize),
        STRTAB: (SHT_STRTAB, 0, 0, 0, 0),
        SHSTRTAB: (SHT_STRTAB, 0, 0, 0, 0),
    }
    table = bytes(SECTION_BYTES)
    for section, (kind, flags, link, info, entry_bytes) in kinds.items():
        where = (addresses.get(section, 0), offsets[section], sizes[section])
        table += struct.pack(
            "<IIQQQQIIQQ", names[section], kind, flags, *where, link, info, ALIGNMENT_BYTES, entry_bytes
        )
    return table


def _header(sections_offset: int, programs_offset: int = 0, programs: int = 0) -> bytes:
    magic = b"\x7fELF\x02\x01\x01"
    sections = (SECTION_BYTES, len(SECTION_NAMES), SHSTRTAB)
    return struct.pack(
        "<16sHHIQQQIHHHHHH",
        magic, ET_EXEC, HOST.elf_machine, EV_CURRENT, 0, programs_offset, sections_offset, 0,
        HEADER_BYTES, PROGRAM_HEADER_BYTES, programs, *sections,
    )  # fmt: skip


# ---- as a file -------------------------------------------------------------------------------------------------


def build_head(code: CodeObject, offset: int, arena: tuple[int, int]) -> bytes:
    """Returns the head of an arena that is a file: makes the file an ELF object, with the tables of `code`.

    Profilers open the files that a process has mapped, to read the names and the unwind rows of its code.

    Args:
        code: describes all code of the arena.
        offset: of the object in the file.
        arena: address in the target, and bytes.
    """
    address, size_bytes = arena
    sections = bytearray(code.image[int.from_bytes(code.image[40:48], "little") :])
    for section in range(1, len(SECTION_NAMES)):
        at = section * SECTION_BYTES
        kind, where, old = struct.unpack_from("<4xI8xQQ", sections, at)
        struct.pack_into("<I", sections, at + 4, SHT_PROGBITS if section == TEXT else kind)
        struct.pack_into("<Q", sections, at + 24, where - address if where else old + offset)
    eh_frame_hdr, hdr_bytes = struct.unpack_from("<16xQ8xQ", sections, EH_FRAME_HDR * SECTION_BYTES)
    build_id = hashlib.blake2b(code.image, digest_size=20).digest()
    note = NOTE_BUILD_ID + build_id
    note_at = HEADER_BYTES + 3 * PROGRAM_HEADER_BYTES
    programs = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, start, address + start, address + start, size, size, align)
        for kind, flags, start, size, align in (
            (PT_LOAD, PF_R | PF_X, 0, size_bytes, HEAD_BYTES),
            (PT_NOTE, PF_R, note_at, len(note), 4),
            (PT_GNU_EH_FRAME, PF_R, eh_frame_hdr - address, hdr_bytes, 4),
        )
    )
    head = _header(note_at + len(note) + 4, HEADER_BYTES, 3) + programs + note + bytes(4) + sections
    return head.ljust(HEAD_BYTES, b"\0")
