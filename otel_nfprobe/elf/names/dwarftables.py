# SPDX-License-Identifier: Apache-2.0
"""Tables that DWARF entries refer to by offset: address ranges, locations of arguments, names of source files.

pyelftools reads these tables.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

from otel_nfprobe.base.processors import Processor
from otel_nfprobe.elf.names.dwarfunits import BLOCK_FORMS, INDEXED_LIST_FORMS, DwarfError, Unit

Ranges = tuple[tuple[int, int], ...]

_REGISTER_OPERATIONS = range(0x50, 0x70)  # DW_OP_reg0...
_FRAME_BASE = 0x91  # DW_OP_fbreg
RANGES_MAX = 4096


class DwarfTables:
    """The tables of one file.

    Args:
        stream: the file's bytes.
        processor: of its code.
    """

    def __init__(self, stream: Any, processor: Processor) -> None:
        self._stream = stream
        self._registers = processor.registers

    @cached_property
    def _information(self) -> Any:
        from elftools.elf.elffile import ELFFile

        return _guarded(lambda: ELFFile(self._stream).get_dwarf_info(False, False))

    @cached_property
    def _range_lists(self) -> Any:
        return _guarded(self._information.range_lists)

    @cached_property
    def _location_lists(self) -> Any:
        return _guarded(self._information.location_lists)

    def _unit(self, unit: Unit) -> Any:
        return self._information.get_CU_at(unit.offset)

    def ranges(self, unit: Unit, value: int, form: int, base: int) -> Ranges:
        """Returns the non-empty address ranges of DW_AT_ranges, in the given order.

        Args:
            base: the unit's lowest address.
        """

        def read() -> Ranges:
            handle = self._unit(unit)
            offset = value
            if form in INDEXED_LIST_FORMS:
                offset = self._indexed("DW_AT_rnglists_base", handle, value)
            found, start = [], base
            for entry in self._range_lists.get_range_list_at_offset(offset, handle)[:RANGES_MAX]:
                if hasattr(entry, "base_address"):
                    start = entry.base_address
                    continue
                shift = 0 if entry.is_absolute else start
                if entry.end_offset > entry.begin_offset:
                    found.append((entry.begin_offset + shift, entry.end_offset + shift))
            return tuple(found)

        return _guarded(read)  # type: ignore[no-any-return]

    def place_at(self, unit: Unit, value: int | bytes, form: int, address: int, base: int) -> str:
        """Returns where an argument is at an address: a register, "stack", or "" if it is not a simple location."""
        if isinstance(value, bytes) or form in BLOCK_FORMS:
            return self._place(list(value)) if isinstance(value, bytes) else ""

        def read() -> str:
            handle = self._unit(unit)
            offset = value
            if form in INDEXED_LIST_FORMS:
                offset = self._indexed("DW_AT_loclists_base", handle, value)
            start = base
            for entry in self._location_lists.get_location_list_at_offset(offset, _Anchor(handle)):
                if hasattr(entry, "base_address"):
                    start = entry.base_address
                elif hasattr(entry, "begin_offset"):
                    shift = 0 if entry.is_absolute else start
                    if entry.begin_offset + shift <= address < entry.end_offset + shift:
                        return self._place(list(entry.loc_expr))
            return ""

        return _guarded(read)  # type: ignore[no-any-return]

    def _place(self, expression: list[int]) -> str:
        if len(expression) == 1 and expression[0] in _REGISTER_OPERATIONS:
            return self._registers[expression[0] - _REGISTER_OPERATIONS.start]
        if expression and expression[0] == _FRAME_BASE:
            return "stack"
        return ""

    def _indexed(self, attribute: str, handle: Any, index: int) -> int:
        """Returns the offset of a list given by index."""
        top = handle.get_top_DIE().attributes
        word = handle.structs.dwarf_format // 8
        base = top[attribute].value if attribute in top else 8 + word
        section = self._information.debug_rnglists_sec if "rng" in attribute else self._information.debug_loclists_sec
        section.stream.seek(base + index * word)
        return int(base) + int.from_bytes(section.stream.read(word), "little")

    def source_files(self, unit: Unit) -> list[str]:
        """Returns paths of the unit's source files; entries refer to them by index."""

        def read() -> list[str]:
            handle = self._unit(unit)
            program = self._information.line_program_for_CU(handle)
            if program is None:
                return []
            header = program.header
            folders = [_text(folder) for folder in header.include_directory]
            if header.version < 5:
                folders.insert(0, "")
            names = [os.path.join(_folder(folders, entry.dir_index), _text(entry.name)) for entry in header.file_entry]
            return names if header.version >= 5 else ["", *names]

        return _guarded(read)  # type: ignore[no-any-return]


class _Anchor:
    """What pyelftools needs of the entry that a location list belongs to."""

    def __init__(self, unit: Any) -> None:
        self.cu = unit
        self.attributes: dict[str, Any] = {}


def stream_of(content: bytes) -> Any:
    """Returns bytes as a file."""
    return io.BytesIO(content)


def _folder(folders: list[str], index: int) -> str:
    return folders[index] if 0 <= index < len(folders) else ""


def _text(value: Any) -> str:
    name = getattr(value, "DW_LNCT_path", value)
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _guarded(read: Callable[[], Any]) -> Any:
    """Runs pyelftools, which raises various exceptions for malformed tables."""
    try:
        return read()
    except Exception as error:
        raise DwarfError(f"a table cannot be read ({type(error).__name__}: {error})") from error
