# SPDX-License-Identifier: Apache-2.0
"""Signatures: arguments and results of functions, from debug information, otherwise inferred from their code and marked
as such. Probing does not need them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from otel_nfprobe.arch.architecture import of_image
from otel_nfprobe.arch.code_facts import Inferred
from otel_nfprobe.elf import cache
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.dwarf import DwarfFunction, Parameter, open_dwarf
from otel_nfprobe.elf.symbols import Function

FROM_DWARF, FROM_CODE = "dwarf", "inferred"


class Signature(NamedTuple):
    """A function's parameters and return type.

    Attributes:
        source: FROM_DWARF, or FROM_CODE: then `arguments` is a lower bound and `returns` a guess, or None.
        return_type: "" if it returns nothing or the type is unknown.
        parameters: with debug information only.
    """

    source: str
    arguments: int
    returns: bool | None
    is_variadic: bool
    return_type: str = ""
    parameters: tuple[Parameter, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns it for JSON output."""
        return {
            "source": self.source,
            "variadic": self.is_variadic,
            "return_type": self.return_type or None,
            "parameters": [item._asdict() for item in self.parameters] if self.source == FROM_DWARF else None,
        }


def signatures_of(functions: Iterable[Function]) -> dict[Function, Signature]:
    """Returns the signature of each function."""
    by_module: dict[int, tuple[Module, list[Function]]] = {}
    for function in functions:
        by_module.setdefault(id(function.module), (function.module, []))[1].append(function)
    found: dict[Function, Signature] = {}
    for module, own in by_module.values():
        declared = _declared(module, own)
        rest = [function for function in own if function.offset not in declared]
        inferred = _inferred(module, rest)
        for function in own:
            said = declared.get(function.offset)
            found[function] = _from_dwarf(said) if said else _from_code(inferred[function.offset])
    return found


def _declared(module: Module, functions: list[Function]) -> dict[int, DwarfFunction]:
    dwarf = open_dwarf(module)
    if dwarf is None:
        return {}
    starts = sorted(function.offset for function in functions)
    return {item.start: item for item in dwarf.functions_at(starts) if item.is_declared}


def _from_dwarf(said: DwarfFunction) -> Signature:
    return Signature(
        FROM_DWARF, len(said.parameters), bool(said.returns), said.is_variadic, said.returns, said.parameters
    )


def _from_code(seen: Inferred) -> Signature:
    return Signature(FROM_CODE, seen.arguments, seen.returns, seen.is_variadic)


def _inferred(module: Module, functions: list[Function]) -> dict[int, Inferred]:
    stored = cache.load(module.build_id, "signatures")
    known = {int(start): Inferred(*row) for start, row in json.loads(stored).items()} if stored else {}
    missing = [function for function in functions if function.offset not in known]
    for function in missing:
        known[function.offset] = of_image(module.image).infer(module.image, function.offset, function.size)
    if missing:
        cache.store(module.build_id, "signatures", json.dumps(known).encode())
    return known
