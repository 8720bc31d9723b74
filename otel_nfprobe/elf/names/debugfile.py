# SPDX-License-Identifier: Apache-2.0
"""Separate debug files: where distributions put the symbols and DWARF that they strip from a program.

Searched under the target's root first, then on the host; used only if it belongs to the same build. Reads files only,
and only for a module that needs one. Some programs contain a small one (.gnu_debugdata).
"""

from __future__ import annotations

import lzma
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.objectfile import FILE_BYTES_MAX, ObjectError, ObjectFile

DEBUG_FOLDER = "/usr/lib/debug"
CHUNK_BYTES = 1 << 20


class DebugFile(NamedTuple):
    """A debug file of a module. The file stays open while this object lives."""

    path: str
    object: ObjectFile
    reader: FileReader


class FileReader:
    """A regular file read by offset. Raises OSError if it is not a regular file or cannot be opened."""

    def __init__(self, path: str) -> None:
        # Non-blocking: the path may be a pipe.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self.path = path
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode) or self.size > FILE_BYTES_MAX:
            os.close(self._descriptor)
            self._descriptor = -1
            raise OSError(f"{path} is not a regular file of a usual size")

    def read(self, offset: int, size: int) -> bytes:
        """Returns bytes from an offset; fewer at the end of the file."""
        if offset >= self.size:
            return b""
        return os.pread(self._descriptor, min(size, self.size - offset), offset)

    def checksum(self) -> int:
        """Returns the CRC as in .gnu_debuglink."""
        value = 0
        for offset in range(0, self.size, CHUNK_BYTES):
            value = zlib.crc32(self.read(offset, CHUNK_BYTES), value)
        return value

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)


def debug_file_of(module: Module) -> DebugFile | None:
    """Returns the module's separate debug file, or None. Rejected files are noted in `module.cache["notes"]`."""
    if "debug file" not in module.cache:
        module.cache["debug file"] = _find(module)
    known: DebugFile | None = module.cache["debug file"]
    return known


def roots_of(module: Module) -> tuple[str, ...]:
    """Returns the roots under which the module's paths are looked up: the target's, then this process's."""
    root = str(module.cache.get("root", ""))
    return (root, "") if root else ("",)


def _find(module: Module) -> DebugFile | None:
    notes: list[str] = module.cache.setdefault("notes", [])
    for path, checksum in _candidates(module):
        try:
            reader = FileReader(path)
        except OSError:
            continue
        try:
            found = ObjectFile(reader.read)
            reason = _mismatch(module, found, reader, checksum)
        except (ObjectError, OSError) as error:
            reason = str(error)
        if not reason:
            return DebugFile(path, found, reader)
        notes.append(f"{path} is not used for {module.name}: {reason}")
    return None


def _mismatch(module: Module, found: ObjectFile, reader: FileReader, checksum: int | None) -> str:
    """Returns why the file does not belong to the module, or ""."""
    if module.build_id and found.build_id and module.build_id != found.build_id:
        return f"it belongs to another build ({found.build_id[:12]}, not {module.build_id[:12]})"
    if checksum is None and module.build_id != found.build_id:
        return "it has no build ID"
    if checksum is not None and reader.checksum() != checksum:
        return "its checksum differs from .gnu_debuglink's"
    return ""


def _candidates(module: Module) -> Iterator[tuple[str, int | None]]:
    """Yields paths, with the checksum that a file found by its name must have."""
    identity = module.build_id
    if len(identity) > 2:
        for root in roots_of(module):
            yield f"{root}{DEBUG_FOLDER}/.build-id/{identity[:2]}/{identity[2:]}.debug", None
    name, checksum = _link_of(module)
    if not name:
        return
    folder = os.path.dirname(module.path)
    seen = {os.path.realpath(module.path)}
    for root in roots_of(module):
        for path in (f"{folder}/{name}", f"{folder}/.debug/{name}", f"{DEBUG_FOLDER}{folder}/{name}"):
            if root + path not in seen:
                seen.add(root + path)
                yield root + path, checksum


def _link_of(module: Module) -> tuple[str, int]:
    """Returns the file name and checksum of .gnu_debuglink, or ("", 0)."""
    try:
        whole = ObjectFile.of_bytes(module.image.data)
        section = whole.section(".gnu_debuglink")
        content = whole.content(section) if section else b""
    except ObjectError:
        return "", 0
    name, zero, _ = content.partition(b"\0")
    place = len(name) + 4 & ~3
    # A name with a folder in it would leave the debug directories.
    if not zero or not name or b"/" in name or len(content) < place + 4:
        return "", 0
    return os.fsdecode(name), struct.unpack_from("<I", content, place)[0]


# ---- .gnu_debugdata -------------------------------------------------------------------------------------------------
# The small symbol table that some distributions leave in a stripped program, compressed with xz (.gnu_debugdata).
#
# Reads bytes only.


UNPACKED_BYTES_MAX = 256 << 20
DECODER_BYTES_MAX = 256 << 20


def mini_debug_of(content: bytes) -> ObjectFile | None:
    """Returns the ELF file embedded in an ELF file, or None if there is none.

    Raises:
        ObjectError: the section is malformed.
    """
    whole = ObjectFile.of_bytes(content)
    section = whole.section(".gnu_debugdata")
    if section is None:
        return None
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=DECODER_BYTES_MAX)
    try:
        unpacked = decoder.decompress(whole.content(section), UNPACKED_BYTES_MAX)
    except (lzma.LZMAError, EOFError) as error:
        raise ObjectError(f"its .gnu_debugdata cannot be decompressed: {error}") from error
    if not decoder.eof:
        raise ObjectError("its .gnu_debugdata is truncated")
    return ObjectFile.of_bytes(unpacked)
