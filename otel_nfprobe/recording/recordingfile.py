# SPDX-License-Identifier: Apache-2.0
"""The file of a recording as raw blocks in frames, read sequentially up to the first damage, written by a thread.

Treats a file as untrusted: memory is bounded by one frame, and impossible lengths are rejected. recording.py defines
the meaning of blocks.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
import zstandard

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.recording.outputfile import open_output

# ---- frames ---------------------------------------------------------------------------------------------------------
# Frames: blocks packed, compressed and checksummed, and unpacked again. Pure: bytes in, bytes out.
#
# Frames are untrusted: a frame states its unpacked size, but no more than FRAME_BYTES_MAX is accepted or allocated.


FRAME = struct.Struct("<IIII")  # stored bytes, unpacked bytes, crc, codec
BLOCK = struct.Struct("<IIII")  # type, thread, length of the payload, 0
TRAILER = struct.Struct("<Q8s")  # offset of the last frame
TRAILER_MAGIC = b"NFPEND\r\n"
FRAME_BYTES_MAX = 16 << 20  # unpacked
FRAME_BYTES = 1 << 20  # the writer closes a frame of this size
AS_IT_IS, ZSTD = 0, 1  # codecs
LEVEL = 1  # 30 million records per second on one core, 4 bytes per record; level 3 is slower and no smaller
ALIGNMENT = 16  # of payloads, so that records can be read in place

INDEX_ENTRY = np.dtype(
    [("offset", "<u8"), ("records", "<u8"), ("unix_ns", "<u8"), ("types", "<u4"), ("reserved", "<u4")]
)
"""One frame: its offset, number of records, time of writing, and a bit for each type of block in it."""

_CHECKED = struct.Struct("<III")


class RawBlock(NamedTuple):
    """A block as stored in a frame."""

    kind: int
    thread: int
    payload: bytes | memoryview


@dataclass
class Frame:
    """Blocks of a frame being built: `data` is to be compressed, `types` has a bit for each type of block."""

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
    """A frame's content contradicts its header."""


def seal(data: bytes | bytearray, compressor: zstandard.ZstdCompressor) -> bytes:
    """Returns a frame as stored in the file."""
    packed = compressor.compress(data)
    codec = ZSTD if len(packed) < len(data) else AS_IT_IS
    stored = packed if codec == ZSTD else bytes(data)
    crc = zlib.crc32(stored, zlib.crc32(_CHECKED.pack(len(stored), len(data), codec)))
    return FRAME.pack(len(stored), len(data), crc, codec) + stored


def make_compressor() -> zstandard.ZstdCompressor:
    """Returns the compressor of all frames; not thread-safe."""
    return zstandard.ZstdCompressor(level=LEVEL)


def is_possible(stored_bytes: int, unpacked_bytes: int) -> bool:
    """Returns whether a frame may have these sizes."""
    return unpacked_bytes <= FRAME_BYTES_MAX and stored_bytes <= unpacked_bytes


def open_frame(start: bytes, stored: bytes, decompressor: zstandard.ZstdDecompressor) -> bytes:
    """Returns the unpacked bytes of a frame.

    Args:
        start: its first FRAME.size bytes, for which `is_possible` is true.
        stored: the bytes after them.

    Raises:
        DamagedFrameError: checksum, size or compression are wrong.
    """
    stored_bytes, unpacked_bytes, crc, codec = FRAME.unpack(start)
    if zlib.crc32(stored, zlib.crc32(_CHECKED.pack(stored_bytes, unpacked_bytes, codec))) != crc:
        raise DamagedFrameError
    if codec == AS_IT_IS and len(stored) == unpacked_bytes:
        return stored
    # The library allocates the size stated in the compressed data: it must match.
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
    """Yields the blocks of an opened frame.

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
    """Returns the entries of an INDEX block; empty if they cannot be those of frames between `first` and `last`."""
    if len(payload) % INDEX_ENTRY.itemsize:
        return np.empty(0, INDEX_ENTRY)
    entries = np.frombuffer(payload, INDEX_ENTRY)
    offsets = entries["offset"]
    fits = len(entries) and offsets[0] == first and offsets[-1] < last and np.all(offsets[1:] > offsets[:-1])
    return entries if fits else np.empty(0, INDEX_ENTRY)


# ---- reading --------------------------------------------------------------------------------------------------------


MAGIC = b"NFPREC\r\n"
VERSION = 4
END, INDEX = 6, 8
HEADER_BYTES_MAX = 1 << 20
_PREAMBLE = struct.Struct("<8sII")
_CRC = struct.Struct("<I")


class Damage(Exception):  # noqa: N818 (not an error: reading ends, what was read is valid)
    """Where and why reading stopped: `at` is an offset, `what` is part of a sentence."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at
        self.what = what


class FileStart(NamedTuple):
    """The header's message, and the offset of the first frame."""

    message: bytes
    first: int


