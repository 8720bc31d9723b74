# SPDX-License-Identifier: Apache-2.0
"""C++ and Rust names as people write them. Programs keep the raw name.

C++ names go to the C++ runtime's own demangler, in the process that reads ELF files: back references in a name of 300
characters can stand for more text than any memory holds. Where the runtime is missing those names stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf import elfanswers
from otel_nfprobe.elf.elfparser import NAMES, ParserError
from otel_nfprobe.elf.filecontent import Content
from otel_nfprobe.elf.names.rustnames import demangle_rust, is_rust_name

NAME_CHARACTERS_MAX = 4096  # the runtime's demangler recurses: longer names are left alone
KNOWN_MAX = 1 << 19
ACCIDENTS_MAX = 3  # after so many lists of names that were not read C++ names stay as they are
ANONYMOUS = "(anonymous"
_OPERATOR = re.compile(r"\boperator(\(\)|\b)")  # what follows may hold brackets of its own
_OPENING, _CLOSING = frozenset("<([{"), frozenset(">)]}")


def demangle(name: str) -> str:
    """The name for people; the name itself when it is not mangled, or cannot be read."""
    if not name.startswith(("_Z", "_R", "__Z", "___Z")) or len(name) > NAME_CHARACTERS_MAX:
        return name
    if is_rust_name(name):
        return _demangle_rust(name)
    if name not in _cpp_names.known:
        _cpp_names.learn([name])
    return _cpp_names.known[name]


def demangle_all(names: Iterable[str]) -> None:
    """Prepares for `demangle` of each of these names: all at once take little longer than one."""
    fresh = dict.fromkeys(name for name in names if name.startswith(("_Z", "__Z", "___Z")))
    wanted = [
        name
        for name in fresh
        if name not in _cpp_names.known and len(name) <= NAME_CHARACTERS_MAX and not is_rust_name(name)
    ]
    if wanted:
        _cpp_names.learn(wanted)


@lru_cache(maxsize=1 << 16)
def _demangle_rust(name: str) -> str:
    return demangle_rust(name) or name


class _CppNames:
    """What C++ names are for people.

    Attributes:
        known: of those that were asked for last, names that stay as they are included.
    """

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._accidents = 0

    def learn(self, names: list[str]) -> None:
        """Asks for names; those of a list that was not read stay as they are, as they may be why it was not."""
        shown: list[str] = []
        if self._accidents < ACCIDENTS_MAX:
            try:
                content = Content("\0".join(names).encode("utf-8", "replace"))
                shown = elfanswers.ask(NAMES, content, lambda parts: _read_names(parts, len(names))) or []
            except (ParserError, NfprobeError):
                self._accidents += 1
        if len(self.known) > KNOWN_MAX:
            self.known = {}
        if len(shown) != len(names):
            shown = names
        self.known.update((name, text or name) for name, text in zip(names, shown, strict=True))


def _read_names(parts: list[memoryview], count: int) -> list[str]:
    names = bytes(parts[0]).decode("utf-8", "replace").split("\0")
    if len(names) != count:
        raise ValueError("names")
    return names


_cpp_names = _CppNames()


def short_name(display_name: str) -> str:
    """A demangled name without arguments and return type: `a::f` for `int a::f(char) const`."""
    operator = _OPERATOR.search(display_name)
    depth = start = 0
    for position, character in enumerate(display_name):
        if operator and position == operator.start():
            end = display_name.find("(", operator.end())
            return display_name[start:end] if end >= 0 else display_name[start:]
        if character == "(" and not depth and not display_name.startswith(ANONYMOUS, position):
            return display_name[start:position]
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= depth > 0
        elif character == " " and not depth:
            start = position + 1
    return display_name
