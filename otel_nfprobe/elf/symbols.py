# SPDX-License-Identifier: Apache-2.0
"""Functions of a module and their names, and the globs that select them.

Ranges always come from `.eh_frame`, names from the sources in names/sources.py; a function without a name is called by
its offset. Reads files only.
"""

from __future__ import annotations

import os
import shlex
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.elf.ehframe import Frame
from otel_nfprobe.elf.elf import UnreadableError
from otel_nfprobe.elf.elftables import Symbol
from otel_nfprobe.elf.modules import Module, names_of_file
from otel_nfprobe.elf.names.demangle import demangle, demangle_all
from otel_nfprobe.elf.names.sources import SLOT, Names, names_of
from otel_nfprobe.elf.pattern import Pattern, near_names

if TYPE_CHECKING:
    from otel_nfprobe.target.target import Target


# ---- names of slots -------------------------------------------------------------------------------------------------
# Names that only a running process reveals: the GOT slots of an imported name.
#
# A stripped C library names `memcpy`, which selects an implementation, but none of the implementations. The slots of a
# running process hold the selected one. Reads only.


WINDOW_BYTES = 4096


def imported_names(target: Target, addresses: Iterable[int]) -> dict[int, str]:
    """Returns names under which slots of the process point to some addresses."""
    wanted = frozenset(addresses)
    found: dict[int, str] = {}
    for module in target.modules() if wanted else []:
        try:
            values = _values(target, module)
        except NfprobeError:  # a part of the module is not mapped
            continue
        for name, value in values:
            if name and value in wanted:
                found.setdefault(value, name)
    return found


def _values(target: Target, module: Module) -> list[tuple[str, int]]:
    found = []
    start, content = 0, b""
    for slot in module.image.slots:
        address = module.base + slot.address
        if not start <= address <= start + len(content) - 8:
            start, content = address, target.read(address, min(WINDOW_BYTES, module.high - address))
        found.append((slot.name, struct.unpack_from("<Q", content, address - start)[0]))
    return found


# ---- functions ------------------------------------------------------------------------------------------------------


IFUNC_RESOLVER = "ifunc resolver"
NO_FRAME = "no frame describes it"
ALIASES_COMPARED = 32
INLINED_SHOWN = 4  # enclosing functions in an error
C_LIBRARIES = (
    "libc.so",
    "ld-musl",
    "libc.musl",
    "libpthread.so",
    "libdl.so",
    "libc-2.",
    "libpthread-2.",
    "libdl-2.",
)


@dataclass(eq=False, slots=True)
class Named:
    """A piece of code that has a name, or could have one.

    Attributes:
        offset: the file's own address of its first byte.
        size: bytes.
        name: the preferred one of its names as a linker sees it, or "0xOFFSET" if it has none.
        name_source: one of SOURCES in names.py, or "offset", or "section".
        aliases: all its names.
        exported: other modules can bind to one of its names.
        kind: "function", or "ifunc resolver": code that selects the function of that name at program start.
        version: "@@VERSION" if programs bind to this one, "@VERSION" if only old programs do, otherwise "".
        code_names: source and names before an adapter renamed it, or None; see `found_names`.
    """

    module: Module
    offset: int
    size: int
    name: str
    name_source: str
    aliases: tuple[str, ...]
    exported: bool
    kind: str = "function"
    version: str = ""
    code_names: tuple[str, tuple[str, ...]] | None = None

    def give_name(self, name: str, source: str) -> None:
        """Sets the name that an adapter gives it and adds it to its names."""
        self.code_names = self.found_names
        self.name, self.name_source, self.aliases = name, source, (name, *self.aliases)

    @property
    def found_names(self) -> tuple[str, tuple[str, ...]]:
        """Returns source and names that belong to its code; only they describe what it does."""
        return self.code_names or (self.name_source, self.aliases)

    @property
    def address(self) -> int:
        """Returns the address in the process."""
        return self.module.base + self.offset

    @property
    def label(self) -> str:
        """Returns `module:name` or `module+0xoffset`."""
        if self.name_source == "offset":
            return f"{self.module.name}+{self.offset:#x}"
        return f"{self.module.name}:{self.name}"

    @property
    def display_name(self) -> str:
        """Returns the demangled name, for people. Programs use `name`."""
        return demangle(self.name)

    @property
    def is_folded(self) -> bool:
        """Returns whether it has unrelated names: several functions folded into one piece of code."""
        bare = [demangle(alias).strip("_") for alias in self.aliases]
        return any(one not in other and other not in one for one, other in combinations(bare[:ALIASES_COMPARED], 2))


