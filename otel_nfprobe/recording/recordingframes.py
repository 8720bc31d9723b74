# SPDX-License-Identifier: Apache-2.0
"""Frames of a recording: blocks packed, compressed and sealed with a checksum, and opened again.

Pure: bytes in, bytes out; proto/README.md draws them. What is opened is hostile: a frame says how large it is unpacked,
no more than FRAME_BYTES_MAX is believed, and no more than that is ever allocated. Used by recordingsink.py (seals)
and recordingfile.py (opens).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import zstandard

from otel_nfprobe.base.columns import Rows

FRAME = struct.Struct("<IIII")  # stored bytes, unpacked bytes, crc, codec
BLOCK = struct.Struct("<IIII")  # type, thread, length of the payload, 0
TRAILER = struct.Struct("<Q8s")  # where the last frame begins
TRAILER_MAGIC = b"NFPEND\r\n"
FRAME_BYTES_MAX = 16 << 20  # unpacked
FRAME_BYTES = 1 << 20  # the writer closes a frame that has so many
AS_IT_IS, ZSTD = 0, 1  # codecs
LEVEL = 1  # 30 million records a second on one core, 4 bytes a record; level 3 is slower and no smaller
ALIGNMENT = 16  # of payloads, so that records can be read where they stand

INDEX_ENTRY = np.dtype(
    [("offset", "<u8"), ("records", "<u8"), ("unix_ns", "<u8"), ("types", "<u4"), ("reserved", "<u4")]
)
"""One frame: where it begins, how many records it has, when it was written, a bit for each type of block in it."""

_CHECKED = struct.Struct("<III")


class RawBlock(NamedTuple):
    """A block as it stands in a frame."""

    kind: int
    thread: int
    payload: bytes | memoryview


@dataclass
class Frame:
    """Blocks on their way into the file: `data` is what is compressed, `types` has a bit for each type of block."""

    data: bytearray
    records: int = 0
    types: int = 0

    def add(self, kind: int, thread: int, payload: bytes | memoryview) -> None:
        """Appends a block."""
        self.data += BLOCK.pack(kind, thread, len(payload), 0)
        self.data += payload
        self.data += bytes(-len(payload) % ALIGNMENT)
        self.types |= 1 << min(kind, 31)


class DamagedFrameError(ValueError):
    """A frame does not hold what it says."""


def seal(data: bytes | bytearray, compressor: zstandard.ZstdCompressor) -> bytes:
    """A frame as it stands in the file."""
    packed = compressor.compress(data)
    codec = ZSTD if len(packed) < len(data) else AS_IT_IS
    stored = packed if codec == ZSTD else bytes(data)
    crc = zlib.crc32(stored, zlib.crc32(_CHECKED.pack(len(stored), len(data), codec)))
    return FRAME.pack(len(stored), len(data), crc, codec) + stored


def make_compressor() -> zstandard.ZstdCompressor:
    """The compressor of all frames; not for two threads at a time."""
    return zstandard.ZstdCompressor(level=LEVEL)


def is_possible(stored_bytes: int, unpacked_bytes: int) -> bool:
    """Whether a frame of these sizes is worth reading."""
    return unpacked_bytes <= FRAME_BYTES_MAX and stored_bytes <= unpacked_bytes


def open_frame(start: bytes, stored: bytes, decompressor: zstandard.ZstdDecompressor) -> bytes:
    """The unpacked bytes of a frame.

    Args:
        start: its first FRAME.size bytes, of which `is_possible` holds.
        stored: what follows them.

    Raises:
        DamagedFrameError: checksum, size or compression are wrong.
    """
    stored_bytes, unpacked_bytes, crc, codec = FRAME.unpack(start)
    if zlib.crc32(stored, zlib.crc32(_CHECKED.pack(stored_bytes, unpacked_bytes, codec))) != crc:
        raise DamagedFrameError
    if codec == AS_IT_IS and len(stored) == unpacked_bytes:
        return stored
    # The library allocates what the compressed data says of its own size: it must be the same.
    try:
        if codec != ZSTD or zstandard.frame_content_size(stored) != unpacked_bytes:
            raise DamagedFrameError
        data = decompressor.decompress(stored, max_output_size=unpacked_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedFrameError from error
    if len(data) != unpacked_bytes:
        raise DamagedFrameError
    return data


def blocks_of(data: bytes) -> Iterator[RawBlock]:
    """The blocks of an opened frame.

    Raises:
        DamagedFrameError: they do not fill it.
    """
    view, at = memoryview(data), 0
    while at < len(data):
        if len(data) - at < BLOCK.size:
            raise DamagedFrameError
        kind, thread, length, _ = BLOCK.unpack_from(data, at)
        at += BLOCK.size
        if length > len(data) - at:
            raise DamagedFrameError
        yield RawBlock(kind, thread, view[at : at + length])
        at += length + -length % ALIGNMENT


def read_index(payload: bytes | memoryview, first: int, last: int) -> Rows:
    """The entries of an INDEX block; empty when they cannot be those of frames between `first` and `last`."""
    if len(payload) % INDEX_ENTRY.itemsize:
        return np.empty(0, INDEX_ENTRY)
    entries = np.frombuffer(payload, INDEX_ENTRY)
    offsets = entries["offset"]
    fits = len(entries) and offsets[0] == first and offsets[-1] < last and np.all(offsets[1:] > offsets[:-1])
    return entries if fits else np.empty(0, INDEX_ENTRY)
