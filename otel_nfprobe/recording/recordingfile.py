# SPDX-License-Identifier: Apache-2.0
"""The file of a recording as raw blocks, front to back, up to the first damaged byte.

Takes the file as hostile input: memory is bounded by one frame, a length that cannot be is not believed. Called by
recording.py, which knows what the blocks mean.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
import zstandard

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.recording.recordingframes import (
    FRAME,
    TRAILER,
    TRAILER_MAGIC,
    DamagedFrameError,
    RawBlock,
    blocks_of,
    is_possible,
    open_frame,
    read_index,
)

MAGIC = b"NFPREC\r\n"
VERSION = 2
END, INDEX = 6, 8
HEADER_BYTES_MAX = 1 << 20
_PREAMBLE = struct.Struct("<8sII")
_CRC = struct.Struct("<I")


class Damage(Exception):  # noqa: N818 (no error: reading ends here, and what came before holds)
    """Where and why a file cannot be read on: `at` is a byte, `what` goes into a sentence."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at
        self.what = what


class FileStart(NamedTuple):
    """The header's message, and where the first frame begins."""

    message: bytes
    first: int


def write_start(message: bytes) -> bytes:
    """The bytes before the first frame, with the header's message."""
    start = _PREAMBLE.pack(MAGIC, VERSION, len(message)) + message
    return start + _CRC.pack(zlib.crc32(start))


def refuse(what: str, path: str, error: OSError, look_at: str) -> UsageError:
    """The file cannot be read or written; `look_at` is what a person should look at."""
    return UsageError(f"Cannot {what} the recording {path}: {error.strerror}.", f"ls -ld {look_at}")


def read_start(path: str) -> FileStart:
    """Reads what stands before the blocks.

    Raises:
        UsageError: the file cannot be read, is no recording, has another version or a damaged header.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path} is not a file.", f"ls -ld {path}")
            return _read_start(path, file)
    except OSError as error:
        raise refuse("read", path, error, path) from None


# Does not wait for a pipe's other end.
def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _read_start(path: str, file: BinaryIO) -> FileStart:
    start = file.read(_PREAMBLE.size)
    if len(start) < _PREAMBLE.size or start[:8] != MAGIC:
        raise UsageError(f"{path} is not a recording of nfprobe.", "nfprobe attach --help")
    _, version, length = _PREAMBLE.unpack(start)
    rest = file.read(min(length, HEADER_BYTES_MAX) + _CRC.size)
    message = rest[:length]
    whole = len(rest) == length + _CRC.size
    if whole and _CRC.unpack(rest[length:])[0] == zlib.crc32(message, zlib.crc32(start)):
        if version != VERSION:
            raise UsageError(
                f"{path} has recording version {version}, and this nfprobe reads version {VERSION}.",
                "pip install --upgrade otel-nfprobe",
            )
        return FileStart(message, _PREAMBLE.size + length + _CRC.size)
    raise damaged_header(path)


def damaged_header(path: str) -> UsageError:
    """The header does not hold what it should."""
    return UsageError(f"The header of the recording {path} is damaged or cut.")


def read_blocks(path: str, start: FileStart, leave_out: int = 0) -> Iterator[RawBlock]:
    """Yields all whole blocks, END last.

    Args:
        leave_out: a bit for each type of block that is not wanted: by its index a finished file is read without the
            frames that have no others.

    Raises:
        Damage: the file ends without END, is damaged, or goes on behind END.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        yield from _FrameReader(file, start.first, size).read(leave_out)


class _FrameReader:
    def __init__(self, file: BinaryIO, first: int, size: int) -> None:
        self._file = file
        self._first = first
        self._size = size
        self._decompressor = zstandard.ZstdDecompressor()

    def read(self, leave_out: int) -> Iterator[RawBlock]:
        last, entries = self._find_index() if leave_out else (0, None)
        if entries is None:
            yield from self._read_all()
            return
        wanted = np.uint32(~(leave_out | 1 << INDEX) & 0xFFFFFFFF)
        for entry in entries[(entries["types"] & wanted) != 0]:
            blocks, _ = self._read_frame(int(entry["offset"]))
            yield from blocks
        blocks, _ = self._read_frame(last)
        yield from blocks

    def _read_all(self) -> Iterator[RawBlock]:
        at, end = self._first, False
        while at < self._size and not end:
            blocks, next_at = self._read_frame(at)
            for block in blocks:
                end = end or block.kind == END
                yield block
            if end:
                self._check_end(at, next_at)
            at = next_at
        if not end:
            raise Damage(
                at,
                "was cut: it has no end block, so it is still written, its monitor was killed or its disk was full,"
                " and it ends",
            )

    def _read_frame(self, at: int) -> tuple[list[RawBlock], int]:
        self._file.seek(at)
        start = self._file.read(FRAME.size)
        if len(start) < FRAME.size:
            raise Damage(at, "is cut inside a block")
        stored_bytes, unpacked_bytes, _, _ = FRAME.unpack(start)
        if stored_bytes > self._size - at - FRAME.size or not is_possible(stored_bytes, unpacked_bytes):
            raise Damage(at, "is cut inside a block, or the block's length is damaged,")
        try:
            data = open_frame(start, self._file.read(stored_bytes), self._decompressor)
            return list(blocks_of(data)), at + FRAME.size + stored_bytes
        except DamagedFrameError:
            raise Damage(at, "is damaged") from None

    def _check_end(self, at: int, end: int) -> None:
        self._file.seek(end)
        rest = self._file.read(TRAILER.size)
        if rest != TRAILER.pack(at, TRAILER_MAGIC):
            raise Damage(end, "has its end block, but not its last 16 bytes as they should be")
        if end + TRAILER.size < self._size:
            raise Damage(end + TRAILER.size, "goes on behind its end")

    def _find_index(self) -> tuple[int, Rows | None]:
        """Where the last frame is, and the index in it; None where the file must be read from its beginning."""
        try:
            self._file.seek(max(self._first, self._size - TRAILER.size))
            last, magic = TRAILER.unpack(self._file.read(TRAILER.size))
            if magic != TRAILER_MAGIC or not self._first <= last < self._size:
                return 0, None
            blocks, end = self._read_frame(last)
            self._check_end(last, end)
        except (Damage, struct.error):
            return 0, None
        entries = next((read_index(b.payload, self._first, last) for b in blocks if b.kind == INDEX), None)
        usable = entries is not None and len(entries) and any(block.kind == END for block in blocks)
        return (last, entries) if usable else (0, None)
