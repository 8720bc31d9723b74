# SPDX-License-Identifier: Apache-2.0
"""A bounds-checked position in untrusted bytes: the numbers and pointers of `.eh_frame`."""

from __future__ import annotations

import struct

_FIXED_FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
ADDRESS_MASK = (1 << 64) - 1


class FrameError(ValueError):
    """The section is malformed; the text says how."""


class Cursor:
    """A bounds-checked position in a byte string."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def take(self, layout: str) -> int:
        size = struct.calcsize(layout)
        if self.position + size > self.end:
            raise FrameError(f"an entry ends in the middle of a number at offset {self.position:#x}")
        value: int = struct.unpack_from(layout, self.data, self.position)[0]
        self.position += size
        return value

    def byte(self) -> int:
        position = self.position
        if position >= self.end:
            raise FrameError(f"an entry ends in the middle of a number at offset {position:#x}")
        self.position = position + 1
        return self.data[position]

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value
            if shift > 63:
                raise FrameError(f"a number longer than 64 bits at offset {self.position:#x}")

    def sleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value - (1 << shift) if byte & 0x40 else value
            if shift > 63:
                raise FrameError(f"a number longer than 64 bits at offset {self.position:#x}")

    def block(self) -> bytes:
        size = self.uleb()
        if size > self.end - self.position:
            raise FrameError(f"a block of {size} bytes leaves its entry at offset {self.position:#x}")
        self.position += size
        return self.data[self.position - size : self.position]

    def text(self) -> bytes:
        stop = self.data.find(b"\0", self.position, self.end)
        if stop < 0:
            raise FrameError(f"an unterminated text at offset {self.position:#x}")
        value = self.data[self.position : stop]
        self.position = stop + 1
        return value

    def pointer(self, encoding: int, section_address: int) -> int:
        place = section_address + self.position
        kind = encoding & 0x0F
        if kind == 0x01:
            value = self.uleb()
        elif kind == 0x09:
            value = self.sleb()
        elif kind in _FIXED_FORMATS:
            value = self.take(_FIXED_FORMATS[kind])
        else:
            raise FrameError(f"an unknown pointer encoding {encoding:#x}")
        if encoding & 0x70 == 0x10:
            value += place
        elif encoding & 0x70:
            raise FrameError(f"an unsupported pointer encoding {encoding:#x}")
        return value & ADDRESS_MASK
