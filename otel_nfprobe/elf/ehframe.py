# SPDX-License-Identifier: Apache-2.0
"""Function ranges and frame rules from `.eh_frame`, which even a stripped program keeps.

Reads bytes only: no file, no process. The input is hostile until read: every length is checked, every loop
is bounded by the section's size, and what is wrong raises FrameError with a reason.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.processors import Processor
from otel_nfprobe.elf.cursor import ADDRESS_MASK, Cursor, FrameError

# ---- rows -----------------------------------------------------------------------------------------------------------
# Rows of a frame program by the C core, for those that it knows all instructions of.


_WORDS = lib.NFP_FRAME_ROWS_MAX * lib.NFP_FRAME_ROW_WORDS
_ADDRESS_MAX = (1 << 64) - 1
_OFFSET_MAX = (1 << 31) - 1


def quick_rows(
    program: bytes, address: int, until: int | None, register: int, offset: int
) -> list[tuple[int, int, int]] | None:
    """Address, register and offset of each row, or None: the program must be run by other means.

    Args:
        program: frame instructions; an address advances by ones.
        address: where the first row begins.
        until: an address behind which the rules are not wanted.
        register, offset: the canonical frame address there.
    """
    last = _ADDRESS_MAX if until is None else until
    if not (0 <= address <= last <= _ADDRESS_MAX and 0 <= offset <= _OFFSET_MAX):
        return None
    start = ffi.new("struct nfp_frame_start *", (address, last, register, offset))
    rows = ffi.new("int64_t[]", _WORDS)  # of its own: several threads may read frames
    count = int(lib.nfp_frame_rows(program, len(program), start, rows))
    if count < 0:
        return None
    words = iter(ffi.unpack(rows, count * lib.NFP_FRAME_ROW_WORDS))
    return list(zip(words, words, words, strict=True))


# ---- the section ----------------------------------------------------------------------------------------------------


EXPRESSION = -1  # in Row.register: the rule is an expression that this module does not evaluate
DEREFERENCED = -2  # the CFA is the word at the frame pointer + offset (gcc's realigned frames)

ENTRY_BYTES = 64  # more than a patch site displaces

_OMITTED = 0xFF
_USUAL_POINTERS = 0x1B  # 32 bits, from where they stand
_USUAL_FRAME = struct.Struct("<iiB")  # start, size, and how many bytes of data there are
_REMEMBERED_MAX = 64
_PARTIAL = (0x0D, 0x0E, 0x13)  # change the register or the offset only

# Frame instructions (DWARF 5 section 7.24) whose operands are skipped: u is ULEB128, s SLEB128, b a block.
_SKIPPED_OPERANDS = {0x05: "uu", 0x06: "u", 0x08: "u", 0x09: "uu", 0x10: "ub", 0x11: "us", 0x14: "uu"}
_SKIPPED_OPERANDS.update({0x15: "us", 0x16: "ub", 0x2E: "u", 0x2F: "uu"})


class Row(NamedTuple):
    """From `address` on, the CFA is register + offset (a DWARF number, EXPRESSION or DEREFERENCED)."""

    address: int
    register: int
    offset: int


class FrameRules(NamedTuple):
    """The rules of one function."""

    rows: tuple[Row, ...]
    outermost: bool  # nothing called it: there is no return address


@dataclass(slots=True)
class CommonEntry:
    """What several frames share (CIE)."""

    processor: Processor
    code_alignment: int
    data_alignment: int
    pointer_encoding: int
    lsda_encoding: int
    has_augmentation: bool
    is_signal_frame: bool
    instructions: bytes
    _initial: _State | None = None

    def initial_state(self) -> _State:
        """State after the common instructions, computed once however many frames share it."""
        if self._initial is None:
            state = _State(self)
            state.run(self.instructions, 0)
            state.rows.clear()
            self._initial = state
        return self._initial

    def quick_start(self) -> tuple[int, int] | None:
        """Register and offset that frame programs begin with; None: the C core cannot run them."""
        try:
            initial = self.initial_state()
        except FrameError:
            return None
        is_plain = self.code_alignment == 1 and initial.register >= 0 and not initial.undefined_return
        return (initial.register, initial.offset) if is_plain and 0 <= initial.offset <= _OFFSET_MAX else None


@dataclass(slots=True)
class Frame:
    """One function's range and frame program (FDE). Addresses are the file's own, before loading."""

    start: int
    size: int
    common: CommonEntry
    instructions: bytes = field(repr=False)
    has_lsda: bool

    def rules(self, until: int | None = None) -> FrameRules:
        """Runs the frame program.

        Args:
            until: an address behind which the rules are not wanted.

        Raises:
            FrameError: the program is malformed.
        """
        start = self.common.quick_start()
        quick = None if start is None else quick_rows(self.instructions, self.start, until, *start)
        if quick is not None:
            return FrameRules(tuple(map(Row._make, quick)), False)
        return self._run(self.common.initial_state(), until)

    def _run(self, initial: _State, until: int | None) -> FrameRules:
        """The rules of a program that is out of the ordinary."""
        state = _State(self.common)
        state.register, state.offset = initial.register, initial.offset
        state.undefined_return = initial.undefined_return
        state.initial = initial
        state.run(self.instructions, self.start, until)
        return FrameRules(tuple(state.rows), state.undefined_return)

    def steps(self) -> list[tuple[int, bytes]]:
        """The frame program in pieces: from which address on which instructions hold, without the advances.

        Raises:
            FrameError: the program is malformed.
        """
        state, cursor = _State(self.common), Cursor(self.instructions, 0, len(self.instructions))
        state.initial = self.common.initial_state()
        state.register, state.offset = state.initial.register, state.initial.offset
        pieces = [(self.start, bytearray())]
        while cursor.position < cursor.end:
            before = cursor.position
            step = state.take_one(cursor)
            if step is None:
                pieces[-1][1].extend(self.instructions[before : cursor.position])
            else:
                pieces.append((state.after(pieces[-1][0], *step), bytearray()))
        return [(address, bytes(operations)) for address, operations in pieces]


class FrameTable:
    """All frames of a module, sorted by start, none overlapping."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames: list[Frame] = []
        self.overlapping = 0
        end = -1
        for frame in sorted(frames, key=lambda frame: frame.start):
            if frame.start < end:
                self.overlapping += 1
                continue
            self.frames.append(frame)
            end = frame.start + frame.size
        self.starts = [frame.start for frame in self.frames]

    def find(self, address: int) -> Frame | None:
        """The frame whose range contains the address."""
        index = bisect_right(self.starts, address) - 1
        if index < 0:
            return None
        frame = self.frames[index]
        return frame if address < frame.start + frame.size else None


