# SPDX-License-Identifier: Apache-2.0
"""Functions of a module and their names, and the globs that choose among them.

Ranges come from `.eh_frame` always, names from where names/sources.py finds them; a function without a name is called
by its offset. Reads files only.
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
# Names of functions that only a process can tell: what its GOT slots hold for a name that was imported.
#
# A stripped C library names `memcpy` where it chooses an implementation, and none of the implementations. The
# slots of a running process hold the chosen one. Reads only.


WINDOW_BYTES = 4096


def imported_names(target: Target, addresses: Iterable[int]) -> dict[int, str]:
    """Names under which slots of the process lead to some addresses."""
    wanted = frozenset(addresses)
    found: dict[int, str] = {}
    for module in target.modules() if wanted else []:
        try:
            values = _values(target, module)
        except NfprobeError:  # a part of the module is not mapped, or not any more
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
        name: the best of its names as a linker sees it, or "0xOFFSET" when it has none.
        name_source: one of SOURCES in names.py, or "offset", or "section".
        aliases: all its names.
        exported: other modules can bind to one of its names.
        kind: "function", or "ifunc resolver": code that chooses the function of that name when programs start.
        version: "@@VERSION" when programs bind to this one, "@VERSION" when only old programs do, else "".
        code_names: source and names before an adapter gave it one, or None: `found_names` has them.
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
        """What an adapter calls it: its name from now on, and one of its names."""
        self.code_names = self.found_names
        self.name, self.name_source, self.aliases = name, source, (name, *self.aliases)

    @property
    def found_names(self) -> tuple[str, tuple[str, ...]]:
        """Source and names that were found with its code: they alone say what it does."""
        return self.code_names or (self.name_source, self.aliases)

    @property
    def address(self) -> int:
        """Address in the process."""
        return self.module.base + self.offset

    @property
    def label(self) -> str:
        """`module:name` or `module+0xoffset`, as people read it."""
        if self.name_source == "offset":
            return f"{self.module.name}+{self.offset:#x}"
        return f"{self.module.name}:{self.name}"

    @property
    def display_name(self) -> str:
        """The name for people: demangled. Programs use `name`."""
        return demangle(self.name)

    @property
    def is_folded(self) -> bool:
        """Whether it has names that have nothing in common: several functions that are one piece of code."""
        bare = [demangle(alias).strip("_") for alias in self.aliases]
        return any(one not in other and other not in one for one, other in combinations(bare[:ALIASES_COMPARED], 2))


@dataclass(eq=False, slots=True)
class Function(Named):
    """One function of a module: what one frame of `.eh_frame` describes."""

    frame: Frame = field(kw_only=True, repr=False)


@dataclass(eq=False, slots=True)
class Unframed(Named):
    """A function that a symbol names and that no frame starts at.

    Attributes:
        reason: why it is no Function.
    """

    reason: str = field(kw_only=True)


def functions_of(module: Module) -> list[Function]:
    """All functions of a module, by offset.

    Raises:
        NfprobeError: the module's `.eh_frame` is malformed.
        UsageError: an archive that somebody named cannot be used.
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
    """The function at an index of the module's frame table; the same object each time. Raises as functions_of."""
    made = _made(module)
    known = made.get(index)
    if known is None:
        frame = module.image.frames.frames[index]
        known = made.setdefault(index, _function(module, frame, names_in(module).get(frame.start, ())))  # threads share
    return known


def _made(module: Module) -> dict[int, Function]:
    """The functions that somebody asked for, by index of their frame."""
    made: dict[int, Function] = module.cache.setdefault("made", {})
    return made


def functions_without_frame(module: Module) -> list[Unframed]:
    """Functions with a size that symbols name where no frame starts: mostly code written by hand.

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
        reason = NO_FRAME if around is None else f"inside the function at {around.start:#x}, which has the frame"
        name, source, aliases, exported, kind, version = _naming(symbols)
        found.append(Unframed(module, address, size, name, source, aliases, exported, kind, version, reason=reason))
    return found


def use_archives(source: Target | Module | list[Module], archives: Sequence[str | Path]) -> None:
    """Lets functions without a name be named by static archives that hold the same code."""
    modules = [source] if isinstance(source, Module) else source if isinstance(source, list) else source.modules()
    for module in modules:
        if module.cache.get("archives", ()) != tuple(archives):
            module.cache["archives"] = tuple(archives)
            for key in ("names", "functions", "made", "slot names", "unframed"):
                module.cache.pop(key, None)


def function_at(module: Module, offset: int) -> Function | None:
    """The function whose range holds the file's own address."""
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
    """Functions that match one of the globs and none of the excluded ones, by module and offset.

    Args:
        source: a target, modules, or the path of an ELF file.
        globs: `module:name`, `module:0xoffset`, `name` or `*`; shell patterns.
        exclude: the same.

    Raises:
        UsageError: a glob matches nothing; names what is near it.
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
    """As find_functions, and beside them the functions that no frame describes. Raises as find_functions."""
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
    """Address of a function of the target's C library, or None."""
    for prefix in C_LIBRARIES:
        for module in target.modules():
            if module.name.startswith(prefix):
                symbol = module.image.find_export(name)
                if symbol is not None and symbol.kind == 2:
                    return module.base + symbol.address
    return None


def exported_offset(path: str | Path, name: str) -> int | None:
    """The file's own address of an exported symbol, or None."""
    symbol = Module.from_file(path).image.exports.get(name)
    return None if symbol is None else symbol.address


def build_id_of(path: str | Path) -> str:
    """Build id of an ELF file in hex, or ""."""
    return Module.from_file(path).build_id


def modules_of(source: Target | Module | str | Path | list[Module]) -> tuple[Sequence[Module], str]:
    """The modules of a source of functions, and the command that lists its functions."""
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
    """All names of a module's functions by address, the best one first. Raises as functions_of."""
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
    """Name, source, aliases, exported, kind and version of what symbols stand for; the best one is first."""
    best = symbols[0]
    aliases = tuple(dict.fromkeys(symbol.name for symbol in symbols))
    exported = any(symbol.source == "dynsym" for symbol in symbols)
    kind = IFUNC_RESOLVER if any(symbol.kind == 10 for symbol in symbols) else "function"
    return best.name, best.source, aliases, exported, kind, best.version


def _name_by_slots(target: Target, modules: Sequence[Module]) -> None:
    """Names functions that have none by the slots that lead to them; only where a library chooses among several."""
    unnamed = {}
    for module in modules:
        if "slot names" not in module.cache and any(symbol.kind == 10 for symbol in module.image.symbols):
            module.cache["slot names"] = True
            unnamed.update({item.address: item for item in functions_of(module) if item.name_source == "offset"})
    for address, name in imported_names(target, unnamed).items():
        function = unnamed[address]
        function.name, function.name_source, function.aliases = name, SLOT, (name,)


def _check_readable(pattern: Pattern, modules: Sequence[Module], target: Target | None) -> None:
    """Raises where nothing matches because a file could not be read."""
    for module in modules:
        if pattern.matches_module(module):
            module.image.check()
    for path, sentence in target.unreadable.items() if target is not None else ():
        if pattern.names_one_of(names_of_file(os.path.basename(path))):
            raise UnreadableError(f"No function of {path} can be probed: {sentence}", f"file {shlex.quote(path)}")


def _nothing_matches(pattern: Pattern, modules: Sequence[Module]) -> tuple[str, str]:
    """The sentence, and options for a next command that shows more."""
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
        return f"No functions are found in {files}: no .eh_frame says where they are, and no symbol names one.", ""
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
        inlined_in,  # what reads debug information is loaded for this sentence alone
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
