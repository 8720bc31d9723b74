# SPDX-License-Identifier: Apache-2.0
"""Tables of ELF files: read in this process if the file has the usual layout (elfplain.py), otherwise by lief.

lief's results are cached by file content: a file seen before needs no process.

A file's owner may change it at any moment. So the reading process gets a copy in memory, and its answer is cached under
the digest of that copy: no file can plant an answer for another one. Cached answers are validated like fresh ones.
Invalid answers are not cached.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache as once
from typing import TypeVar

from otel_nfprobe.elf import cache, elfparser, elfplain
from otel_nfprobe.elf.elfparser import HEAD, NAMES, PARTS, RELOCATIONS, SENSELESS, SYMBOLS, ParserError
from otel_nfprobe.elf.filecontent import Content

KINDS = {HEAD: "elf-head", SYMBOLS: "elf-symbols", RELOCATIONS: "elf-relocations", NAMES: "elf-names"}
KEPT_FILE_BYTES_MAX = 256 << 20  # a larger file is not copied into memory
_Answer = TypeVar("_Answer")


def ask(question: bytes, content: Content, read: Callable[[list[memoryview]], _Answer]) -> _Answer | None:
    """Returns what `read` makes of lief's tables of a file, fresh or cached; None if lief does not recognize the file.

    Args:
        question: one of KINDS.
        content: the file.
        read: validates and unpacks the parts of an answer; raises ValueError or struct.error.

    Raises:
        ParserError, NfprobeError: as ElfParser.ask; ParserError also for what `read` rejects.
    """
    plain = elfplain.read_plain(question, content)
    if plain is not None:
        with suppress(ValueError, struct.error):
            return read(plain)
    if content.size_bytes > KEPT_FILE_BYTES_MAX:
        parts = elfparser.parser.ask(question, content)
        return None if parts is None else _checked(parts, read)
    kept = _load(question, content)
    if kept is not None:
        with suppress(ValueError, struct.error):
            return read(kept)
    copy = content.copy()
    parts = elfparser.parser.ask(question, copy)
    if parts is None:
        return None
    found = _checked(parts, read)
    table = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    cache.store(copy.digest, KINDS[question], b"".join([table, *parts]), _reader_version())
    return found


def _checked(parts: list[memoryview], read: Callable[[list[memoryview]], _Answer]) -> _Answer:
    try:
        return read(parts)
    except (ValueError, struct.error):
        raise ParserError(SENSELESS) from None


def _load(question: bytes, content: Content) -> list[memoryview] | None:
    value = cache.load(content.digest, KINDS[question], _reader_version())
    start = 8 * PARTS[question]
    if value is None or len(value) < start:
        return None
    parts = []
    for size_bytes in struct.unpack_from(f"<{PARTS[question]}Q", value):
        parts.append(memoryview(value)[start : start + size_bytes])
        start += size_bytes
    return parts if start == len(value) else None


@once
def _reader_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to load, and few files are read by lief

    try:
        return version("lief")
    except PackageNotFoundError:
        return ""
