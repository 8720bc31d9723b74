# SPDX-License-Identifier: Apache-2.0
"""Entries of DWARF units, read sequentially.

A large program has millions of entries, of which few are needed here; pyelftools creates an object for each. So the
tree is parsed here, and only the needed parts: the rest is skipped by the sizes of its abbreviations. DWARF 2 to 5, 32
and 64 bit, including strings and entries in a supplementary file (dwz). All input is untrusted: malformed data raises
DwarfError.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_nfprobe.elf.objectfile import ObjectFile, text_at

SECTION_NAMES = ("info", "abbrev", "str", "line_str", "str_offsets", "addr", "aranges")
COMPILE_UNITS = (1, 3, 4, 5)  # compile, partial, skeleton, split compile
UNIT_ENTRY_BYTES_MIN = 11

# Attributes that are used.
NAME, SIBLING, LOCATION, LOW_PC, HIGH_PC, DECLARATION, TYPE, RANGES = 0x03, 0x01, 0x02, 0x11, 0x12, 0x3C, 0x49, 0x55
ABSTRACT_ORIGIN, SPECIFICATION, CALL_FILE, CALL_LINE, LINKAGE_NAME = 0x31, 0x47, 0x58, 0x59, 0x6E
MIPS_LINKAGE_NAME, LANGUAGE, STR_OFFSETS_BASE, ADDR_BASE = 0x2007, 0x13, 0x72, 0x73

# Bytes of forms that have a fixed size; -1: an offset, -2: an address.
_SIZES = {
    0x01: -2, 0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x0E: -1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x17: -1,
    0x19: 0, 0x1C: 4, 0x1D: -1, 0x1E: 16, 0x1F: -1, 0x20: 8, 0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4,
    0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4, 0x1F20: -1, 0x1F21: -1,
}  # fmt: skip
_ULEB_FORMS = frozenset((0x0D, 0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02))  # 0x0D is signed
_BLOCK_BYTES = {0x03: 2, 0x04: 4, 0x0A: 1}  # of the block's length
_ULEB_BLOCKS = (0x09, 0x18)
_UNIT_REFERENCES = frozenset((0x11, 0x12, 0x13, 0x14, 0x15))
_STRING_INDEXES = frozenset((0x1A, 0x25, 0x26, 0x27, 0x28, 0x1F02))
_ADDRESS_INDEXES = frozenset((0x1B, 0x29, 0x2A, 0x2B, 0x2C, 0x1F01))
ADDRESS_FORMS = _ADDRESS_INDEXES | {0x01}
BLOCK_FORMS = frozenset((*_BLOCK_BYTES, *_ULEB_BLOCKS))
REFERENCE_OTHER_FILE = frozenset((0x1C, 0x24, 0x1F20))
INDEXED_LIST_FORMS = frozenset((0x22, 0x23))


class DwarfError(ValueError):
    """The debug information is malformed; the text says how."""


class Reference(NamedTuple):
    """Position of an entry."""

    in_other_file: bool
    offset: int


@dataclass(slots=True)
class Abbreviation:
    """The format of some entries."""

    tag: int
    has_children: bool
    fields: list[tuple[int, int, int]] = field(default_factory=list)  # attribute, form, constant
    fixed_bytes: int = -1


@dataclass(slots=True, eq=False)
class Unit:
    """One unit of .debug_info."""

    offset: int
    end: int
    entries: int  # offset of its first entry
    version: int
    kind: int
    offset_bytes: int
    address_bytes: int
    abbreviations: int  # offset of its abbreviations in their section
    shapes: dict[int, Abbreviation] = field(default_factory=dict)
    string_base: int = 0
    address_base: int = 0


Value = int | bytes | str | Reference


class DwarfUnits:
    """The units of one file.

    Raises:
        ObjectError, DwarfError: it is malformed.
    """

    def __init__(self, file: ObjectFile, other: DwarfUnits | None = None) -> None:
        self.other = other  # the supplementary file of dwz
        self.sections = {name: _content(file, f".debug_{name}") for name in SECTION_NAMES}
        self.info = self.sections["info"]
        self.units = self._read_units()
        self._starts = [unit.offset for unit in self.units]
        self._shapes: dict[int, dict[int, Abbreviation]] = {}

    def _read_units(self) -> list[Unit]:
        units = []
        position = 0
        while position + UNIT_ENTRY_BYTES_MIN <= len(self.info):
            unit = _read_unit(self.info, position)
            if unit.version in (2, 3, 4, 5) and unit.kind in COMPILE_UNITS:
                units.append(unit)
            position = unit.end
        return units

    def unit_holding(self, offset: int) -> Unit:
        """Returns the unit that contains an entry, ready to be read."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self.units[index].end:
            raise DwarfError(f"a reference to {offset:#x}, which is outside all units")
        return self.prepare(self.units[index])

    def prepare(self, unit: Unit) -> Unit:
        """Reads abbreviations and base offsets of a unit."""
        if not unit.shapes:
            known = self._shapes.get(unit.abbreviations)
            if known is None or unit.version < 5 or unit.offset_bytes != 4 or unit.address_bytes != 8:
                known = _read_shapes(self.sections["abbrev"], unit)
                self._shapes[unit.abbreviations] = known
            unit.shapes = known
            unit.string_base = 8 if unit.version == 5 else 0
            unit.address_base = 8 if unit.version == 5 else 0
            _, values, _ = self.entry(unit, unit.entries)
            unit.string_base = integer(values.get(STR_OFFSETS_BASE), unit.string_base)
            unit.address_base = integer(values.get(ADDR_BASE), integer(values.get(0x2133), unit.address_base))
        return unit

    def addresses_covered(self) -> list[tuple[int, int, int]]:
        """(first address, bytes, unit's offset) from .debug_aranges, which some compilers do not write."""
        table = self.sections["aranges"]
        found = []
        position = 0
        while position + 12 <= len(table):
            size, header, word = struct.unpack_from("<I", table, position)[0], 4, 4
            if size == 0xFFFFFFFF:
                size, header, word = struct.unpack_from("<Q", table, position + 4)[0], 12, 8
            body, end = position + header, position + header + size
            if end > len(table) or size < word + 4:
                raise DwarfError("its table of address ranges is truncated")
            unit = int.from_bytes(table[body + 2 : body + 2 + word], "little")
            if table[body + 2 + word] == 8:
                # The pairs are aligned to their own size, from the header's start.
                start = position + (header + 4 + word + 15 & ~15)
                whole = max(end - start, 0) & ~15
                pairs = struct.iter_unpack("<QQ", table[start : start + whole])
                found += [(address, length, unit) for address, length in pairs if length]
            position = end
        return found

    # ---- entries -------------------------------------------------------------------------------------------

    def shape(self, unit: Unit, position: int) -> tuple[Abbreviation | None, int]:
        """Returns the abbreviation of an entry (None: it ends a list of children) and the position of its values."""
        code, position = uleb(self.info, position)
        if not code:
            return None, position
        shape = unit.shapes.get(code)
        if shape is None:
            raise DwarfError(f"an entry at {position:#x} with an unknown abbreviation")
        return shape, position

    def skip(self, unit: Unit, shape: Abbreviation, position: int) -> int:
        """Returns where the entry's values end."""
        if shape.fixed_bytes >= 0:
            return position + shape.fixed_bytes
        info = self.info
        for _, form, _ in shape.fields:
            position = _skip_form(info, unit, form, position)
        return position

    def values(self, unit: Unit, shape: Abbreviation, position: int) -> tuple[dict[int, Value], int]:
        """Returns the entry's attributes, and where they end. The form of `HIGH_PC` has the key -HIGH_PC."""
        found: dict[int, Value] = {}
        for attribute, form, constant in shape.fields:
            if form == 0x21:
                found[attribute] = constant
                continue
            end = _skip_form(self.info, unit, form, position)
            if end > unit.end:
                raise DwarfError(f"the entry at {position:#x} exceeds its unit")
            value = self._value(unit, form, position, end)
            if value is not None:
                found[attribute] = value
                if attribute in (HIGH_PC, LOCATION, RANGES):
                    found[-attribute] = form
            position = end
        return found, position

    def entry(self, unit: Unit, offset: int) -> tuple[int, dict[int, Value], int]:
        """Returns tag, attributes and end of the entry at an offset of the section."""
        shape, position = self.shape(unit, offset)
        if shape is None:
            raise DwarfError(f"a reference to {offset:#x}, where there is no entry")
        values, end = self.values(unit, shape, position)
        return shape.tag, values, end

    def _value(self, unit: Unit, form: int, start: int, end: int) -> Value | None:
        info = self.info
        if form == 0x08:
            return info[start : end - 1].decode("utf-8", "replace")
        if form in (0x0E, 0x1F, 0x1D, 0x1F21):
            return self._string(form, int.from_bytes(info[start:end], "little"))
        if form == 0x0D:
            return _sleb(info, start)
        if form in BLOCK_FORMS:
            return info[start + _length_bytes(info, form, start) : end]
        number = uleb(info, start)[0] if form in _ULEB_FORMS else int.from_bytes(info[start:end], "little")
        if form == 0x19:
            return 1
        if form in _UNIT_REFERENCES:
            return Reference(False, unit.offset + number)
        if form == 0x10:
            return Reference(False, number)
        if form in REFERENCE_OTHER_FILE:
            return Reference(True, number)
        if form in _STRING_INDEXES:
            return self._indexed_string(unit, number)
        if form in _ADDRESS_INDEXES:
            place = unit.address_base + number * unit.address_bytes
            return int.from_bytes(self.sections["addr"][place : place + unit.address_bytes], "little")
        return None if form == 0x20 else number

    def _string(self, form: int, offset: int) -> str:
        if form in (0x1D, 0x1F21):
            return text_at(self.other.sections["str"], offset) if self.other else ""
        return text_at(self.sections["line_str" if form == 0x1F else "str"], offset)

    def _indexed_string(self, unit: Unit, index: int) -> str:
        place = unit.string_base + index * unit.offset_bytes
        content = self.sections["str_offsets"][place : place + unit.offset_bytes]
        return text_at(self.sections["str"], int.from_bytes(content, "little")) if content else ""