class _State:
    """The frame program's machine."""

    __slots__ = ("common", "initial", "offset", "register", "remembered", "rows", "undefined_return")

    def __init__(self, common: CommonEntry) -> None:
        self.common = common
        self.register = EXPRESSION
        self.offset = 0
        self.undefined_return = False
        self.rows: list[Row] = []
        self.remembered: list[tuple[int, int]] = []
        self.initial: _State | None = None

    def run(self, program: bytes, address: int, until: int | None = None) -> None:
        cursor = Cursor(program, 0, len(program))
        while cursor.position < cursor.end:
            step = self.take_one(cursor)
            if step is not None:
                self._emit(address)
                address = self.after(address, *step)
                if until is not None and address > until:
                    return
        self._emit(address)

    def after(self, address: int, code: int, distance: int) -> int:
        """Where an advance leads."""
        moved = distance if code == 0x01 else address + distance * self.common.code_alignment
        if moved < address:
            raise FrameError("a frame program that goes backwards")
        return moved

    def take_one(self, cursor: Cursor) -> tuple[int, int] | None:
        """Carries out one instruction. Returns (code, distance) when it is an advance."""
        code = cursor.byte()
        high = code & 0xC0
        if high == 0x40:
            return code, code & 0x3F
        if high:  # a register is saved, or restored: the frame address stays
            if high == 0x80:
                cursor.uleb()
            return None
        step = self._advance(code, cursor)
        if step is not None:
            return code, step
        if not self._set_frame(code, cursor):
            self._skip(code, cursor)
        return None

    def _emit(self, address: int) -> None:
        register, offset = self.register, self.offset
        if register >= self.common.processor.return_address or abs(offset) > _OFFSET_MAX:
            register, offset = EXPRESSION, 0
        if self.rows:
            last = self.rows[-1]
            if (last.register, last.offset) == (register, offset):
                return
            if last.address == address:
                self.rows.pop()
        self.rows.append(Row(address, register, offset))

    @staticmethod
    def _advance(code: int, cursor: Cursor) -> int | None:
        if code == 0x02:
            return cursor.byte()
        if code == 0x03:
            return cursor.take("<H")
        if code == 0x04:
            return cursor.take("<I")
        if code == 0x01:
            return cursor.take("<Q")
        return None

    def _set_frame(self, code: int, cursor: Cursor) -> bool:
        if code in _PARTIAL and self.register < 0:
            raise FrameError("a frame program that changes a part of an expression")
        if code == 0x0C:
            self.register, self.offset = cursor.uleb(), cursor.uleb()
        elif code == 0x0E:
            self.offset = cursor.uleb()
        elif code == 0x0D:
            self.register = cursor.uleb()
        elif code == 0x12:
            self.register = cursor.uleb()
            self.offset = cursor.sleb() * self.common.data_alignment
        elif code == 0x13:
            self.offset = cursor.sleb() * self.common.data_alignment
        elif code == 0x0F:
            self.register, self.offset = _evaluate(cursor.block(), self.common.processor.frame_pointer)
        elif code == 0x0A:
            if len(self.remembered) >= _REMEMBERED_MAX:
                raise FrameError("a frame program that remembers too much")
            self.remembered.append((self.register, self.offset))
        elif code == 0x0B:
            if not self.remembered:
                raise FrameError("a frame program that restores what it never remembered")
            self.register, self.offset = self.remembered.pop()
        else:
            return False
        return True

    def _skip(self, code: int, cursor: Cursor) -> None:
        if code == 0x07:
            if cursor.uleb() == self.common.processor.return_address:
                self.undefined_return = True
        elif code in _SKIPPED_OPERANDS:
            for operand in _SKIPPED_OPERANDS[code]:
                {"u": cursor.uleb, "s": cursor.sleb, "b": cursor.block}[operand]()
        elif code != 0x00:
            raise FrameError(f"an unknown frame instruction {code:#x}")


