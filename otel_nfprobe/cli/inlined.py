# SPDX-License-Identifier: Apache-2.0
"""`nfprobe functions --inlined`: what a compiler inlined, and into which functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.listing import print_columns
from otel_nfprobe.cli.main import print_json
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.demangle import demangle
from otel_nfprobe.elf.names.dwarf import open_dwarf
from otel_nfprobe.elf.names.inlined import Inlined, inlined_in
from otel_nfprobe.elf.pattern import Pattern
from otel_nfprobe.elf.symbols import Function, function_at

HEADINGS = ("module", "inlined", "bytes", "ranges", "into", "called at")
WIDTHS_MAX = (32, 40, 8, 6, 40)


def show_inlined(
    modules: Sequence[Module], globs: Sequence[str], exclude: Sequence[str], what: str, as_json: bool
) -> None:
    """Prints the inlined functions that match, or whose enclosing function does.

    Raises:
        UsageError: nothing matches, or there is no debug information.
    """
    patterns, excluded = [Pattern(text) for text in globs], [Pattern(text) for text in exclude]
    chosen = [module for module in modules if any(pattern.matches_module(module) for pattern in patterns)]
    if not any(open_dwarf(module) for module in chosen):
        names = ", ".join(sorted({module.name for module in chosen})[:4]) or "no module that matches"
        sentence = f"There is no debug information of {names}: what was inlined is not known."
        raise UsageError(sentence, f"nfprobe functions {what}")
    found = [(item, function_at(item.module, item.call.enclosing)) for item in inlined_in(chosen, lambda name: True)]
    kept = [
        (item, enclosing)
        for item, enclosing in found
        if any(_fits(pattern, item, enclosing) for pattern in patterns)
        and not any(_fits(pattern, item, enclosing) for pattern in excluded)
    ]
    if not kept:
        sentence = f"No inlined function matches {' or '.join(repr(text) for text in globs)}."
        raise UsageError(sentence, f"nfprobe functions {what} --inlined")
    if as_json:
        print_json([_as_json(item, enclosing) for item, enclosing in kept])
        return
    print_columns(HEADINGS, [_row(item, enclosing) for item, enclosing in kept], WIDTHS_MAX, right=2)
    functions = len({(id(item.module), item.call.name) for item, _ in kept})
    print(f"\n{len(kept):,} places where {functions:,} functions were inlined")


def _fits(pattern: Pattern, item: Inlined, enclosing: Function | None) -> bool:
    if not pattern.matches_module(item.module):
        return False
    if pattern.matches_text(item.call.name):
        return True
    return enclosing is not None and pattern.matches_name(enclosing)


def _label(item: Inlined, enclosing: Function | None) -> str:
    if enclosing is None or enclosing.name_source == "offset":
        return f"{item.call.enclosing:#x}"
    return enclosing.display_name


def _row(item: Inlined, enclosing: Function | None) -> tuple[str, ...]:
    call = item.call
    size_bytes = sum(high - low for low, high in call.ranges)
    place = f"{call.call_file}:{call.call_line}" if call.call_line else call.call_file
    label = _label(item, enclosing)
    return (item.module.name, demangle(call.name), str(size_bytes), str(len(call.ranges)), label, place)


def _as_json(item: Inlined, enclosing: Function | None) -> dict[str, Any]:
    call = item.call
    return {
        "module": item.module.name,
        "name": call.name,
        "display_name": demangle(call.name),
        "enclosing": enclosing.name if enclosing else None,
        "enclosing_offset": call.enclosing,
        "ranges": [list(span) for span in call.ranges],
        "call_file": call.call_file,
        "call_line": call.call_line,
    }
