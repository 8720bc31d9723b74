# SPDX-License-Identifier: Apache-2.0
"""The globs of the command line: `module:name`, `module:0xoffset`, `name`, `*`."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.demangle import demangle, short_name

if TYPE_CHECKING:
    from otel_nfprobe.elf.symbols import Named

NAMES_COMPARED_MAX = 20_000


class Pattern:
    """One glob.

    Raises:
        UsageError: a part of it is empty.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        module, colon, name = text.partition(":")
        # C++ and Rust names contain "::", and anything may follow a bracket.
        if not colon or name.startswith(":") or any(bracket in module for bracket in "<({"):
            module, name = "*", text
        self.module, self.name = module, name
        self.offset = _offset_of(name)
        if not name or not module:
            raise UsageError(f"{text!r} is not a function: write module:name, module:0xoffset or a name.")
        self.looks_at_names = self.offset is None and name != "*"
        self._expression = re.compile(fnmatch.translate(name))

    def matches_module(self, module: Module) -> bool:
        """Returns whether the glob matches one of the module's names."""
        return self.module == "*" or self.names_one_of(module.names)

    def names_one_of(self, modules: Iterable[str]) -> bool:
        """Returns whether it selects a module explicitly, and that module has one of these names."""
        return self.module != "*" and any(fnmatch.fnmatchcase(name, self.module) for name in modules)

    def matches(self, function: Named) -> bool:
        """Returns whether module and name match."""
        return self.matches_module(function.module) and self.matches_name(function)

    def matches_name(self, function: Named) -> bool:
        """Returns whether one of its names matches: raw, demangled, or with its version."""
        if self.offset is not None:
            return function.offset == self.offset
        if self.name == "*":
            return True
        if any(self.matches_text(alias) for alias in function.aliases):
            return True
        return "@" in self.name and self.matches_text(function.name + function.version)

    def matches_text(self, name: str) -> bool:
        """Returns whether a raw name matches, as it is or demangled, with or without its arguments."""
        if self._expression.match(name):
            return True
        shown = demangle(name)
        if shown == name:
            return False
        # A name copied from a listing may contain brackets that have a meaning in a glob.
        return shown == self.name or bool(self._expression.match(shown) or self._expression.match(short_name(shown)))


def near_names(name: str, candidates: list[str], count: int = 3) -> list[str]:
    """Returns the candidates most similar to a name."""
    lower = name.strip("*").lower()
    close = [candidate for candidate in candidates if lower and lower in candidate.lower()]
    if len(close) < count:
        close += difflib.get_close_matches(name, candidates[:NAMES_COMPARED_MAX], count, 0.5)
    return list(dict.fromkeys(close))[:count]


def _offset_of(text: str) -> int | None:
    if not text.lower().startswith("0x"):
        return None
    try:
        return int(text, 16)
    except ValueError:
        return None
