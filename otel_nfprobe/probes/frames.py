# SPDX-License-Identifier: Apache-2.0
"""Unwind rows (.eh_frame) of trampolines, by which exceptions and debuggers find a caller through them.

Templates bring their own rows, displaced instructions get those of the function, and a relocated body the function's
whole frame program, replayed at the addresses of the copy.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from iced_x86 import Decoder, Mnemonic, Register

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.arch.x86_64.body import Body
from otel_nfprobe.elf.ehframe import CommonEntry, Frame
from otel_nfprobe.probes.analysis import FunctionPlan
from otel_nfprobe.probes.codemap import BODY, DISPLACED, PROBE, CodePart

FRAME_ROOM_BYTES = 512  # per trampoline that is not a relocated body
RETURN_ADDRESS = 16
SEQUENCES_MAX = 1 << 14  # of displaced instructions: many functions start alike
_ADVANCE_4 = 0x04
_PRESERVED = {  # registers that a function restores for its caller, with their DWARF numbers
    Register.RBX: 3,
    Register.RBP: 6,
    Register.R12: 12,
    Register.R13: 13,
    Register.R14: 14,
    Register.R15: 15,
}


class Frames:
    """Unwind rows of the trampolines of one arena, as one object to register."""

    def __init__(self) -> None:
        self._room = ffi.new("uint8_t[]", FRAME_ROOM_BYTES)
        self._rows = bytearray(self._take(lib.nfp_frame_common_write(self._room, FRAME_ROOM_BYTES)))
        self._empty = True
        self.function = ""  # raw name of the function described next
        self.parts: list[CodePart] = []
        self._commons: dict[tuple[int, bytes], int] = {}

    def _take(self, size_bytes: int) -> bytes:
        return bytes(ffi.buffer(self._room, size_bytes))

    def add(
        self,
        shape: int,
        address: int,
        behind_bytes: int,
        plan: FunctionPlan | None = None,
        moves: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Adds a template at `address` and the `behind_bytes` of displaced instructions after it.

        Args:
            plan: whose displaced instructions those are; None for an instruction that leaves the function.
            moves: (address in the function, address in the copy) of the displaced instructions.
        """
        template_bytes = int(lib.nfp_trampoline_bytes(shape))
        displaced_bytes = behind_bytes if plan else 0
        probe_bytes = template_bytes + behind_bytes - displaced_bytes
        self.parts.append(CodePart(address, probe_bytes, self.function, PROBE))
        if displaced_bytes:
            self.parts.append(CodePart(address + probe_bytes, displaced_bytes, self.function, DISPLACED))
        rows = _displaced_rows(plan, address + template_bytes, moves) if plan else []
        array = ffi.new("struct nfp_cfa_row[]", rows) if rows else ffi.NULL
        size = lib.nfp_frame_write(
            shape, address, behind_bytes, array, len(rows), len(self._rows), self._room, FRAME_ROOM_BYTES
        )
        self._rows += self._take(size)
        self._empty = False

    def add_body(self, address: int, body: Body) -> None:
        """Adds a relocated body at `address`."""
        sources = sorted(body.places)
        for frame, offset, size_bytes in body.parts:
            common = self._common(frame.common)
            self.parts.append(CodePart(address + offset, size_bytes, self.function, BODY))
            pieces = [
                (body.places[sources[bisect_left(sources, old)]], operations)
                for old, operations in frame.steps()
                if frame.start <= old < frame.start + frame.size and bisect_left(sources, old) < len(sources)
            ]
            self._rows += _describe(len(self._rows), common, address + offset, size_bytes, offset, pieces)
            self._empty = False

    def _common(self, common: CommonEntry) -> int:
        """Returns the offset of a common entry (CIE) equivalent to this one of the file; adds it if missing."""
        key = (common.data_alignment, common.instructions)
        if key not in self._commons:
            self._commons[key] = len(self._rows)
            alignment = _sleb(common.data_alignment)
            body = b"\0\0\0\0\x01zR\0\x01" + alignment + bytes((RETURN_ADDRESS, 1, 0)) + common.instructions
            self._rows += _entry(body)
        return self._commons[key]

    def encode(self) -> bytes:
        """Returns the rows with their terminator; empty if there is nothing to register."""
        return b"" if self._empty else bytes(self._rows) + b"\0\0\0\0"


def body_room_bytes(frames: Sequence[Frame]) -> int:
    """Returns the maximum size of the rows of a relocated body."""
    return sum(128 + 6 * len(frame.instructions) + len(frame.common.instructions) for frame in frames)


def _describe(
    place: int, common: int, address: int, size_bytes: int, base: int, pieces: list[tuple[int, bytes]]
) -> bytes:
    program = bytearray()
    at = base
    for offset, operations in pieces:
        if not operations:
            continue
        if offset > at:
            program += bytes((_ADVANCE_4,)) + struct.pack("<I", offset - at)
            at = offset
        program += operations
    return _entry(struct.pack("<IQQ", place + 4 - common, address, size_bytes) + b"\0" + bytes(program))


def _entry(body: bytes) -> bytes:
    """Returns the entry with its length in front, padded to eight bytes by no-operations."""
    padding = -(4 + len(body)) % 8
    return struct.pack("<I", len(body) + padding) + body + b"\0" * padding


def _sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        if value == (-1 if byte & 0x40 else 0):
            return bytes((*out, byte))
        out.append(byte | 0x80)


def _displaced_rows(plan: FunctionPlan, start: int, moves: Iterable[tuple[int, int]]) -> list[Any]:
    moved = {plan.site: start, **dict(moves)}
    pushed = _pushes(plan.displaced)
    return [
        (moved[plan.site + offset] - start, register, cfa, pushed.get(offset, lib.NFP_PUSHED_NONE))
        for offset, register, cfa in plan.displaced_rows
        if plan.site + offset in moved
    ]


@lru_cache(maxsize=SEQUENCES_MAX)
def _pushes(code: bytes) -> Mapping[int, int]:
    """Returns DWARF numbers of the preserved registers that instructions push, by the offset after the instruction.

    An exception may pass through a call among the displaced instructions: callers need these registers restored.
    """
    return {
        int(instruction.next_ip): _PRESERVED[instruction.op0_register]
        for instruction in Decoder(64, code)
        if instruction.mnemonic == Mnemonic.PUSH and instruction.op0_register in _PRESERVED
    }