def write_start(message: bytes) -> bytes:
    """Returns the bytes before the first frame, including the header's message."""
    start = _PREAMBLE.pack(MAGIC, VERSION, len(message)) + message
    return start + _CRC.pack(zlib.crc32(start))


def refuse(what: str, path: str, error: OSError, look_at: str) -> UsageError:
    """Returns the error for a file that cannot be read or written; `look_at` is the path to check."""
    return UsageError(f"Cannot {what} the recording {path}: {error.strerror}.", f"ls -ld {look_at}")


def read_start(path: str) -> FileStart:
    """Reads the header.

    Raises:
        UsageError: the file cannot be read, is not a recording, has another version or a damaged header.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path} is not a file.", f"ls -ld {path}")
            return _read_start(path, file)
    except OSError as error:
        raise refuse("read", path, error, path) from None


# Does not block on a pipe's other end.
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
        if version < VERSION:
            sentence = f"{path} has recording version {version}, which only earlier versions of nfprobe read."
            raise UsageError(sentence, "nfprobe attach PID --record FILE")
        if version > VERSION:
            raise UsageError(
                f"{path} has recording version {version}, and this nfprobe reads version {VERSION}.",
                "pip install --upgrade otel-nfprobe",
            )
        return FileStart(message, _PREAMBLE.size + length + _CRC.size)
    raise damaged_header(path)


def damaged_header(path: str) -> UsageError:
    """Returns the error for an invalid header."""
    return UsageError(f"The header of the recording {path} is damaged or truncated.")


def read_blocks(path: str, start: FileStart, leave_out: int = 0) -> Iterator[RawBlock]:
    """Yields all complete blocks, END last.

    Args:
        leave_out: a bit for each type of block to skip: the index of a finished file allows skipping frames with only
            these.

    Raises:
        Damage: the file ends without END, is damaged, or continues after END.
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
                "is incomplete: it has no end block, so it is being written, its monitor was killed or its disk full,"
                " and it ends",
            )

    def _read_frame(self, at: int) -> tuple[list[RawBlock], int]:
        self._file.seek(at)
        start = self._file.read(FRAME.size)
        if len(start) < FRAME.size:
            raise Damage(at, "is truncated inside a block")
        stored_bytes, unpacked_bytes, _, _ = FRAME.unpack(start)
        if stored_bytes > self._size - at - FRAME.size or not is_possible(stored_bytes, unpacked_bytes):
            raise Damage(at, "is truncated inside a block, or the block's length is damaged,")
        try:
            data = open_frame(start, self._file.read(stored_bytes), self._decompressor)
            return list(blocks_of(data)), at + FRAME.size + stored_bytes
        except DamagedFrameError:
            raise Damage(at, "is damaged") from None

    def _check_end(self, at: int, end: int) -> None:
        self._file.seek(end)
        rest = self._file.read(TRAILER.size)
        if rest != TRAILER.pack(at, TRAILER_MAGIC):
            raise Damage(end, "has its end block, but its last 16 bytes are invalid")
        if end + TRAILER.size < self._size:
            raise Damage(end + TRAILER.size, "continues after its end")

    def _find_index(self) -> tuple[int, Rows | None]:
        """Returns the offset of the last frame, and the index in it; None if the file must be read sequentially."""
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


# ---- writing, in a thread of its own --------------------------------------------------------------------------------
# Sinks: a thread compresses the frames of a recording and writes the file.
#
# The drain hands over frames and never blocks: on a slow disk frames wait in a bounded queue; when it is full
# (`is_full`) the drain drops records and counts them. A full disk ends the file after its last complete frame.


QUEUE_BYTES = 64 << 20  # of waiting frames, uncompressed
_INDEX_ENTRIES_MAX = (FRAME_BYTES_MAX >> 1) // INDEX_ENTRY.itemsize  # a longer file has no index
_END_BYTES = 64 << 10  # kept free below max_bytes for the last frame, in addition to its index