def integer(value: Value | None, otherwise: int = 0) -> int:
    """Returns the value if it is an integer."""
    return value if isinstance(value, int) else otherwise


def uleb(data: bytes, position: int) -> tuple[int, int]:
    """Returns an unsigned number of variable length, and where it ends."""
    try:
        byte = data[position]
        if byte < 0x80:
            return byte, position + 1
        value, shift = byte & 0x7F, 7
        while True:
            position += 1
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position + 1
            shift += 7
            if shift > 70:
                raise DwarfError(f"a number longer than 64 bits at {position:#x}")
    except IndexError:
        raise DwarfError("a truncated number") from None


def _sleb(data: bytes, position: int) -> int:
    value, end = uleb(data, position)
    bits = 7 * (end - position)
    return value - (1 << bits) if data[end - 1] & 0x40 else value


def _content(file: ObjectFile, name: str) -> bytes:
    section = file.section(name)
    return b"" if section is None else file.content(section)


def _read_unit(info: bytes, position: int) -> Unit:
    size, header, offset_bytes = struct.unpack_from("<I", info, position)[0], 4, 4
    try:
        if size == 0xFFFFFFFF:
            size, header, offset_bytes = struct.unpack_from("<Q", info, position + 4)[0], 12, 8
        place = position + header
        end = place + size
        version = struct.unpack_from("<H", info, place)[0]
        layout, word = "<I" if offset_bytes == 4 else "<Q", offset_bytes
        if version >= 5:
            kind, address_bytes = info[place + 2], info[place + 3]
            shapes = struct.unpack_from(layout, info, place + 4)[0]
            entries = place + 4 + word + (8 if kind in (4, 5) else 0)
        else:
            kind, shapes, address_bytes = 1, struct.unpack_from(layout, info, place + 2)[0], info[place + 2 + word]
            entries = place + 3 + word
    except (struct.error, IndexError):
        raise DwarfError(f"the unit at {position:#x} is cut off") from None
    if end > len(info) or end < entries or address_bytes not in (4, 8):
        raise DwarfError(f"the unit at {position:#x} exceeds its section")
    return Unit(position, end, entries, version, kind, offset_bytes, address_bytes, shapes)


