# SPDX-License-Identifier: Apache-2.0
"""`nfprobe functions PID or ELF`: lists every function, and how it would be probed or why it cannot be."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.gc_tuning import collection_paused
from otel_nfprobe.base.printable import printable
from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.cli.main import EXIT_DONE, print_json, tell
from otel_nfprobe.cli.waiting import Waiting
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.demangle import demangle, demangle_all
from otel_nfprobe.elf.names.dwarf import open_dwarf
from otel_nfprobe.elf.names.inlined import Inlined, inlined_in
from otel_nfprobe.elf.pattern import Pattern
from otel_nfprobe.elf.symbols import (
    IFUNC_RESOLVER,
    Function,
    Named,
    Unframed,
    function_at,
    list_functions,
    modules_of,
    use_archives,
)
from otel_nfprobe.probes.analysis import IN_LINKER, FunctionPlan, plan_functions, refused
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.signatures import Signature, signatures_of
from otel_nfprobe.target.target import Target

# ---- listing --------------------------------------------------------------------------------------------------------
# Names and columns.


ALIASES_SHOWN = 3


def shown_names(items: Sequence[Named]) -> dict[Named, str]:
    """Returns each function's name in a table: demangled, with a version if the name alone is ambiguous."""
    counts = Counter((id(item.module), item.name) for item in items)
    return {item: _shown(item, counts[id(item.module), item.name] > 1) for item in items}


def _shown(item: Named, is_repeated: bool) -> str:
    if item.name_source == "offset":
        return "-"
    text = item.display_name
    if is_repeated or (item.version.startswith("@") and not item.version.startswith("@@")):
        text += item.version
    remarks = []
    if item.kind == IFUNC_RESOLVER:
        remarks.append(IFUNC_RESOLVER)
    if item.is_folded:
        others = [demangle(alias) for alias in item.aliases if alias != item.name]
        more = f" and {len(others) - ALIASES_SHOWN} more" if len(others) > ALIASES_SHOWN else ""
        remarks.append(f"also {', '.join(others[:ALIASES_SHOWN])}{more}")
    return f"{text} ({'; '.join(remarks)})" if remarks else text


def print_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], widths_max: Sequence[int], right: int | None = None
) -> None:
    """Prints a table whose last column has any width.

    Args:
        widths_max: of the other columns; longer cells are not truncated.
        right: the right-aligned column.
    """
    columns = [list(map(printable, column)) for column in zip(headings, *rows, strict=True)]
    for place, (column, limit) in enumerate(zip(columns, widths_max, strict=False)):
        width = min(limit, max(map(len, column)))
        align = str.rjust if place == right else str.ljust
        columns[place] = [align(cell, width) for cell in column]
    print("\n".join(["  ".join(row).rstrip() for row in zip(*columns, strict=True)]))


# ---- verb -----------------------------------------------------------------------------------------------------------


HEADINGS = ("module", "offset", "size", "strategy", "name", "from", "reason")
WIDTHS_MAX = (32, 18, 9, 16, 48, 10)


