# SPDX-License-Identifier: Apache-2.0
"""`nfprobe functions PID or ELF`: every function, how it would be probed, or why it cannot be."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from otel_nfprobe.analysis import STRATEGIES, FunctionPlan, plan_functions, refused
from otel_nfprobe.cli.main import EXIT_DONE, print_json
from otel_nfprobe.errors import UsageError
from otel_nfprobe.symbols import find_functions
from otel_nfprobe.target import Target

HEADINGS = ("module", "offset", "size", "strategy", "name", "reason")
MODULE_WIDTH_MAX = 32
NAME_WIDTH_MAX = 48


class FunctionsCommand:
    """Lists the functions of a process or ELF file: where each is, what it is called and where that name is
    from, which strategy would probe it, or the reason why none can. Changes nothing.

    Without --functions these are all functions of all modules; `--functions 'NAME:*'` shows one module.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", metavar="PID|ELF", help="a process, or the path of an ELF file")
        parser.add_argument(
            "--functions",
            action="append",
            metavar="GLOB",
            help="module:name, module:0xoffset, name or *; repeatable",
        )
        parser.add_argument(
            "--exclude", action="append", default=[], metavar="GLOB", help="leave these out; repeatable"
        )
        parser.add_argument("--strategy", choices=sorted(STRATEGIES), help="only this strategy")
        parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")

    def run(self, arguments: argparse.Namespace) -> int:
        target = _open(arguments.what)
        found = find_functions(target or str(arguments.what), arguments.functions or ["*"], arguments.exclude)
        plans = plan_functions(found, target, arguments.strategy)
        if arguments.json:
            print_json([_as_json(plan) for plan in plans])
        else:
            _print_table(plans)
        return EXIT_DONE


def _open(what: str) -> Target | None:
    if what.isdigit() and not os.path.exists(what):
        target = Target(int(what))
        for note in target.check():
            print(f"nfprobe: {note}", file=sys.stderr)
        return target
    if not os.path.exists(what):
        raise UsageError(f"{what} is neither a pid nor a file.", "pgrep -a NAME")
    return None


def _as_json(plan: FunctionPlan) -> dict[str, Any]:
    return {
        "module": plan.module.name,
        "offset": plan.offset,
        "size": plan.size,
        "name": plan.name,
        "name_source": plan.name_source,
        "strategy": plan.strategy,
        "reason": plan.reason,
        "arguments": None,
        "returns": None,
    }


def _print_table(plans: Sequence[FunctionPlan]) -> None:
    rows = [
        (
            plan.module.name,
            f"{plan.offset:#x}",
            str(plan.size),
            plan.strategy or "-",
            "-" if plan.name_source == "offset" else plan.name,
            plan.reason,
        )
        for plan in plans
    ]
    limits = (MODULE_WIDTH_MAX, 18, 9, 14, NAME_WIDTH_MAX)
    widths = [min(limit, max(len(row[column]) for row in [HEADINGS, *rows])) for column, limit in enumerate(limits)]
    for row in [HEADINGS, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        cells[2] = row[2].rjust(widths[2])
        print("  ".join([*cells, row[5]]).rstrip())
    possible = sum(plan.strategy is not None for plan in plans)
    share = 100 * possible / len(plans) if plans else 0.0
    print(f"\n{len(plans):,} functions, {possible:,} can be probed ({share:.1f} %)")
    for reason, count in refused(plans).items():
        print(f"{count:>9,}  {reason}")