def _read_shapes(section: bytes, unit: Unit) -> dict[int, Abbreviation]:
    shapes: dict[int, Abbreviation] = {}
    position = unit.abbreviations
    while True:
        code, position = uleb(section, position)
        if not code:
            return shapes
        tag, position = uleb(section, position)
        if position >= len(section):
            raise DwarfError("truncated abbreviations")
        shape = Abbreviation(tag, bool(section[position]))
        position += 1
        fixed = 0
        while True:
            attribute, position = uleb(section, position)
            form, position = uleb(section, position)
            constant = 0
            if form == 0x21:
                constant, position = _sleb(section, position), uleb(section, position)[1]
            if not attribute and not form:
                break
            shape.fields.append((attribute, form, constant))
            size = _form_bytes(unit, form)
            fixed = -1 if size < 0 or fixed < 0 else fixed + size
        shape.fixed_bytes = fixed
        shapes[code] = shape


def _form_bytes(unit: Unit, form: int) -> int:
    """Returns the size of a form in bytes, or -1 if it varies."""
    if form == 0x10:  # an address in version 2, an offset since
        return unit.address_bytes if unit.version == 2 else unit.offset_bytes
    size = _SIZES.get(form)
    if size is None:
        return -1
    return unit.offset_bytes if size == -1 else unit.address_bytes if size == -2 else size


def _length_bytes(info: bytes, form: int, position: int) -> int:
    if form in _BLOCK_BYTES:
        return _BLOCK_BYTES[form]
    return uleb(info, position)[1] - position


def _skip_form(info: bytes, unit: Unit, form: int, position: int) -> int:
    size = _form_bytes(unit, form)
    if size >= 0:
        return position + size
    if form in _ULEB_FORMS or form in INDEXED_LIST_FORMS:
        return uleb(info, position)[1]
    if form == 0x08:
        end = info.find(b"\0", position, unit.end)
        if end < 0:
            raise DwarfError(f"a text at {position:#x} without end")
        return end + 1
    if form in _ULEB_BLOCKS:
        length, start = uleb(info, position)
        return start + length
    if form in _BLOCK_BYTES:
        length = int.from_bytes(info[position : position + _BLOCK_BYTES[form]], "little")
        return position + _BLOCK_BYTES[form] + length
    raise DwarfError(f"an unknown form {form:#x} at {position:#x}")
