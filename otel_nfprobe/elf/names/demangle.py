# SPDX-License-Identifier: Apache-2.0
"""Demangled C++ and Rust names, for people. Programs keep the raw name.

C++ names go to the C++ runtime's own demangler, in the process that reads ELF files: back references in a name of 300
characters can expand to more text than fits in memory. Without the runtime those names stay mangled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.elf import elfanswers
from otel_nfprobe.elf.elfparser import NAMES, ParserError
from otel_nfprobe.elf.filecontent import Content

# ---- Rust -----------------------------------------------------------------------------------------------------------
# Demangles Rust's two schemes: the legacy one, which looks like C++, and v0 (`_R...`).
#
# The grammar of v0 is that of "Rust RFC 2603". Invalid names give None, never an exception.


T = TypeVar("T")

DEPTH_MAX = 200
TEXT_CHARACTERS_MAX = 8192  # back references can make a short name endless
_LEGACY = compile_late(r"_ZN(.*)17h[0-9a-f]{16}E(\..*)?")
_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
_BASIC_TYPES = {
    "a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8", "i": "isize",
    "j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "p": "_", "s": "i16", "t": "u16",
    "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!",
}  # fmt: skip


def is_rust_name(name: str) -> bool:
    """Returns whether the Rust compiler mangled it."""
    return name.startswith("_R") or _LEGACY.fullmatch(name) is not None


def demangle_rust(name: str) -> str | None:
    """Returns the demangled name, without hashes; None if it is invalid."""
    legacy = _LEGACY.fullmatch(name)
    if legacy:
        return _legacy(legacy[1])
    if not name.startswith("_R"):
        return None
    body = re.split(r"[.@]", name[2:], maxsplit=1)[0]
    reader = _Reader(body)
    try:
        if body[:1].isdigit():  # a future version of the encoding
            return None
        return reader.path(True)
    except (_MalformedError, RecursionError):
        return None


def _legacy(body: str) -> str | None:
    parts = []
    while body:
        digits = re.match(r"[1-9]\d{0,5}", body)
        if not digits:
            return None
        end = digits.end() + int(digits[0])
        if end > len(body):
            return None
        parts.append(_unescape(body[digits.end() : end]))
        body = body[end:]
    return "::".join(parts) or None


def _unescape(text: str) -> str:
    if text.startswith("_$"):
        text = text[1:]
    text = re.sub(r"\$([A-Z]+)\$", lambda match: _ESCAPES.get(match[1], match[0]), text)
    text = re.sub(r"\$u([0-9a-f]{1,6})\$", _character, text)
    return text.replace("..", "::")


def _character(match: re.Match[str]) -> str:
    code = int(match[1], 16)
    return chr(code) if 0x20 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else match[0]


class _MalformedError(ValueError):
    pass


class _Reader:
    """Parses one v0 name from left to right. Each method is one production of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0
        self.written = 0
        self.lifetimes = 0  # bound so far

    # ---- characters and numbers ----------------------------------------------------------------------------

    def next(self) -> str:
        if self.position >= len(self.text):
            raise _MalformedError
        self.position += 1
        return self.text[self.position - 1]

    def take(self, character: str) -> bool:
        if self.text.startswith(character, self.position):
            self.position += 1
            return True
        return False

    def base62(self) -> int:
        if self.take("_"):
            return 0
        value = 0
        while True:
            character = self.next()
            if character == "_":
                return value + 1
            digit = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ".find(character)
            if digit < 0 or value >> 64:
                raise _MalformedError
            value = value * 62 + digit

    def disambiguator(self) -> int:
        return self.base62() + 1 if self.take("s") else 0

    def identifier(self) -> str:
        puny = self.take("u")
        digits = re.compile(r"0|[1-9]\d{0,5}").match(self.text, self.position)
        if not digits:
            raise _MalformedError
        self.position = digits.end()
        self.take("_")
        end = self.position + int(digits[0])
        if end > len(self.text):
            raise _MalformedError
        text, self.position = self.text[self.position : end], end
        if puny:
            head, _, tail = text.rpartition("_")
            try:
                text = (f"{head}-{tail}" if head else tail).encode().decode("punycode")
            except UnicodeError as error:
                raise _MalformedError from error
        return text

    def back(self, production: Callable[[], T]) -> T:
        """Parses an earlier part of the name again."""
        here = self.position - 1
        target = self.base62()
        if target >= here:
            raise _MalformedError
        after, self.position = self.position, target
        found = production()
        self.position = after
        return found

    def nested(self, production: Callable[[], str]) -> str:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _MalformedError
        text = production()
        self.depth -= 1
        self.written += len(text)
        if self.written > TEXT_CHARACTERS_MAX * DEPTH_MAX or len(text) > TEXT_CHARACTERS_MAX:
            raise _MalformedError
        return text

    # ---- paths ---------------------------------------------------------------------------------------------

    def path(self, in_value: bool) -> str:
        return self.nested(lambda: self._path(in_value))

    def _path(self, in_value: bool) -> str:
        tag = self.next()
        if tag == "C":
            self.disambiguator()
            return self.identifier()
        if tag in "MX":
            self.disambiguator()
            self.path(False)  # the path of the implementation
            return self._implementation(tag == "X")
        if tag == "Y":
            return self._implementation(True)
        if tag == "N":
            return self._member(in_value)
        if tag == "I":
            start = self.path(in_value)
            arguments = ", ".join(self.until_end(self.generic_argument))
            return f"{start}{'::' if in_value else ''}<{arguments}>"
        if tag == "B":
            return self.back(lambda: self.path(in_value))
        raise _MalformedError

    def _implementation(self, has_trait: bool) -> str:
        kind = self.type()
        return f"<{kind} as {self.path(False)}>" if has_trait else f"<{kind}>"

    def _member(self, in_value: bool) -> str:
        space = self.next()
        if not space.isalpha():
            raise _MalformedError
        outer = self.path(in_value)
        number = self.disambiguator()
        name = self.identifier()
        if space.islower():
            return f"{outer}::{name}" if name else outer
        what = {"C": "closure", "S": "shim"}.get(space, space)
        return f"{outer}::{{{what}{':' if name else ''}{name}#{number}}}"

    def until_end(self, production: Callable[[], str]) -> list[str]:
        found = []
        while not self.take("E"):
            found.append(production())
        return found

    def generic_argument(self) -> str:
        if self.take("L"):
            return self.lifetime(self.base62())
        if self.take("K"):
            return self.constant()
        return self.type()

    def lifetime(self, index: int) -> str:
        if index == 0:
            return "'_"
        depth = self.lifetimes - index
        if depth < 0:
            raise _MalformedError
        return f"'{chr(ord('a') + depth)}" if depth < 26 else f"'_{depth}"

    def bound(self, production: Callable[[], str]) -> str:
        """Parses a type under `for<'a, ...>`."""
        count = self.base62() + 1 if self.take("G") else 0
        if count > DEPTH_MAX:
            raise _MalformedError
        before = self.lifetimes
        self.lifetimes += count
        names = ", ".join(self.lifetime(self.lifetimes - before - number) for number in range(count))
        text = production()
        self.lifetimes = before
        return f"for<{names}> {text}" if count else text

    # ---- types and constants -------------------------------------------------------------------------------

    def type(self) -> str:
        return self.nested(self._type)

    def _type(self) -> str:
        tag = self.next()
        if tag in _BASIC_TYPES:
            return _BASIC_TYPES[tag]
        if tag in "RQ":
            index = self.base62() if self.take("L") else 0
            lifetime = f"{self.lifetime(index)} " if index else ""
            return f"&{lifetime}{'mut ' if tag == 'Q' else ''}{self.type()}"
        if tag in "PO":
            return f"*{'const' if tag == 'P' else 'mut'} {self.type()}"
        if tag == "A":
            element = self.type()
            return f"[{element}; {self.constant()}]"
        if tag == "S":
            return f"[{self.type()}]"
        if tag == "T":
            members = self.until_end(self.type)
            return f"({members[0]},)" if len(members) == 1 else f"({', '.join(members)})"
        if tag == "F":
            return self.bound(self._signature)
        if tag == "D":
            return self._dynamic()
        if tag == "B":
            return self.back(self.type)
        self.position -= 1
        return self.path(False)

    def _signature(self) -> str:
        unsafe = "unsafe " if self.take("U") else ""
        convention = ""
        if self.take("K"):
            name = "C" if self.take("C") else self.identifier().replace("_", "-")
            convention = f'extern "{name}" '
        arguments = ", ".join(self.until_end(self.type))
        result = self.type()
        return f"{unsafe}{convention}fn({arguments}){'' if result == '()' else f' -> {result}'}"

    def _dynamic(self) -> str:
        text = self.bound(lambda: " + ".join(self.until_end(self._trait)))
        if not self.take("L"):
            raise _MalformedError
        index = self.base62()
        return f"dyn {text}{f' + {self.lifetime(index)}' if index else ''}"

    def _trait(self) -> str:
        text = self.path(False)
        bindings = []
        while self.take("p"):
            name = self.identifier()
            bindings.append(f"{name} = {self.type()}")
        if not bindings:
            return text
        if text.endswith(">"):
            return f"{text[:-1]}, {', '.join(bindings)}>"
        return f"{text}<{', '.join(bindings)}>"

    def constant(self) -> str:
        return self.nested(self._constant)

    def _constant(self) -> str:
        tag = self.next()
        if tag == "B":
            return self.back(self.constant)
        if tag == "p":
            return "_"
        if tag not in "abchijlmnostxy":
            raise _MalformedError
        negative = self.take("n")
        end = self.text.find("_", self.position)
        digits = self.text[self.position : end]
        if end < 0 or not re.fullmatch(r"[0-9a-f]{0,32}", digits):
            raise _MalformedError
        self.position = end + 1
        value = int(digits or "0", 16)
        if tag == "b":
            return "true" if value else "false"
        if tag == "c":
            return repr(chr(value)) if value < 0x110000 else "_"
        return f"-{value}" if negative else str(value)


