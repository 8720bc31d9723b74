# SPDX-License-Identifier: Apache-2.0
"""Separate debug files: where distributions put the symbols and DWARF that they strip from a program.

Looked for under the target's root first, then on the host; taken only when it belongs to this very build. Reads
files only, and only for a module that needs one. Some programs have a small one inside (.gnu_debugdata).
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
    """A debug file of a module. The file stays open as long as this object lives."""

    path: str
    object: ObjectFile
    reader: FileReader


class FileReader:
    """A regular file that is read by offset. Raises OSError when it is none or cannot be opened."""

    def __init__(self, path: str) -> None:
        # Not blocking: somebody may have put a pipe there.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self.path = path
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode) or self.size > FILE_BYTES_MAX:
            os.close(self._descriptor)
            self._descriptor = -1
            raise OSError(f"{path} is not a regular file of a usual size")

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from an offset; fewer where the file ends."""
        if offset >= self.size:
            return b""
        return os.pread(self._descriptor, min(size, self.size - offset), offset)

    def checksum(self) -> int:
        """The CRC that .gnu_debuglink holds."""
        value = 0
        for offset in range(0, self.size, CHUNK_BYTES):
            value = zlib.crc32(self.read(offset, CHUNK_BYTES), value)
        return value

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)


def debug_file_of(module: Module) -> DebugFile | None:
    """The module's separate debug file, or None. What was found and not taken stands in `module.cache["notes"]`."""
    if "debug file" not in module.cache:
        module.cache["debug file"] = _find(module)
    known: DebugFile | None = module.cache["debug file"]
    return known


def roots_of(module: Module) -> tuple[str, ...]:
    """Where the module's paths are looked up: in the target's file system, then in this process's."""
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
    """Why the file does not belong to the module, or ""."""
    if module.build_id and found.build_id and module.build_id != found.build_id:
        return f"it belongs to another build ({found.build_id[:12]}, not {module.build_id[:12]})"
    if checksum is None and module.build_id != found.build_id:
        return "it has no build id"
    if checksum is not None and reader.checksum() != checksum:
        return "its checksum is not the one that .gnu_debuglink names"
    return ""


def _candidates(module: Module) -> Iterator[tuple[str, int | None]]:
    """Paths, with the checksum that the file must have when it is found by its name."""
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
    """File name and checksum of .gnu_debuglink, or ("", 0)."""
    try:
        whole = ObjectFile.of_bytes(module.image.data)
        section = whole.section(".gnu_debuglink")
        content = whole.content(section) if section else b""
    except ObjectError:
        return "", 0
    name, zero, _ = content.partition(b"\0")
    place = len(name) + 4 & ~3
    # A name with a folder in it would lead outside the places where debug files are.
    if not zero or not name or b"/" in name or len(content) < place + 4:
        return "", 0
    return os.fsdecode(name), struct.unpack_from("<I", content, place)[0]


# ---- .gnu_debugdata -------------------------------------------------------------------------------------------------
# The small symbol table that some distributions leave in a stripped program, packed with xz (.gnu_debugdata).
#
# Reads bytes only.


UNPACKED_BYTES_MAX = 256 << 20
DECODER_BYTES_MAX = 256 << 20


def mini_debug_of(content: bytes) -> ObjectFile | None:
    """The ELF file inside the section of an ELF file, or None when it has no such section.

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
        raise ObjectError("its .gnu_debugdata is cut off")
    return ObjectFile.of_bytes(unpacked)
