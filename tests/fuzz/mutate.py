# SPDX-License-Identifier: Apache-2.0
"""Damaged copies of ELF files: by fields of their tables, by sections, by bits, cut off. From a seed."""

from __future__ import annotations

import random
import struct

EXTREMES = (
    0, 1, 2, 7, 8, 16, 0x7F, 0x80, 0xFF, 0x1000, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
    0x100000000, (1 << 47) - 1, 1 << 47, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1,
)  # fmt: skip
# Fields: (offset, bytes).
HEADER = (
    (16, 2), (18, 2), (20, 4), (24, 8), (32, 8), (40, 8), (48, 4), (52, 2), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2),
)  # fmt: skip
SEGMENT = ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8))
SECTION = ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 8), (56, 8))
DYNAMIC = ((0, 8), (8, 8))
RELOCATION = ((0, 8), (8, 4), (12, 4), (16, 8))
SYMBOL = ((0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 8))
SECTION_TYPES = {2: (24, SYMBOL), 11: (24, SYMBOL), 4: (24, RELOCATION), 6: (16, DYNAMIC)}
INTERESTING = (1, 3, 4, 5, 6, 7, 11, 14, 19, 0x6FFFFFF6, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF)
OPERATIONS = (0x0A, 0x0B, 0x0C, 0x0E, 0x0F, 0x41, 0x04, 0x16, 0x80, 0xFF)  # of frame programs
LEBS = (b"\xff" * 9 + b"\x01", b"\xff" * 40, b"\x80" * 20 + b"\x00", b"\xff\xff\xff\xff\x0f", b"\x7f")


class Layout:
    """Where the tables of a good file are."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.segments, self.sections = struct.unpack_from("<QQ", data, 32)
        (self.segment_count,) = struct.unpack_from("<H", data, 56)
        (self.section_count,) = struct.unpack_from("<H", data, 60)
        self.ranges: list[tuple[int, int, int]] = []  # type, offset, size
        for index in range(self.section_count):
            place = self.sections + 64 * index
            kind, offset, size = struct.unpack_from("<4xI16xQQ", data, place)
            if kind in INTERESTING and size and offset + size <= len(data):
                self.ranges.append((kind, offset, size))
        self.frames = self.named(".eh_frame")

    def named(self, name: str) -> tuple[int, int]:
        """Offset and bytes of a section; zeros when there is none."""
        (names,) = struct.unpack_from("<H", self.data, 62)
        (text,) = struct.unpack_from("<Q", self.data, self.sections + 64 * names + 24)
        for index in range(self.section_count):
            place = self.sections + 64 * index
            (at,) = struct.unpack_from("<I", self.data, place)
            if self.data[text + at :].startswith(name.encode() + b"\0"):
                offset, size = struct.unpack_from("<QQ", self.data, place + 24)
                return offset, size
        return 0, 0


def mutate(layout: Layout, seed: int) -> bytes:
    """One damaged copy."""
    chance = random.Random(seed)
    data = bytearray(layout.data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        chance.choice((_field, _field, _table_entry, _table_entry, _bits, _frames, _frames, _frames, _copy, _cut))(
            layout, data, chance
        )
    return bytes(data)


def mutate_frames(section: bytes, seed: int) -> bytes:
    """One damaged copy of an .eh_frame section."""
    chance = random.Random(seed)
    data = bytearray(section)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _damage_frames(data, 0, len(section), chance)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.05 else data)


def _set(data: bytearray, place: int, size: int, chance: random.Random) -> None:
    if not 0 <= place <= len(data) - size:
        return
    old = int.from_bytes(data[place : place + size], "little")
    flipped = old ^ 1 << chance.randrange(8 * size)
    value = chance.choice((*EXTREMES, old + 1, old - 1, old * 2, old + 8, flipped, len(data)))
    data[place : place + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _field(layout: Layout, data: bytearray, chance: random.Random) -> None:
    """A field of the file's header, a segment's or a section's."""
    which = chance.randrange(3)
    if which == 0:
        place, size = chance.choice(HEADER)
    elif which == 1 or not layout.section_count:
        offset, size = chance.choice(SEGMENT)
        place = layout.segments + 56 * chance.randrange(layout.segment_count) + offset
    else:
        offset, size = chance.choice(SECTION)
        place = layout.sections + 64 * chance.randrange(layout.section_count) + offset
    _set(data, place, size, chance)


def _table_entry(layout: Layout, data: bytearray, chance: random.Random) -> None:
    """A field of a symbol, relocation or dynamic entry; a word of a hash, version, note or text section."""
    kind, offset, size = chance.choice(layout.ranges)
    step, fields = SECTION_TYPES.get(kind, (4, ((0, 4),)))
    place, field_bytes = chance.choice(fields)
    _set(data, offset + step * chance.randrange(max(1, size // step)) + place, field_bytes, chance)


def _bits(_: Layout, data: bytearray, chance: random.Random) -> None:
    for _count in range(chance.choice((1, 8, 64))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _copy(_: Layout, data: bytearray, chance: random.Random) -> None:
    """Some bytes of the file somewhere else."""
    if len(data) < 600:
        return
    size = chance.randrange(1, 512)
    source, place = chance.randrange(len(data) - size), chance.randrange(len(data) - size)
    data[place : place + size] = data[source : source + size]


def _cut(_: Layout, data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def _frames(layout: Layout, data: bytearray, chance: random.Random) -> None:
    offset, size = layout.frames
    if size and offset + size <= len(data):
        _damage_frames(data, offset, size, chance)


def _damage_frames(data: bytearray, offset: int, size: int, chance: random.Random) -> None:
    """Lengths, references, ranges and frame programs of the entries of an .eh_frame section."""
    entries = []
    position = offset
    while position + 8 <= offset + size:
        length = int.from_bytes(data[position : position + 4], "little")
        if length == 0 or position + 4 + length > offset + size:
            break
        entries.append((position, length))
        position += 4 + length
    if not entries:
        return
    start, length = chance.choice(entries)
    kind = chance.randrange(6)
    if kind == 0:
        _set(data, start + chance.choice((0, 4)), 4, chance)
    elif kind == 1:  # the range: overlapping, empty, huge
        _set(data, start + chance.choice((8, 12)), 4, chance)
    elif kind == 2 and len(entries) > 1:  # two functions at one place
        other, _ = chance.choice(entries)
        data[start + 8 : start + 16] = data[other + 8 : other + 16]
    elif kind == 3:
        leb = chance.choice(LEBS)
        place = chance.randrange(start + 8, start + 4 + length)
        end = min(place + len(leb), start + 4 + length)
        data[place:end] = leb[: end - place]
    elif kind == 4:
        data[chance.randrange(start + 4, start + 4 + length)] = chance.randrange(256)
    else:
        for place in range(start + min(17, length), start + 4 + length):
            data[place] = chance.choice((*OPERATIONS, chance.randrange(256)))
