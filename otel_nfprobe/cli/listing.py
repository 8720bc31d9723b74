# SPDX-License-Identifier: Apache-2.0
"""Names and columns of the listings of `nfprobe functions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from otel_nfprobe.base.printable import printable
from otel_nfprobe.elf.names.demangle import demangle
from otel_nfprobe.elf.symbols import IFUNC_RESOLVER, Named

ALIASES_SHOWN = 3


def shown_names(items: Sequence[Named]) -> dict[Named, str]:
    """What each is called in a table: demangled, with a version where the name alone is not enough."""
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
    """Prints a table whose last column is as wide as it likes.

    Args:
        widths_max: of the other columns; longer cells are not cut.
        right: the column of numbers.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [min(limit, max(len(row[column]) for row in [headings, *rows])) for column, limit in enumerate(widths_max)]
    for row in [headings, *rows]:
        cells = [
            cell.rjust(width) if column == right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        print("  ".join([*cells, row[-1]]).rstrip())
