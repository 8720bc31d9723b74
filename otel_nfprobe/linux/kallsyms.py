# SPDX-License-Identifier: Apache-2.0
"""The kernel's symbols (/proc/kallsyms). Reads one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

KALLSYMS = Path("/proc/kallsyms")


class KernelSymbol(NamedTuple):
    """A function of the kernel; `address` 0: hidden from this user; `module`: "" for the kernel image."""

    name: str
    address: int
    module: str


def read_symbols() -> Iterator[KernelSymbol]:
    """Yields all functions; none if the file cannot be read."""
    with suppress(OSError), KALLSYMS.open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if len(words) >= 3 and words[1] in "tTwW":
                yield KernelSymbol(words[2], int(words[0], 16), words[3].strip("[]") if len(words) > 3 else "")