@dataclass(eq=False, slots=True)
class Function(Named):
    """One function of a module: the range of one `.eh_frame` entry."""

    frame: Frame = field(kw_only=True, repr=False)


@dataclass(eq=False, slots=True)
class Unframed(Named):
    """A function that a symbol names, but at whose start no `.eh_frame` entry begins.

    Attributes:
        reason: why it is not a Function.
    """

    reason: str = field(kw_only=True)


def functions_of(module: Module) -> list[Function]:
    """Returns all functions of a module, by offset.

    Raises:
        NfprobeError: the module's `.eh_frame` is malformed.
        UsageError: an archive that the user named cannot be used.
    """
    known: list[Function] | None = module.cache.get("functions")
    if known is None:
        names, made = names_in(module), _made(module)
        known = module.cache["functions"] = [
            made.get(index) or made.setdefault(index, _function(module, frame, names.get(frame.start, ())))
            for index, frame in enumerate(module.image.frames.frames)
        ]
    return known


def function_of(module: Module, index: int) -> Function:
    """Returns the function at an index of the module's frame table; always the same object. Raises as functions_of."""
    made = _made(module)
    known = made.get(index)
    if known is None:
        frame = module.image.frames.frames[index]
        known = made.setdefault(index, _function(module, frame, names_in(module).get(frame.start, ())))  # threads share
    return known


def _made(module: Module) -> dict[int, Function]:
    """Returns the functions requested so far, by index of their frame."""
    made: dict[int, Function] = module.cache.setdefault("made", {})
    return made


def functions_without_frame(module: Module) -> list[Unframed]:
    """Returns functions with a size that symbols name and no frame describes: mostly handwritten assembly.

    Raises: as functions_of.
    """
    known: list[Unframed] | None = module.cache.get("unframed")
    if known is not None:
        return known
    frames = module.image.frames
    starts = frozenset(frames.starts)
    found: list[Unframed] = []
    module.cache["unframed"] = found
    for address, symbols in sorted(names_in(module).items()):
        size = max(symbol.size for symbol in symbols)
        if address in starts or not size or module.image.section_of(address).startswith(".plt"):
            continue
        around = frames.find(address)
        reason = NO_FRAME if around is None else f"inside the function at {around.start:#x}, whose frame covers it"
        name, source, aliases, exported, kind, version = _naming(symbols)
        found.append(Unframed(module, address, size, name, source, aliases, exported, kind, version, reason=reason))
    return found


def use_archives(source: Target | Module | list[Module], archives: Sequence[str | Path]) -> None:
    """Names functions without a name from static archives that contain the same code."""
    modules = [source] if isinstance(source, Module) else source if isinstance(source, list) else source.modules()
    for module in modules:
        if module.cache.get("archives", ()) != tuple(archives):
            module.cache["archives"] = tuple(archives)
            for key in ("names", "functions", "made", "slot names", "unframed"):
                module.cache.pop(key, None)


def function_at(module: Module, offset: int) -> Function | None:
    """Returns the function whose range contains one of the file's own addresses."""
    frames = module.image.frames
    index = bisect_right(frames.starts, offset) - 1
    if index >= 0 and offset < frames.starts[index] + frames.frames[index].size:
        return function_of(module, index)
    return None