# ---- any language ---------------------------------------------------------------------------------------------------


NAME_CHARACTERS_MAX = 4096  # the runtime's demangler recurses: longer names stay mangled
KNOWN_MAX = 1 << 19
ACCIDENTS_MAX = 3  # after this many failed lists C++ names stay mangled
ANONYMOUS = "(anonymous"
_OPERATOR = compile_late(r"\boperator(\(\)|\b)")  # what follows may contain brackets
_OPENING, _CLOSING = frozenset("<([{"), frozenset(">)]}")


def demangle(name: str) -> str:
    """Returns the demangled name; the name itself if it is not mangled, or invalid."""
    if not name.startswith(("_Z", "_R", "__Z", "___Z")) or len(name) > NAME_CHARACTERS_MAX:
        return name
    if is_rust_name(name):
        return _demangle_rust(name)
    if name not in _cpp_names.known:
        _cpp_names.learn([name])
    return _cpp_names.known[name]


def demangle_all(names: Iterable[str]) -> None:
    """Prefetches `demangle` of these names: all at once take little longer than one."""
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
    """Cache of demangled C++ names.

    Attributes:
        known: results of the last names, including names that stay as they are.
    """

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._accidents = 0

    def learn(self, names: list[str]) -> None:
        """Demangles names; those of a failed list stay mangled, as one of them may be the cause."""
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
    """Returns a demangled name without arguments and return type: `a::f` for `int a::f(char) const`."""
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
