# SPDX-License-Identifier: Apache-2.0
"""Functions of a module and their names, and the globs that choose among them.

Ranges come from `.eh_frame` always, names from .dynsym, then .symtab; a function without a name is called by
its offset. Reads files only. Called by the command line, the adapters and analysis.py.
"""

from __future__ import annotations

import difflib
import fnmatch
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from otel_nfprobe.ehframe import Frame
from otel_nfprobe.elf import Symbol
from otel_nfprobe.errors import UsageError
from otel_nfprobe.modules import Module

if TYPE_CHECKING:
    from otel_nfprobe.target import Target

FUNCTION_KINDS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
NAMES_COMPARED_MAX = 20_000
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
class Function:
    """One function of a module.

    Attributes:
        offset: the file's own address of its first byte.
        size: bytes.
        name: the best of its names, or "0xOFFSET" when it has none.
        name_source: "dynsym", "symtab" or "offset".
        aliases: all its names.
        exported: other modules can bind to one of its names.
    """

    module: Module
    frame: Frame
    offset: int
    size: int
    name: str
    name_source: str
    aliases: tuple[str, ...]
    exported: bool

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


def functions_of(module: Module) -> list[Function]:
    """All functions of a module, by offset.

    Raises:
        NfprobeError: the module's `.eh_frame` is malformed.
    """
    known: list[Function] | None = module.cache.get("functions")
    if known is None:
        names = _names_by_address(module)
        known = [_function(module, frame, names.get(frame.start, ())) for frame in module.image.frames.frames]
        module.cache["functions"] = known
        module.cache["starts"] = [function.offset for function in known]
    return known


def function_at(module: Module, offset: int) -> Function | None:
    """The function whose range holds the file's own address."""
    functions = functions_of(module)
    index = bisect_right(module.cache["starts"], offset) - 1
    if index >= 0 and offset < functions[index].offset + functions[index].size:
        return functions[index]
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
    modules, next_command = _modules_of(source)
    excluded = [_Pattern(text) for text in exclude]
    found: dict[int, Function] = {}
    for text in globs:
        pattern = _Pattern(text)
        matches = pattern.select(modules)
        if not matches:
            raise UsageError(_nothing_matches(pattern, modules), next_command)
        found.update((id(function), function) for function in matches)
    return [
        function
        for function in sorted(found.values(), key=lambda item: (item.module.low, item.offset))
        if not any(pattern.matches(function) for pattern in excluded)
    ]


def exported_address(target: Target, name: str) -> int | None:
    """Address of a function of the target's C library, or None."""
    for prefix in C_LIBRARIES:
        for module in target.modules():
            if module.name.startswith(prefix):
                symbol = module.image.exports.get(name)
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


class _Pattern:
    """One glob of the command line."""

    def __init__(self, text: str) -> None:
        self.text = text
        module, colon, name = text.partition(":")
        if not colon or name.startswith(":"):  # C++ names hold "::"
            module, name = "*", text
        self.module, self.name = module, name
        self.offset = _offset_of(name)
        if not name or not module:
            raise UsageError(f"{text!r} is not a function: write module:name, module:0xoffset or a name.")

    def matches_module(self, module: Module) -> bool:
        return self.module == "*" or any(fnmatch.fnmatchcase(name, self.module) for name in module.names)

    def matches_name(self, function: Function) -> bool:
        if self.offset is not None:
            return function.offset == self.offset
        if self.name == "*":
            return True
        if any(fnmatch.fnmatchcase(alias, self.name) for alias in function.aliases):
            return True
        return fnmatch.fnmatchcase(function.name, self.name)

    def matches(self, function: Function) -> bool:
        return self.matches_module(function.module) and self.matches_name(function)

    def select(self, modules: Sequence[Module]) -> list[Function]:
        return [
            function
            for module in modules
            if self.matches_module(module)
            for function in functions_of(module)
            if self.matches_name(function)
        ]


def _modules_of(source: Target | Module | str | Path | list[Module]) -> tuple[Sequence[Module], str]:
    if isinstance(source, str | Path):
        return [Module.from_file(source)], f"nfprobe functions {source}"
    if isinstance(source, Module):
        return [source], f"nfprobe functions {source.path}"
    if not isinstance(source, list):
        return source.modules(), f"nfprobe functions {source.pid}"
    return source, "nfprobe functions PID"


def _names_by_address(module: Module) -> dict[int, list[Symbol]]:
    names: dict[int, list[Symbol]] = {}
    for symbol in module.image.symbols:
        if symbol.kind in FUNCTION_KINDS:
            names.setdefault(symbol.address, []).append(symbol)
    for symbols in names.values():
        symbols.sort(key=lambda symbol: (symbol.source, symbol.rank, symbol.name))
    return names


def _function(module: Module, frame: Frame, symbols: Sequence[Symbol]) -> Function:
    # The start files' .eh_frame describes a PLT as one function.
    section = module.image.section_of(frame.start)
    if section.startswith(".plt"):
        return Function(module, frame, frame.start, frame.size, section, "section", (section,), False)
    if not symbols:
        name = f"{frame.start:#x}"
        return Function(module, frame, frame.start, frame.size, name, "offset", (name,), False)
    best = symbols[0]
    aliases = tuple(dict.fromkeys(symbol.name for symbol in symbols))
    exported = any(symbol.source == "dynsym" for symbol in symbols)
    return Function(module, frame, frame.start, frame.size, best.name, best.source, aliases, exported)


def _offset_of(text: str) -> int | None:
    if not text.lower().startswith("0x"):
        return None
    try:
        return int(text, 16)
    except ValueError:
        return None


def _nothing_matches(pattern: _Pattern, modules: Sequence[Module]) -> str:
    chosen = [module for module in modules if pattern.matches_module(module)]
    if not chosen:
        names = sorted({name for module in modules for name in module.names})
        near = difflib.get_close_matches(pattern.module, names, 3, 0.5) or sorted(m.name for m in modules)[:3]
        return f"No module matches {pattern.text!r}; near it: {', '.join(near)}."
    if pattern.offset is not None:
        inside = [function_at(module, pattern.offset) for module in chosen]
        near = [function.label for function in inside if function is not None]
        if near:
            return f"No function starts at {pattern.text!r}; that address is inside {near[0]}."
        return f"No function starts at {pattern.text!r}."
    candidates = list(
        dict.fromkeys(name for module in chosen for function in functions_of(module) for name in function.aliases)
    )
    near = _near_names(pattern.name.strip("*"), candidates)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return f"No function matches {pattern.text!r}{hint}."


def _near_names(name: str, candidates: list[str]) -> list[str]:
    lower = name.lower()
    close = [candidate for candidate in candidates if lower and lower in candidate.lower()]
    if len(close) < 3:
        close += difflib.get_close_matches(name, candidates[:NAMES_COMPARED_MAX], 3, 0.5)
    return list(dict.fromkeys(close))[:3]