def find_functions(
    source: Target | Module | str | Path | list[Module],
    globs: Iterable[str],
    exclude: Iterable[str] = (),
) -> list[Function]:
    """Returns functions that match one of the globs and none of the excluded ones, by module and offset.

    Args:
        source: a target, modules, or the path of an ELF file.
        globs: `module:name`, `module:0xoffset`, `name` or `*`; shell patterns.
        exclude: the same.

    Raises:
        UsageError: a glob matches nothing; the text lists similar names.
    """
    found, unframed = list_functions(source, globs, exclude)
    if not found and unframed:
        raise UsageError(f"{unframed[0].label} cannot be probed: {unframed[0].reason}.", modules_of(source)[1])
    return found


def list_functions(
    source: Target | Module | str | Path | list[Module],
    globs: Iterable[str],
    exclude: Iterable[str] = (),
) -> tuple[list[Function], list[Unframed]]:
    """As find_functions, plus the functions without a frame. Raises as find_functions."""
    modules, next_command = modules_of(source)
    target = None if isinstance(source, str | Path | Module | list) else source
    excluded = [Pattern(text) for text in exclude]
    found: dict[int, Named] = {}
    for text in globs:
        pattern = Pattern(text)
        matches = _select(pattern, modules, target)
        if not matches:
            _check_readable(pattern, modules, target)
            sentence, options = _nothing_matches(pattern, modules)
            raise UsageError(sentence, next_command + options)
        found.update((id(function), function) for function in matches)
    kept = [
        function
        for function in sorted(found.values(), key=lambda item: (item.module.low, item.offset))
        if not any(pattern.matches(function) for pattern in excluded)
    ]
    framed = [item for item in kept if isinstance(item, Function)]
    return framed, [item for item in kept if isinstance(item, Unframed)]


def exported_address(target: Target, name: str) -> int | None:
    """Returns the address of a function of the target's C library, or None."""
    for prefix in C_LIBRARIES:
        for module in target.modules():
            if module.name.startswith(prefix):
                symbol = module.image.find_export(name)
                if symbol is not None and symbol.kind == 2:
                    return module.base + symbol.address
    return None


def exported_offset(path: str | Path, name: str) -> int | None:
    """Returns the file's own address of an exported symbol, or None."""
    symbol = Module.from_file(path).image.exports.get(name)
    return None if symbol is None else symbol.address


def build_id_of(path: str | Path) -> str:
    """Returns the build ID of an ELF file in hex, or ""."""
    return Module.from_file(path).build_id


def modules_of(source: Target | Module | str | Path | list[Module]) -> tuple[Sequence[Module], str]:
    """Returns the modules of a source of functions, and the command that lists its functions."""
    if isinstance(source, str | Path):
        return [Module.from_file(source)], f"nfprobe functions {source}"
    if isinstance(source, Module):
        return [source], f"nfprobe functions {source.path}"
    if not isinstance(source, list):
        modules = source.modules()
        for module in modules:
            module.cache.setdefault("root", f"/proc/{source.pid}/root")
        return modules, f"nfprobe functions {source.pid}"
    return source, "nfprobe functions PID"


def _select(pattern: Pattern, modules: Sequence[Module], target: Target | None) -> list[Named]:
    chosen = [module for module in modules if pattern.matches_module(module)]
    if target is not None:
        _name_by_slots(target, chosen)
    found = []
    for module in chosen:
        items: list[Named] = [*functions_of(module), *functions_without_frame(module)]
        if pattern.looks_at_names:
            demangle_all(alias for item in items for alias in item.aliases)
        found += [item for item in items if pattern.matches_name(item)]
    return found


def names_in(module: Module) -> Names:
    """Returns all names of a module's functions by address, the preferred one first. Raises as functions_of."""
    known: Names | None = module.cache.get("names")
    if known is None:
        known = names_of(module)
        module.cache["names"] = known
    return known


def _function(module: Module, frame: Frame, symbols: Sequence[Symbol]) -> Function:
    # The start files' .eh_frame describes a PLT as one function.
    section = module.image.section_of(frame.start)
    if section.startswith(".plt"):
        return Function(module, frame.start, frame.size, section, "section", (section,), False, frame=frame)
    if not symbols:
        name = f"{frame.start:#x}"
        return Function(module, frame.start, frame.size, name, "offset", (name,), False, frame=frame)
    name, source, aliases, exported, kind, version = _naming(symbols)
    return Function(module, frame.start, frame.size, name, source, aliases, exported, kind, version, frame=frame)