def _evaluate(expression: bytes, frame_pointer: int) -> tuple[int, int]:
    # gcc's realigned frames: DW_OP_breg of the frame pointer, offset, DW_OP_deref.
    if len(expression) >= 3 and expression[0] == 0x70 + frame_pointer and expression[-1] == 0x06:
        cursor = Cursor(expression, 1, len(expression) - 1)
        offset = cursor.sleb()
        if cursor.position == cursor.end:
            return DEREFERENCED, offset
    return EXPRESSION, 0


def parse_frames(section: bytes, section_address: int, processor: Processor) -> FrameTable:
    """Reads a whole `.eh_frame` section.

    Args:
        section: its bytes.
        section_address: where the file wants it loaded.
        processor: of its code.

    Raises:
        FrameError: it is malformed.
    """
    commons: dict[int, CommonEntry] = {}
    frames: list[Frame] = []
    position = 0
    while position + 4 <= len(section):
        size, header = struct.unpack_from("<I", section, position)[0], 4
        if size == 0:
            position += 4
            continue
        if size == 0xFFFFFFFF:
            if position + 12 > len(section):
                raise FrameError("an entry's length is cut off")
            size, header = struct.unpack_from("<Q", section, position + 4)[0], 12
        body = position + header
        end = body + size
        if end > len(section) or size < 4:
            raise FrameError(f"the entry at offset {position:#x} leaves its section")
        distance = struct.unpack_from("<I", section, body)[0]
        cursor = Cursor(section, body + 4, end)
        if distance == 0:
            commons[position] = _parse_common(cursor, section_address, processor)
        else:
            common = commons.get(body - distance)
            if common is None:
                raise FrameError(f"the entry at offset {position:#x} refers to no common entry")
            frame = _parse_usual(cursor, section_address, common) or _parse_frame(cursor, section_address, common)
            if frame.size and frame.start:
                frames.append(frame)
        position = end
    return FrameTable(frames)


def _parse_common(cursor: Cursor, section_address: int, processor: Processor) -> CommonEntry:
    version = cursor.byte()
    if version not in (1, 3):
        raise FrameError(f"a common entry of unknown version {version}")
    augmentation = cursor.text()
    code_alignment, data_alignment = cursor.uleb(), cursor.sleb()
    if version == 1:
        cursor.byte()
    else:
        cursor.uleb()
    pointer_encoding, lsda_encoding = 0, _OMITTED
    if augmentation.startswith(b"z"):
        after = cursor.uleb() + cursor.position
        if after > cursor.end:
            raise FrameError("augmentation data leaves its entry")
        for letter in augmentation[1:]:
            if letter == ord("R"):
                pointer_encoding = cursor.byte()
            elif letter == ord("L"):
                lsda_encoding = cursor.byte()
            elif letter == ord("P"):
                encoding = cursor.byte()
                if encoding != _OMITTED:
                    cursor.pointer(encoding & 0x7F, section_address)
            elif letter not in b"SB":
                break
        cursor.position = after
    elif augmentation:
        raise FrameError(f"an unknown augmentation {augmentation[:8]!r}")
    return CommonEntry(
        processor,
        code_alignment,
        data_alignment,
        pointer_encoding,
        lsda_encoding,
        bool(augmentation),
        b"S" in augmentation,
        cursor.data[cursor.position : cursor.end],
    )


def _parse_usual(cursor: Cursor, section_address: int, common: CommonEntry) -> Frame | None:
    """As `_parse_frame`, several times as fast, where pointers have 32 bits and lengths of data one byte."""
    data, position, end = cursor.data, cursor.position, cursor.end
    if common.pointer_encoding != _USUAL_POINTERS or not common.has_augmentation or end - position < 9:
        return None
    distance, size, more_bytes = _USUAL_FRAME.unpack_from(data, position)
    behind = position + 9 + more_bytes
    if size < 0 or more_bytes > 0x7F or behind > end:
        return None
    start = (section_address + position + distance) & ADDRESS_MASK
    has_lsda = more_bytes and common.lsda_encoding != _OMITTED and any(data[position + 9 : behind])
    return Frame(start, size, common, data[behind:end], bool(has_lsda))


def _parse_frame(cursor: Cursor, section_address: int, common: CommonEntry) -> Frame:
    start = cursor.pointer(common.pointer_encoding, section_address)
    size = cursor.pointer(common.pointer_encoding & 0x0F, section_address)
    has_lsda = False
    if common.has_augmentation:
        after = cursor.uleb() + cursor.position
        if after > cursor.end:
            raise FrameError("augmentation data leaves its entry")
        if common.lsda_encoding != _OMITTED and after > cursor.position:
            has_lsda = any(cursor.data[cursor.position : after])
        cursor.position = after
    return Frame(start, size, common, cursor.data[cursor.position : cursor.end], has_lsda)
