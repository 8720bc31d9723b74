# SPDX-License-Identifier: Apache-2.0
"""The kernel's symbols (/proc/kallsyms). Reads one file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

KALLSYMS = Path("/proc/kallsyms")
_CHUNK_BYTES = 1 << 16
_NAME = re.compile(rb"\S+")
_ADDRESS_DIGITS = 16
_NAME_AT = _ADDRESS_DIGITS + 3  # behind a space, the kind, and a space
_DIGITS = np.full(256, 0xFF, np.uint64)
_DIGITS[list(b"0123456789abcdef")] = range(16)
_IS_KIND = np.isin(np.arange(256), list(b"tTwW"))


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


class FunctionNames(Sequence[str]):
    """Names of functions, each decoded when it is asked for: a session asks for few of a hundred thousand."""

    def __init__(self, text: bytes, starts: NDArray[np.int64]) -> None:
        self._text, self._starts = text, starts

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> FunctionNames: ...
    def __getitem__(self, index: int | slice) -> str | FunctionNames:
        if isinstance(index, slice):
            return FunctionNames(self._text, self._starts[index])
        found = _NAME.match(self._text, int(self._starts[index]))
        return found[0].decode("ascii", "replace") if found else ""


def read_functions() -> tuple[NDArray[np.uint64], FunctionNames]:
    """Returns the addresses of all functions, in order, and their names; none if the file hides them or cannot be read.

    Takes a tenth of the time of `read_symbols`, in short steps: other threads can run meanwhile.
    """
    chunks: list[bytes] = []
    addresses, starts, at, rest = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0, b""
    with suppress(OSError), KALLSYMS.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            text, _, rest = (rest + chunk).rpartition(b"\n")
            text += b"\n"
            found, places = _find_functions(np.frombuffer(text, np.uint8))
            addresses.append(found)
            starts.append(places + at)
            chunks.append(text)
            at += len(text)
    every = np.concatenate(addresses)
    order = np.argsort(every, kind="stable")
    return every[order], FunctionNames(b"".join(chunks), np.concatenate(starts)[order])


def _find_functions(text: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Returns the addresses of the functions of whole lines `0123456789abcdef t name`, and where their names begin."""
    ends = np.flatnonzero(text == ord("\n"))
    lines = np.concatenate([[0], ends[:-1] + 1])
    lines = lines[ends - lines > _NAME_AT]
    digits = _DIGITS[text[lines[:, None] + np.arange(_ADDRESS_DIGITS)]]
    addresses = np.zeros(len(lines), np.uint64)
    for column in digits.T:
        addresses = (addresses << np.uint64(4)) | column
    is_function = _IS_KIND[text[lines + _NAME_AT - 2]] & (digits <= 15).all(axis=1) & (addresses != 0)
    return addresses[is_function], lines[is_function] + _NAME_AT