def _naming(symbols: Sequence[Symbol]) -> tuple[str, str, tuple[str, ...], bool, str, str]:
    """Returns name, source, aliases, exported, kind and version of symbols; the preferred one is first."""
    best = symbols[0]
    aliases = tuple(dict.fromkeys(symbol.name for symbol in symbols))
    exported = any(symbol.source == "dynsym" for symbol in symbols)
    kind = IFUNC_RESOLVER if any(symbol.kind == 10 for symbol in symbols) else "function"
    return best.name, best.source, aliases, exported, kind, best.version


def _name_by_slots(target: Target, modules: Sequence[Module]) -> None:
    """Names functions without a name by the slots that point to them; only where a library selects among several."""
    unnamed = {}
    for module in modules:
        if "slot names" not in module.cache and any(symbol.kind == 10 for symbol in module.image.symbols):
            module.cache["slot names"] = True
            unnamed.update({item.address: item for item in functions_of(module) if item.name_source == "offset"})
    for address, name in imported_names(target, unnamed).items():
        function = unnamed[address]
        function.name, function.name_source, function.aliases = name, SLOT, (name,)


def _check_readable(pattern: Pattern, modules: Sequence[Module], target: Target | None) -> None:
    """Raises if nothing matches because a file could not be read."""
    for module in modules:
        if pattern.matches_module(module):
            module.image.check()
    for path, sentence in target.unreadable.items() if target is not None else ():
        if pattern.names_one_of(names_of_file(os.path.basename(path))):
            raise UnreadableError(f"No function of {path} can be probed: {sentence}", f"file {shlex.quote(path)}")


def _nothing_matches(pattern: Pattern, modules: Sequence[Module]) -> tuple[str, str]:
    """Returns the sentence, and options for a next command that shows more."""
    chosen = [module for module in modules if pattern.matches_module(module)]
    if not chosen:
        names = sorted({name for module in modules for name in module.names})
        near = near_names(pattern.module, names) or sorted(module.name for module in modules)[:3]
        return f"No module matches {pattern.text!r}; near it: {', '.join(near)}.", ""
    if pattern.offset is not None:
        inside = [function_at(module, pattern.offset) for module in chosen]
        near = [function.label for function in inside if function is not None]
        if near:
            return f"No function starts at {pattern.text!r}; that address is inside {near[0]}.", ""
        return f"No function starts at {pattern.text!r}.", ""
    if not any(functions_of(module) or functions_without_frame(module) for module in chosen):
        files = ", ".join(module.name for module in chosen)
        return f"No functions are found in {files}: they have neither .eh_frame nor function symbols.", ""
    sentence = _inlined_sentence(pattern, chosen)
    if sentence:
        return sentence, f" --inlined --functions {shlex.quote(pattern.text)}"
    candidates = list(
        dict.fromkeys(name for module in chosen for function in functions_of(module) for name in function.aliases)
    )
    near = near_names(pattern.name, candidates)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return f"No function matches {pattern.text!r}{hint}.", ""


def _inlined_sentence(pattern: Pattern, modules: Sequence[Module]) -> str:
    from otel_nfprobe.elf.names.inlined import (
        inlined_in,  # the debug information reader is loaded for this sentence only
    )

    found = inlined_in(modules, pattern.matches_text)
    if not found:
        return ""
    enclosing = [function_at(item.module, item.call.enclosing) for item in found]
    labels = list(dict.fromkeys(function.label for function in enclosing if function is not None))
    more = f" and {len(labels) - INLINED_SHOWN} more" if len(labels) > INLINED_SHOWN else ""
    names = sorted({demangle(item.call.name) for item in found})
    what = names[0] if len(names) == 1 else f"{len(names)} functions that match {pattern.text!r}"
    verb = "is" if len(names) == 1 else "are"
    return f"{what} {verb} inlined into {', '.join(labels[:INLINED_SHOWN])}{more}: probe those instead."