class RecordingFile:
    """A file to which frames are appended atomically (mode 0600).

    Args:
        path: of the file; an existing one is replaced.
        start: the bytes before the first frame.

    Raises:
        UsageError: the file cannot be created.
        NfprobeError: the start does not fit on the disk.
    """

    def __init__(self, path: str, start: bytes) -> None:
        self.path = path
        self.bytes_written = 0
        self._index: list[tuple[int, int, int, int, int]] = []
        try:
            self._file = open_output(self.path, blocking=False)  # otherwise a pipe without a reader would block
        except OSError as error:
            raise refuse("write", self.path, error, os.path.dirname(self.path) or ".") from None
        try:
            self._append(start)
        except NfprobeError:
            self.close()
            raise

    def append(self, sealed: bytes, frame: Frame) -> None:
        """Appends a sealed frame.

        Raises:
            NfprobeError: it does not fit on the disk; the file is unchanged.
        """
        entry = (self.bytes_written, frame.records, time.time_ns(), frame.types, 0)
        self._append(sealed)
        self._index.append(entry)

    def end_bytes(self) -> int:
        """Returns how many bytes the end of the file may still use."""
        return _END_BYTES + INDEX_ENTRY.itemsize * (len(self._index) + 1)

    def finish(self, blocks: Sequence[RawBlock]) -> None:
        """Writes the last frame: the index and these blocks, END last; closes the file."""
        frame = Frame(bytearray())
        if len(self._index) <= _INDEX_ENTRIES_MAX:
            frame.add(INDEX, 0, np.array(self._index, INDEX_ENTRY).tobytes())
        for block in blocks:
            frame.add(*block)
        at = self.bytes_written
        try:
            self._append(seal(frame.data, make_compressor()) + TRAILER.pack(at, TRAILER_MAGIC))
        finally:
            self.close()

    def close(self) -> None:
        """Closes the file; without finish() before, it reads as truncated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remove(self) -> None:
        """Closes and removes the file. A device or pipe stays."""
        regular = self._file >= 0 and stat.S_ISREG(os.fstat(self._file).st_mode)
        self.close()
        if regular:
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _append(self, data: bytes) -> None:
        pending = memoryview(data)
        try:
            while pending:
                pending = pending[os.write(self._file, pending) :]
        except OSError as error:
            # A device refuses this; existing content stays readable up to the last complete frame.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.bytes_written)
            raise NfprobeError(
                f"The recording {self.path} ends after {self.bytes_written} bytes: {error.strerror}.",
                f"nfprobe report {self.path}",
            ) from None
        self.bytes_written += len(data)


class FrameQueue(ABC):
    """Frames of a writer, waiting for a separate thread, which passes each to `_take`.

    Attributes:
        error: the error that ended the file, or None.
        reached_max: whether the limit of the file's length was reached.
    """

    def __init__(self, queue_bytes: int = QUEUE_BYTES) -> None:
        self.error: NfprobeError | None = None
        self.reached_max = False
        self._compressor = make_compressor()
        self._queue_bytes = queue_bytes
        self._frames: deque[Frame] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="nfprobe-record", daemon=True)
        self._thread.start()

    @property
    @abstractmethod
    def bytes_written(self) -> int:
        """Length of what was written."""

    @property
    def is_full(self) -> bool:
        """Returns whether the queue has reached its limit."""
        return self._waiting_bytes > self._queue_bytes

    def submit(self, frame: Frame) -> None:
        """Adds a frame; never blocks, and accepts it even if the queue is full."""
        with self._changed:
            self._frames.append(frame)
            self._waiting_bytes += len(frame.data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until all submitted frames were taken."""
        with self._changed:
            while self._frames:
                self._changed.wait()

    def finish(self, blocks: Sequence[RawBlock]) -> None:
        """Writes waiting frames and the end of the file; raises NfprobeError if the end does not fit on the disk."""
        self._stop()

    def close(self) -> None:
        """Writes waiting frames and closes the file without an end."""
        self._stop()

    def discard(self) -> None:
        """Removes the file."""
        self._stop(is_wanted=False)

    @abstractmethod
    def _take(self, frame: Frame) -> None: ...

    def _stop(self, is_wanted: bool = True) -> None:
        """Ends the thread, if requested after handling the waiting frames."""
        with self._changed:
            if not is_wanted:
                self._frames.clear()
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._frames and not self._closing:
                    self._changed.wait()
                if not self._frames:
                    return
                frame = self._frames[0]
            self._take(frame)
            with self._changed:
                if self._frames:  # otherwise the frames were discarded
                    self._frames.popleft()
                self._waiting_bytes -= len(frame.data)
                self._changed.notify_all()


class RecordingSink(FrameQueue):
    """Compresses frames and appends them to a file, in the order of their submission.

    Args:
        file: closed by `finish`, `close` or `discard`.
        max_bytes: limit of the file's length; 0: none.
    """

    def __init__(self, file: RecordingFile, max_bytes: int = 0) -> None:
        self._file = file
        self._max_bytes = max_bytes
        super().__init__()

    @property
    def bytes_written(self) -> int:
        return self._file.bytes_written

    def finish(self, blocks: Sequence[RawBlock]) -> None:
        super().finish(blocks)
        if self.error is not None:
            self._file.close()
        else:
            self._file.finish(blocks)

    def close(self) -> None:
        super().close()
        self._file.close()

    def discard(self) -> None:
        super().discard()
        self._file.remove()

    def _take(self, frame: Frame) -> None:
        if self.error is not None or self.reached_max:
            return
        sealed = seal(frame.data, self._compressor)
        if self._max_bytes and self.bytes_written + len(sealed) + self._file.end_bytes() > self._max_bytes:
            self.reached_max = True
            return
        try:
            self._file.append(sealed, frame)
        except NfprobeError as error:
            self.error = error
