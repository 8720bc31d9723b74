# SPDX-License-Identifier: Apache-2.0
"""What the debug information of a module says: functions, their arguments, and functions that were inlined.

It is looked for in the module's own file, then in its separate debug file. Reading all of it takes seconds for
a large program: it is done when somebody asks for all of it, once (cache.py), and not beyond a time limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_nfprobe.elf import cache
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.debugfile import debug_file_of
from otel_nfprobe.elf.names.dwarfreader import UnitReader
from otel_nfprobe.elf.names.dwarftables import DwarfTables, stream_of
from otel_nfprobe.elf.names.dwarfunits import DwarfError, DwarfUnits
from otel_nfprobe.elf.names.objectfile import ObjectError, ObjectFile
from otel_nfprobe.elf.names.supplementary import supplementary_file

READING_SECONDS_MAX = 60.0
SPLIT_UNITS = (4, 5)
UNITS_LOOKED_UP_MAX = 64  # more are read in one go, with everything else


class Parameter(NamedTuple):
    """One argument.

    Attributes:
        place: the register that holds it at entry, "stack", or "" when that is not known.
    """

    name: str
    type: str
    place: str


class DwarfFunction(NamedTuple):
    """A function that has code of its own. `start`: the file's own address of its entry."""

    start: int
    name: str  # as a linker sees it
    parameters: tuple[Parameter, ...]
    returns: str  # type, or "" for none
    is_variadic: bool
    is_declared: bool  # False: written in assembler, so nothing says what it takes


class InlinedCall(NamedTuple):
    """One place where a function was inlined.

    Attributes:
        name: of the inlined function, as a linker sees it.
        enclosing: start of the function that it is in.
        ranges: its code, (start, end); empty when none is left.
        call_file, call_line: where the source calls it.
    """

    name: str
    enclosing: int
    ranges: tuple[tuple[int, int], ...]
    call_file: str
    call_line: int


@dataclass
class DwarfContents:
    """What was read. `is_whole`: False when the time limit ended it."""

    functions: list[DwarfFunction] = field(default_factory=list)
    inlined: list[InlinedCall] = field(default_factory=list)
    is_whole: bool = True


class Dwarf:
    """The debug information of one module."""

    def __init__(self, module: Module, units: DwarfUnits, tables: DwarfTables) -> None:
        self._module = module
        self._units = units
        self._tables = tables
        self._contents: DwarfContents | None = None

    def functions_at(self, addresses: Sequence[int]) -> list[DwarfFunction]:
        """The functions that start at some addresses, and perhaps others; reads only the units that cover them."""
        if not addresses:
            return []
        if self._contents is None and not self._load():
            units = self._units_at(addresses)
            if len(units) <= UNITS_LOOKED_UP_MAX:
                return self._read(units).functions
        return self.contents().functions

    def contents(self) -> DwarfContents:
        """All of it. What is malformed is left out and noted in `module.cache["notes"]`."""
        if self._contents is None and not self._load():
            self._contents = self._read([unit.offset for unit in self._units.units])
            if self._contents.is_whole:
                cache.store(self._module.build_id, "dwarf", _pack(self._contents))
        return self._contents or DwarfContents()

    def _load(self) -> bool:
        stored = cache.load(self._module.build_id, "dwarf")
        if stored is not None:
            self._contents = _unpack(stored)
        return stored is not None

    def _units_at(self, addresses: Sequence[int]) -> list[int]:
        """Offsets of the units whose code holds one of the sorted addresses."""
        try:
            covered = sorted(self._units.addresses_covered())
        except DwarfError as error:
            self._note(error)
            return []
        found: dict[int, None] = {}
        position = 0
        for start, size, unit in covered:
            while position < len(addresses) and addresses[position] < start:
                position += 1
            if position < len(addresses) and addresses[position] < start + size:
                found[unit] = None
        return list(found)

    def _read(self, offsets: Iterable[int]) -> DwarfContents:
        contents = DwarfContents()
        deadline = time.monotonic() + READING_SECONDS_MAX
        for offset in offsets:
            if time.monotonic() > deadline:
                contents.is_whole = False
                self._note(DwarfError(f"it was read for {READING_SECONDS_MAX:.0f} s only, so not wholly"))
                break
            try:
                unit = self._units.unit_holding(offset)
                if unit.kind in SPLIT_UNITS:
                    raise DwarfError("a part of it is in .dwo files, which are not read")
                reader = UnitReader(self._units, self._tables, unit)
                functions, inlined = reader.read()
            except (DwarfError, RecursionError) as error:
                self._note(error)
                continue
            declared = not reader.is_assembly
            for start, name, parameters, returns, variadic in functions:
                arguments = tuple(Parameter(*item) for item in parameters)
                contents.functions.append(DwarfFunction(start, name, arguments, returns, variadic, declared))
            contents.inlined += [InlinedCall(*item) for item in inlined]
        return contents

    def _note(self, error: Exception) -> None:
        notes: list[str] = self._module.cache.setdefault("notes", [])
        text = f"the debug information of {self._module.name} is incomplete: {error}"
        if len(notes) < 8 and text not in notes:
            notes.append(text)


def open_dwarf(module: Module) -> Dwarf | None:
    """The module's debug information, or None when there is none that can be used."""
    if "dwarf" not in module.cache:
        module.cache["dwarf"] = _open(module)
    known: Dwarf | None = module.cache["dwarf"]
    return known


def _open(module: Module) -> Dwarf | None:
    try:
        whole = ObjectFile.of_bytes(module.image.data)
        folder, content = module.path, module.image.data
        if whole.section(".debug_info") is None:
            found = debug_file_of(module)
            if found is None or found.object.section(".debug_info") is None:
                return None
            whole, folder = found.object, found.path
            content = found.reader.read(0, found.reader.size)
        other = supplementary_file(module, whole, folder)
        units = DwarfUnits(whole, DwarfUnits(other) if other is not None else None)
    except (ObjectError, DwarfError, OSError) as error:
        module.cache.setdefault("notes", []).append(f"the debug information of {module.name} is not used: {error}")
        return None
    return Dwarf(module, units, DwarfTables(stream_of(content)))


def _pack(contents: DwarfContents) -> bytes:
    return json.dumps([contents.functions, contents.inlined], separators=(",", ":")).encode()


def _unpack(stored: bytes) -> DwarfContents:
    functions, inlined = json.loads(stored)
    return DwarfContents(
        [
            DwarfFunction(start, name, tuple(Parameter(*part) for part in parameters), *rest)
            for start, name, parameters, *rest in functions
        ],
        [
            InlinedCall(name, enclosing, tuple((low, high) for low, high in ranges), file, line)
            for name, enclosing, ranges, file, line in inlined
        ],
    )
