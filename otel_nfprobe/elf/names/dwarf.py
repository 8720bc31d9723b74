# SPDX-License-Identifier: Apache-2.0
"""Debug information of a module: functions, their arguments, and inlined functions.

It is read from the module's own file, otherwise from its separate debug file. Reading all of it takes seconds for a
large program: it is done on demand, once (cache.py), and within a time limit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from otel_nfprobe.elf import cache
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.debugfile import DEBUG_FOLDER, FileReader, debug_file_of, roots_of
from otel_nfprobe.elf.names.dwarftables import DwarfTables, Ranges, stream_of
from otel_nfprobe.elf.names.dwarfunits import (
    ABSTRACT_ORIGIN,
    ADDRESS_FORMS,
    CALL_FILE,
    CALL_LINE,
    DECLARATION,
    HIGH_PC,
    LANGUAGE,
    LINKAGE_NAME,
    LOCATION,
    LOW_PC,
    MIPS_LINKAGE_NAME,
    NAME,
    RANGES,
    SIBLING,
    SPECIFICATION,
    TYPE,
    Abbreviation,
    DwarfError,
    DwarfUnits,
    Reference,
    Unit,
    Value,
    integer,
)
from otel_nfprobe.elf.objectfile import ObjectError, ObjectFile

# ---- shared debug files ---------------------------------------------------------------------------------------------
# The file that several debug files share (dwz), named in `.gnu_debugaltlink`.


def supplementary_file(module: Module, file: ObjectFile, path: str) -> ObjectFile | None:
    """Returns the shared file of a debug file, or None if it has none.

    Args:
        path: of the debug file.

    Raises:
        ObjectError: it names one that does not exist.
    """
    section = file.section(".gnu_debugaltlink")
    if section is None:
        return None
    name, _, identity = file.content(section).partition(b"\0")
    link, build_id = os.fsdecode(name), identity.hex()
    for candidate in _candidates(module, link, build_id, path):
        try:
            found = ObjectFile(FileReader(candidate).read)
        except (OSError, ObjectError):
            continue
        if found.build_id == build_id:
            return found
    raise ObjectError(f"the file {link} that it shares with others is missing")


def _candidates(module: Module, link: str, build_id: str, path: str) -> list[str]:
    places = [os.path.join(os.path.dirname(path), link)] if not os.path.isabs(link) else []
    for root in roots_of(module):
        if os.path.isabs(link):
            places.append(root + link)
        places.append(f"{root}{DEBUG_FOLDER}/.dwz/{os.path.basename(link)}")
        places.append(f"{root}{DEBUG_FOLDER}/.build-id/{build_id[:2]}/{build_id[2:]}.debug")
    return places


# ---- one unit -------------------------------------------------------------------------------------------------------
# Functions, arguments and inlined calls of one DWARF unit.


PARAMETER, BLOCK, SUBPROGRAM, INLINED, VARIADIC = 0x05, 0x0B, 0x2E, 0x1D, 0x18
# Entries that can contain functions; children of all others are skipped.
_CONTAINERS = frozenset((0x11, 0x3C, 0x39, 0x02, 0x13, 0x17, BLOCK, SUBPROGRAM, INLINED, 0x32, 0x03, 0x1E))
_TYPE_WORDS = {
    0x0F: "*", 0x10: "&", 0x42: "&&", 0x26: "const", 0x35: "volatile", 0x37: "restrict", 0x47: "_Atomic",
    0x13: "struct", 0x17: "union", 0x04: "enum", 0x02: "", 0x01: "[]", 0x15: "()",
}  # fmt: skip
NAMESPACE, ANONYMOUS_NAMESPACE = 0x39, "(anonymous namespace)"
_FOLLOWED_MAX = 16
ASSEMBLERS = (0x8001, 0x31)
C_LANGUAGES = (0x01, 0x02, 0x0C, 0x1D, 0x2C)

FoundFunction = tuple[int, str, list[tuple[str, str, str]], str, bool]
FoundCall = tuple[str, int, Ranges, str, int]


class UnitReader:
    """Walks one unit once."""

    def __init__(self, units: DwarfUnits, tables: DwarfTables, unit: Unit) -> None:
        self.units = units
        self.tables = tables
        self.unit = unit
        self.functions: list[FoundFunction] = []
        self._calls: list[tuple[dict[int, Value], int, Ranges, str, int]] = []
        self._scopes: dict[Reference, str] = {}  # namespace of each function
        self.base = 0
        self.is_assembly = self._is_c = False
        self._files: list[str] | None = None
        self._names: dict[Reference, str] = {}
        self._types: dict[Reference, str] = {}

    def read(self) -> tuple[list[FoundFunction], list[FoundCall]]:
        """Returns all functions and inlined calls.

        Raises:
            DwarfError: the unit is malformed.
        """
        units, unit = self.units, self.unit
        _, values, _ = units.entry(unit, unit.entries)
        self.base = integer(values.get(LOW_PC))
        self.is_assembly = integer(values.get(LANGUAGE)) in ASSEMBLERS
        self._is_c = integer(values.get(LANGUAGE)) in C_LANGUAGES
        position = unit.entries
        enclosing: list[tuple[Any, str]] = []  # per open list of children: the function, if any; namespace
        while position < unit.end:
            start = position
            shape, position = units.shape(unit, start)
            if shape is None:
                if enclosing:
                    enclosing.pop()
                continue
            here, scope = enclosing[-1] if enclosing else (None, "")
            if shape.tag == NAMESPACE:
                scope = self._scope(shape, position, scope)
            elif shape.tag == SUBPROGRAM and scope:
                self._scopes[Reference(False, start)] = scope
            inner, position = self._entry(shape, position, here)
            if shape.has_children:
                enclosing.append((inner, scope))
        # An inlined function may follow the calls where it was inlined.
        calls = [(self.name(values), start, ranges, file, line) for values, start, ranges, file, line in self._calls]
        return self.functions, calls

    def _scope(self, shape: Abbreviation, position: int, outer: str) -> str:
        values, _ = self.units.values(self.unit, shape, position)
        name = values.get(NAME)
        return f"{outer}{name if isinstance(name, str) else ANONYMOUS_NAMESPACE}::"

    def _entry(self, shape: Abbreviation, position: int, here: Any) -> tuple[Any, int]:
        """Processes an entry. Returns the function that its children belong to, and where it ends."""
        tag = shape.tag
        if tag == SUBPROGRAM:
            values, position = self.units.values(self.unit, shape, position)
            inner = self._function(values)
            return inner, self._children(shape, values, position, inner is None)
        if here is not None:
            if tag == INLINED:
                values, position = self.units.values(self.unit, shape, position)
                self._call(values, here)
                return _Nested(here), position
            if tag == PARAMETER and isinstance(here, list):
                values, position = self.units.values(self.unit, shape, position)
                self._parameter(values, here)
                return None, position
            if tag == VARIADIC and isinstance(here, list):
                here[4] = True
        if (shape.has_children and tag not in _CONTAINERS) or tag in (0x02, 0x13, 0x17):
            values, position = self.units.values(self.unit, shape, position)
            return None, self._children(shape, values, position, True)
        inner = _Nested(here) if here is not None and tag == BLOCK else None
        return inner, self.units.skip(self.unit, shape, position)

    def _children(self, shape: Abbreviation, values: dict[int, Value], position: int, skipped: bool) -> int:
        """Skips irrelevant children, where the compiler gives their end."""
        sibling = values.get(SIBLING)
        if skipped and shape.has_children and isinstance(sibling, Reference) and not sibling.in_other_file:
            if not position < sibling.offset <= self.unit.end:
                raise DwarfError(f"an entry at {position:#x} whose children have no end")
            # Stays on the end mark: the list of children is empty from here.
            return sibling.offset - 1 if self.units.info[sibling.offset - 1] == 0 else position
        return position

    # ---- functions -----------------------------------------------------------------------------------------

    def _function(self, values: dict[int, Value]) -> Any:
        """A function with code becomes a list to which its children are added; others become None."""
        if DECLARATION in values:
            return None
        if LOW_PC in values:
            start = integer(values[LOW_PC])
        elif RANGES in values:
            # Compilers that split a function put the part with its entry first.
            ranges = self._ranges(values)
            start = ranges[0][0] if ranges else 0
        else:
            return None
        if not start:
            return None
        found: list[Any] = [start, self.name(values), [], self._return_type(values), False]
        self.functions.append(found)  # type: ignore[arg-type]
        return found

    def _parameter(self, values: dict[int, Value], function: list[Any]) -> None:
        origin = self._origin(values)
        place = ""
        location, form = values.get(LOCATION), integer(values.get(-LOCATION))
        if isinstance(location, bytes | int):
            place = self.tables.place_at(self.unit, location, form, function[0], self.base)
        function[2].append((self.name(origin), self.type_name(origin.get(TYPE), 0), place))

    def _return_type(self, values: dict[int, Value]) -> str:
        kind = self._origin(values).get(TYPE)
        return "" if kind is None else self.type_name(kind, 0)

    def _call(self, values: dict[int, Value], here: Any) -> None:
        function = here.function if isinstance(here, _Nested) else here
        files = self._source_files()
        number = integer(values.get(CALL_FILE))
        file = files[number] if 0 <= number < len(files) else ""
        line = integer(values.get(CALL_LINE))
        self._calls.append((values, function[0], self._ranges(values), file, line))

    def _source_files(self) -> list[str]:
        if self._files is None:
            self._files = self.tables.source_files(self.unit)
        return self._files

    def _ranges(self, values: dict[int, Value]) -> Ranges:
        if RANGES in values:
            return self.tables.ranges(self.unit, integer(values[RANGES]), integer(values.get(-RANGES)), self.base)
        low, high = integer(values.get(LOW_PC)), integer(values.get(HIGH_PC))
        if values.get(-HIGH_PC) not in ADDRESS_FORMS:
            high += low
        return ((low, high),) if high > low else ()

    # ---- names and types -----------------------------------------------------------------------------------

    def _origin(self, values: dict[int, Value]) -> dict[int, Value]:
        """Returns the entry's attributes, with those of the entries it refers to."""
        merged = dict(values)
        for _ in range(_FOLLOWED_MAX):
            link = values.get(ABSTRACT_ORIGIN, values.get(SPECIFICATION))
            if not isinstance(link, Reference):
                break
            values = self._entry_at(link)[1]
            merged.update((key, value) for key, value in values.items() if key not in merged)
        return merged

    def name(self, values: dict[int, Value]) -> str:
        """Returns the linkage name of an entry, or its source name with its namespaces; "" if it has none."""
        link = values.get(ABSTRACT_ORIGIN, values.get(SPECIFICATION))
        if isinstance(link, Reference) and LINKAGE_NAME not in values:
            if link not in self._names:
                self._names[link] = ""  # breaks a cycle
                self._names[link] = self._linked_name(link)
            return self._names[link] or self._name_in(values)
        return self._name_in(values)

    def _linked_name(self, link: Reference) -> str:
        entry = self._entry_at(link)[1]
        name = self._name_in(self._origin(entry))
        if LINKAGE_NAME in entry or MIPS_LINKAGE_NAME in entry:
            return name
        for _ in range(_FOLLOWED_MAX):
            deeper = entry.get(ABSTRACT_ORIGIN, entry.get(SPECIFICATION))
            if link in self._scopes or not isinstance(deeper, Reference):
                break
            link, entry = deeper, self._entry_at(deeper)[1]
        has_own = LINKAGE_NAME in entry or MIPS_LINKAGE_NAME in entry
        return name if has_own else self._scopes.get(link, "") + name

    @staticmethod
    def _name_in(values: dict[int, Value]) -> str:
        for key in (LINKAGE_NAME, MIPS_LINKAGE_NAME, NAME):
            name = values.get(key)
            if isinstance(name, str) and name:
                return name
        return ""

    def type_name(self, link: Value | None, depth: int) -> str:
        """Returns a type in approximate C syntax."""
        if not isinstance(link, Reference):
            return "void"
        if depth > _FOLLOWED_MAX:
            return "?"
        known = self._types.get(link)
        if known is None:
            known = self._type(link, depth)
            self._types[link] = known
        return known

    def _type(self, link: Reference, depth: int) -> str:
        tag, values = self._entry_at(link)
        name = values.get(NAME)
        word = _TYPE_WORDS.get(tag, "")
        if isinstance(name, str) and name:
            return f"{word} {name}" if self._is_c and tag in (0x13, 0x17, 0x04) else name
        if TYPE not in values and word and tag in (0x13, 0x17, 0x04):
            return word
        inner = self.type_name(values.get(TYPE), depth + 1)
        if word.isalpha() or word == "_Atomic":
            return f"{inner} {word}" if inner.endswith("*") else f"{word} {inner}"
        return f"{inner} {word}".replace("* *", "**") if word else inner

    def _entry_at(self, link: Reference) -> tuple[int, dict[int, Value]]:
        units = self.units.other if link.in_other_file else self.units
        if units is None:
            raise DwarfError("a reference to a missing shared file")
        tag, values, _ = units.entry(units.unit_holding(link.offset), link.offset)
        if link.in_other_file:
            values = {
                key: Reference(True, value.offset) if isinstance(value, Reference) else value
                for key, value in values.items()
            }
        return tag, values


