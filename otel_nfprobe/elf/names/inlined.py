# SPDX-License-Identifier: Apache-2.0
"""Functions that a compiler inlined, and where: they have no code of their own to probe.

Known from debug information only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.demangle import demangle_all
from otel_nfprobe.elf.names.dwarf import InlinedCall, open_dwarf

SEARCH_SECONDS_MAX = 60.0


class Inlined(NamedTuple):
    """One call site where a function of a module was inlined."""

    module: Module
    call: InlinedCall


def inlined_in(modules: Iterable[Module], matches: Callable[[str], bool]) -> list[Inlined]:
    """Returns where functions were inlined whose raw name matches, by module and enclosing function.

    Modules without debug information have none; stops after a time limit.
    """
    deadline = time.monotonic() + SEARCH_SECONDS_MAX
    found = []
    for module in modules:
        if time.monotonic() > deadline:
            break
        dwarf = open_dwarf(module)
        if dwarf is None:
            continue
        known: dict[str, bool] = {}
        demangle_all(call.name for call in dwarf.contents().inlined)
        for call in dwarf.contents().inlined:
            if call.name not in known:
                known[call.name] = bool(call.name) and matches(call.name)
            if known[call.name]:
                found.append(Inlined(module, call))
    return found
