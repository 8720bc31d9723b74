# SPDX-License-Identifier: Apache-2.0
"""Where the frames of a recording go: a thread of its own compresses them and writes the file.

The drain hands over frames and never waits: behind a bounded queue a slow disk makes frames wait, and when the queue
is full the drain is told so (`is_full`) and leaves records out, counted. A full disk ends the file after its last
whole frame.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.recording.outputfile import open_output
from otel_nfprobe.recording.recordingfile import INDEX, refuse
from otel_nfprobe.recording.recordingframes import (
    FRAME_BYTES_MAX,
    INDEX_ENTRY,
    TRAILER,
    TRAILER_MAGIC,
    Frame,
    RawBlock,
    make_compressor,
    seal,
)

QUEUE_BYTES = 64 << 20  # of frames that wait, not compressed
_INDEX_ENTRIES_MAX = (FRAME_BYTES_MAX >> 1) // INDEX_ENTRY.itemsize  # of a longer file: no index
_END_BYTES = 64 << 10  # kept free below max_bytes for the last frame, beside its index


class Sink(Protocol):
    """Where a writer's frames go. RecordingSink says what each part means."""

    error: NfprobeError | None
    reached_max: bool

    @property
    def is_full(self) -> bool: ...

    @property
    def bytes_written(self) -> int: ...

    def submit(self, frame: Frame) -> None: ...

    def flush(self) -> None: ...

    def finish(self, blocks: Sequence[RawBlock]) -> None: ...

    def close(self) -> None: ...

    def discard(self) -> None: ...


class RecordingFile:
    """A file that frames are appended to, whole or not at all (mode 0600).

    Args:
        path: where; what is there is replaced.
        start: the bytes before the first frame.

    Raises:
        UsageError: the file cannot be made.
        NfprobeError: the start does not fit on the disk.
    """

    def __init__(self, path: str, start: bytes) -> None:
        self.path = path
        self.bytes_written = 0
        self._index: list[tuple[int, int, int, int, int]] = []
        try:
            self._file = open_output(self.path, blocking=False)  # else a pipe that nobody reads would be waited for
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
            NfprobeError: it does not fit on the disk; the file is as before.
        """
        entry = (self.bytes_written, frame.records, time.time_ns(), frame.types, 0)
        self._append(sealed)
        self._index.append(entry)

    def end_bytes(self) -> int:
        """What the end of the file may still take."""
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
        """Closes the file; without finish() before, it reads as cut."""
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
            # A device refuses; what is there stays readable up to the last whole frame all the same.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.bytes_written)
            raise NfprobeError(
                f"The recording {self.path} ends after {self.bytes_written} bytes: {error.strerror}.",
                f"nfprobe report {self.path}",
            ) from None
        self.bytes_written += len(data)


class RecordingSink:
    """Compresses frames and appends them to a file, in the order in which they were submitted.

    Args:
        file: what `finish`, `close` or `discard` closes.
        max_bytes: the file ends before it would be longer; 0: no bound.

    Attributes:
        error: what ended the file, or None.
        reached_max: whether `max_bytes` did.
    """

    def __init__(self, file: RecordingFile, max_bytes: int = 0) -> None:
        self.error: NfprobeError | None = None
        self.reached_max = False
        self._file = file
        self._max_bytes = max_bytes
        self._compressor = make_compressor()
        self._queue = FrameQueue(self._write)

    @property
    def is_full(self) -> bool:
        """Whether frames wait that are as many as can be kept."""
        return self._queue.is_full

    @property
    def bytes_written(self) -> int:
        """Length of the file."""
        return self._file.bytes_written

    def submit(self, frame: Frame) -> None:
        """Takes a frame; never waits, and takes it even when the queue is full."""
        self._queue.submit(frame)

    def flush(self) -> None:
        """Waits until all submitted frames are in the file."""
        self._queue.flush()

    def finish(self, blocks: Sequence[RawBlock]) -> None:
        """Writes what waits and the end of the file; raises NfprobeError when the end does not fit on the disk."""
        self._queue.stop()
        if self.error is not None:
            self._file.close()
        else:
            self._file.finish(blocks)

    def close(self) -> None:
        """Writes what waits and closes the file without an end."""
        self._queue.stop()
        self._file.close()

    def discard(self) -> None:
        """Removes the file."""
        self._queue.stop(is_wanted=False)
        self._file.remove()

    def _write(self, frame: Frame) -> None:
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


class FrameQueue:
    """Frames that wait for a thread of their own, which gives each to `handle`."""

    def __init__(self, handle: Callable[[Frame], None], queue_bytes: int = QUEUE_BYTES) -> None:
        self._handle = handle
        self._queue_bytes = queue_bytes
        self._frames: deque[Frame] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="nfprobe-record", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether frames wait that are as many as can be kept."""
        return self._waiting_bytes > self._queue_bytes

    def submit(self, frame: Frame) -> None:
        """Takes a frame; never waits, and takes it even when the queue is full."""
        with self._changed:
            self._frames.append(frame)
            self._waiting_bytes += len(frame.data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until all submitted frames were handled."""
        with self._changed:
            while self._frames:
                self._changed.wait()

    def stop(self, is_wanted: bool = True) -> None:
        """Ends the thread, after it has handled what waits, if that is wanted."""
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
            self._handle(frame)
            with self._changed:
                if self._frames:  # else it is not wanted any more
                    self._frames.popleft()
                self._waiting_bytes -= len(frame.data)
                self._changed.notify_all()