class _Nested:
    """A position inside a function, in a block or an inlined call."""

    __slots__ = ("function",)

    def __init__(self, here: Any) -> None:
        self.function: Any = here.function if isinstance(here, _Nested) else here


# ---- one module -----------------------------------------------------------------------------------------------------


READING_SECONDS_MAX = 60.0
SPLIT_UNITS = (4, 5)
UNITS_LOOKED_UP_MAX = 64  # above this, everything is read at once


class Parameter(NamedTuple):
    """One argument.

    Attributes:
        place: the register that holds it at entry, "stack", or "" if unknown.
    """

    name: str
    type: str
    place: str


class DwarfFunction(NamedTuple):
    """A function that has code. `start`: the file's own address of its entry."""

    start: int
    name: str  # as a linker sees it
    parameters: tuple[Parameter, ...]
    returns: str  # type, or "" for none
    is_variadic: bool
    is_declared: bool  # False: written in assembly, so its arguments are unknown


class InlinedCall(NamedTuple):
    """One place where a function was inlined.

    Attributes:
        name: of the inlined function, as a linker sees it.
        enclosing: start of the function that contains it.
        ranges: its code, (start, end); empty if no code remains.
        call_file, call_line: of the call in the source.
    """

    name: str
    enclosing: int
    ranges: tuple[tuple[int, int], ...]
    call_file: str
    call_line: int


@dataclass
class DwarfContents:
    """What was read. `is_whole`: False if the time limit was reached."""

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
        """Returns the functions at some addresses, and perhaps others; reads only the units that cover them."""
        if not addresses:
            return []
        if self._contents is None and not self._load():
            units = self._units_at(addresses)
            if len(units) <= UNITS_LOOKED_UP_MAX:
                return self._read(units).functions
        return self.contents().functions

    def contents(self) -> DwarfContents:
        """Returns everything. Malformed parts are skipped and noted in `module.cache["notes"]`."""
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
        """Returns the offsets of units whose code contains one of the sorted addresses."""
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
                self._note(DwarfError(f"reading stopped after {READING_SECONDS_MAX:.0f} s"))
                break
            try:
                unit = self._units.unit_holding(offset)
                if unit.kind in SPLIT_UNITS:
                    raise DwarfError("part of it is in .dwo files, which are not read")
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
    """Returns the module's debug information, or None if there is none that can be used."""
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
    return Dwarf(module, units, DwarfTables(stream_of(content), module.image.processor))


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
