# SPDX-License-Identifier: Apache-2.0
"""The kernel's symbols (/proc/kallsyms). Reads one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KALLSYMS = Path("/proc/kallsyms")
_CHUNK_BYTES = 1 << 16
_FUNCTION = re.compile(rb"^([0-9a-f]{1,16}) [tTwW] (\S+)", re.MULTILINE)


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


def read_functions() -> tuple[NDArray[np.uint64], list[str]]:
    """Returns the addresses of all functions, in order, and their names; none if the file hides them or cannot be read.

    Takes a fifth of the time of `read_symbols`, in short steps: other threads can run meanwhile.
    """
    addresses: list[int] = []
    names: list[str] = []
    with suppress(OSError), KALLSYMS.open("rb") as file:
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            text, _, rest = (rest + chunk).rpartition(b"\n")
            _add_functions(text, addresses, names)
        _add_functions(rest, addresses, names)
    found = np.array(addresses, np.uint64)
    order = np.argsort(found, kind="stable")
    return found[order], [names[at] for at in order.tolist()]


def _add_functions(text: bytes, addresses: list[int], names: list[str]) -> None:
    for address, name in _FUNCTION.findall(text):
        if int(address, 16):
            addresses.append(int(address, 16))
            names.append(name.decode("ascii", "replace"))