class FunctionsCommand:
    """Lists the functions of a process or ELF file: where each is, its name and where that comes from, which strategy
    would probe it, or the reason why none can. Changes nothing.

    Without --functions it lists all functions of all modules; `--functions 'NAME:*'` selects one module. Inlined
    functions have no code of their own: --inlined lists them, from debug information.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", metavar="PID|ELF", help="a process, or the path of an ELF file")
        parser.add_argument(
            "--functions",
            action="append",
            metavar="GLOB",
            help="module:name, module:0xoffset, name or *; repeatable; C++ and Rust names also demangled",
        )
        parser.add_argument(
            "--exclude", action="append", default=[], metavar="GLOB", help="leave these out; repeatable"
        )
        parser.add_argument("--strategy", choices=sorted(STRATEGIES), help="only this strategy")
        parser.add_argument(
            "--archive",
            action="append",
            default=[],
            metavar="FILE.a",
            help="name unnamed functions by matching code in this static archive; repeatable",
        )
        parser.add_argument(
            "--inlined", action="store_true", help="list inlined functions and where they were inlined instead"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")

    @collection_paused()
    def run(self, arguments: argparse.Namespace) -> int:
        target = _open(arguments.what)
        modules = list(modules_of(target or str(arguments.what))[0])
        use_archives(modules, arguments.archive)
        globs = arguments.functions or ["*"]
        try:
            if arguments.inlined:
                show_inlined(modules, globs, arguments.exclude, arguments.what, arguments.json)
                return EXIT_DONE
            with Waiting(f"reading the symbols of {len(modules):,} files") as waiting:
                found, unframed = list_functions(target or modules[0], globs, arguments.exclude)
                demangle_all(alias for item in (*found, *unframed) for alias in item.aliases)
                waiting.say(f"looking at the code of {len(found):,} functions")
                plans = plan_functions(found, target, arguments.strategy)
                listed = [plan for plan in plans if not _is_part(plan)]
                signatures = signatures_of(plan.function for plan in listed) if arguments.json else {}
            if arguments.json:
                rows = [
                    _as_json(plan.function, plan.strategy, plan.reason, signatures[plan.function]) for plan in listed
                ]
                print_json(rows + [_as_json(item, None, _unframed_reason(item)) for item in unframed])
            else:
                _print_table(listed, unframed, len(plans) - len(listed))
        finally:
            for text in dict.fromkeys(text for module in modules for text in module.cache.get("notes", ())):
                tell(text)
        return EXIT_DONE


def _open(what: str) -> Target | None:
    if what.isdigit() and not os.path.exists(what):
        target = Target(int(what))
        for note in check_target(target):
            tell(note)
        return target
    if not os.path.exists(what):
        raise UsageError(f"{what} is neither a pid nor a file.", "pgrep -a NAME")
    return None


def _is_part(plan: FunctionPlan) -> bool:
    """Returns whether it is part of another function, or the entries of a PLT."""
    return bool(getattr(plan, "is_part", False)) or plan.name_source == "section"


def _as_json(item: Named, strategy: str | None, reason: str, signature: Signature | None = None) -> dict[str, Any]:
    return {
        "module": item.module.name,
        "offset": item.offset,
        "size": item.size,
        "name": item.name,
        "name_source": item.name_source,
        "strategy": strategy,
        "reason": reason,
        "arguments": signature and signature.arguments,
        "returns": signature and signature.returns,
        "display_name": item.display_name,
        "aliases": list(item.aliases) if item.name_source != "offset" else [],
        "kind": item.kind,
        "version": item.version.lstrip("@"),
        "is_default_version": not item.version.startswith("@") or item.version.startswith("@@"),
        "folded": item.is_folded,
        "signature": signature and signature.as_json(),
    }


def _unframed_reason(item: Unframed) -> str:
    return IN_LINKER if item.module.is_dynamic_linker else item.reason


def _print_table(plans: Sequence[FunctionPlan], unframed: Sequence[Unframed], parts: int) -> None:
    names = shown_names([*(plan.function for plan in plans), *unframed])
    rows = [_row(plan.function, names, plan.strategy or "-", plan.reason) for plan in plans]
    rows += [_row(item, names, "-", _unframed_reason(item)) for item in unframed]
    print_columns(HEADINGS, rows, WIDTHS_MAX, right=2)
    possible = sum(plan.strategy is not None for plan in plans)
    share = 100 * possible / len(plans) if plans else 0.0
    print(f"\n{len(plans):,} functions, {possible:,} can be probed ({share:.1f} %)")
    for reason, count in refused(plans).items():
        print(f"{count:>9,}  {reason}")
    if unframed:
        print(f"{len(unframed):,} more have only a symbol and no frame")
    if parts:
        print(f"{parts:,} parts of functions and PLT stubs are not listed")


def _row(item: Named, names: dict[Named, str], strategy: str, reason: str) -> tuple[str, ...]:
    source = "" if item.name_source == "offset" else item.name_source
    return (item.module.name, f"{item.offset:#x}", str(item.size), strategy, names[item], source, reason)


# ---- inlined functions ----------------------------------------------------------------------------------------------
# `nfprobe functions --inlined`: which functions were inlined, and where.


INLINED_HEADINGS = ("module", "inlined", "bytes", "ranges", "into", "called at")
INLINED_WIDTHS_MAX = (32, 40, 8, 6, 40)


def show_inlined(
    modules: Sequence[Module], globs: Sequence[str], exclude: Sequence[str], what: str, as_json: bool
) -> None:
    """Prints the inlined functions that match, or whose enclosing function matches.

    Raises:
        UsageError: nothing matches, or there is no debug information.
    """
    patterns, excluded = [Pattern(text) for text in globs], [Pattern(text) for text in exclude]
    chosen = [module for module in modules if any(pattern.matches_module(module) for pattern in patterns)]
    if not any(open_dwarf(module) for module in chosen):
        names = ", ".join(sorted({module.name for module in chosen})[:4]) or "no module that matches"
        sentence = f"There is no debug information for {names}: inlined functions are unknown."
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
        print_json([_inlined_as_json(item, enclosing) for item, enclosing in kept])
        return
    print_columns(
        INLINED_HEADINGS, [_inlined_row(item, enclosing) for item, enclosing in kept], INLINED_WIDTHS_MAX, right=2
    )
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


def _inlined_row(item: Inlined, enclosing: Function | None) -> tuple[str, ...]:
    call = item.call
    size_bytes = sum(high - low for low, high in call.ranges)
    place = f"{call.call_file}:{call.call_line}" if call.call_line else call.call_file
    label = _label(item, enclosing)
    return (item.module.name, demangle(call.name), str(size_bytes), str(len(call.ranges)), label, place)


def _inlined_as_json(item: Inlined, enclosing: Function | None) -> dict[str, Any]:
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
