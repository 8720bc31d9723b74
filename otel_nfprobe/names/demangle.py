# SPDX-License-Identifier: Apache-2.0
"""C++ and Rust names as people write them. Programs keep the raw name. Called by symbols.py.

C++ names go to the C++ runtime's own demangler. It is looked for when the first such name is met; where it is
missing those names stay as they are.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Callable
from functools import cache, lru_cache

from otel_nfprobe.names.rustnames import demangle_rust, is_rust_name

NAME_CHARACTERS_MAX = 4096  # the runtime's demangler recurses: longer names are left alone
CPP_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1")
ANONYMOUS = "(anonymous"
_OPERATOR = re.compile(r"\boperator(\(\)|\b)")  # what follows may hold brackets of its own
_OPENING, _CLOSING = frozenset("<([{"), frozenset(">)]}")


@lru_cache(maxsize=1 << 16)
def demangle(name: str) -> str:
    """The name for people; the name itself when it is not mangled, or cannot be read."""
    if not name.startswith(("_Z", "_R", "__Z", "___Z")) or len(name) > NAME_CHARACTERS_MAX:
        return name
    if is_rust_name(name):
        return demangle_rust(name) or name
    return _cpp_demangler()(name) or name


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


@cache
def _cpp_demangler() -> Callable[[str], str]:
    for library in CPP_RUNTIMES:
        try:
            runtime = ctypes.CDLL(library)
            demangler = runtime.__cxa_demangle
        except (OSError, AttributeError):
            continue
        demangler.restype = ctypes.c_void_p
        demangler.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        return _caller(demangler, free)
    return lambda name: ""


def _caller(demangler: Callable[..., int | None], free: Callable[[int], None]) -> Callable[[str], str]:
    status = ctypes.c_int()

    def call(name: str) -> str:
        found = demangler(name.encode(), None, None, ctypes.byref(status))
        if not found:
            return ""
        try:
            return ctypes.string_at(found).decode("utf-8", "replace")
        finally:
            free(found)

    return call
