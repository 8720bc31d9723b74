# SPDX-License-Identifier: Apache-2.0
"""Sources of function names, the cheapest first.

    the file itself: .dynsym, .symtab -> its separate debug file -> .gnu_debugdata -> DWARF -> a static archive

A source is opened only while functions of the module lack a name, and only for modules that are used.
Reads files only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.elf.elftables import Symbol, rank_of, split_version
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.archive import archive_names, known_archives
from otel_nfprobe.elf.names.debugfile import debug_file_of, mini_debug_of
from otel_nfprobe.elf.objectfile import ObjectError, ObjectFile

FUNCTION_KINDS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
DEBUG_FILE, MINI_DEBUG, DWARF, ARCHIVE, SLOT = "debug file", "debugdata", "dwarf", "archive", "slot"
SOURCES = ("dynsym", "symtab", DEBUG_FILE, MINI_DEBUG, DWARF, ARCHIVE, SLOT)  # the best first
_ORDER = {source: position for position, source in enumerate(SOURCES)}

Names = dict[int, list[Symbol]]


def names_of(module: Module) -> Names:
    """Returns function symbols by address, the preferred name of each address first.

    Raises:
        NfprobeError: the module's `.eh_frame` is malformed.
        UsageError: an archive that the user named cannot be used.
    """
    names: Names = {}
    _add(names, (symbol for symbol in module.image.symbols if symbol.kind in FUNCTION_KINDS))
    missing = _unnamed(module, names)
    if missing and not any(symbol.source == "symtab" for symbol in module.image.symbols):
        _add_separate(module, names)
        missing = [start for start in missing if start not in names]
    if missing:
        _add_dwarf(module, names, missing)
        missing = [start for start in missing if start not in names]
    if missing:
        _add_archives(module, names, missing)
    for symbols in names.values():
        symbols.sort(key=lambda symbol: (_ORDER[symbol.source], symbol.rank, symbol.name))
    return names


def note(module: Module, text: str) -> None:
    """Notes that a source of names could not be used."""
    notes: list[str] = module.cache.setdefault("notes", [])
    if text not in notes:
        notes.append(text)


def _add(names: Names, symbols: Iterable[Symbol]) -> None:
    for symbol in symbols:
        names.setdefault(symbol.address, []).append(symbol)


def _unnamed(module: Module, names: Names) -> list[int]:
    """Returns starts of functions without a name; the entries of a PLT need none."""
    image = module.image
    return [
        frame.start
        for frame in image.frames.frames
        if frame.start not in names and not image.section_of(frame.start).startswith(".plt")
    ]


def _add_separate(module: Module, names: Names) -> None:
    found = debug_file_of(module)
    try:
        if found is not None and found.object.has_symbols:
            _add(names, list(_symbols(module, found.object, DEBUG_FILE)))
            return
        mini = mini_debug_of(module.image.data)
        if mini is not None:
            _add(names, list(_symbols(module, mini, MINI_DEBUG)))
    except (ObjectError, OSError) as error:
        note(module, f"{module.name}: {error}")


def _symbols(module: Module, file: ObjectFile, source: str) -> Iterable[Symbol]:
    ranges = module.image.code_ranges
    for symbol in file.symbols():
        if symbol.kind in FUNCTION_KINDS and symbol.section:
            if not any(low <= symbol.value < high for low, high in ranges):
                continue
            name, version = split_version(symbol.name)
            rank = rank_of(name, symbol.binding, version)
            yield Symbol(symbol.value, symbol.size, name, symbol.kind, rank, source, version, symbol.binding)


def _add_dwarf(module: Module, names: Names, missing: list[int]) -> None:
    from otel_nfprobe.elf.names.dwarf import open_dwarf

    dwarf = open_dwarf(module)
    if dwarf is None:
        return
    for function in dwarf.functions_at(missing):
        position = bisect_left(missing, function.start)
        if function.name and position < len(missing) and missing[position] == function.start:
            rank = rank_of(function.name, 0)
            _add(names, [Symbol(function.start, 0, function.name, 2, rank, DWARF, "", 0)])


def _add_archives(module: Module, names: Names, missing: list[int]) -> None:
    asked = [str(path) for path in module.cache.get("archives", ())]
    paths = asked or known_archives(module)
    spans = [(frame.start, frame.size) for frame in module.image.frames.frames]
    known = {start: {symbol.name for symbol in symbols} for start, symbols in names.items()}
    try:
        found = archive_names(module, spans, known, paths)
    except UsageError as error:
        if asked:
            raise
        note(module, error.sentence)
        return
    for start in missing:
        if start in found:
            _add(names, [Symbol(start, 0, found[start], 2, rank_of(found[start], 0), ARCHIVE, "", 0)])
