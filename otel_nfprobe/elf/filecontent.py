# SPDX-License-Identifier: Apache-2.0
"""Bytes of files, in memory only while they are needed.

A program with two hundred libraries has tens of megabytes of them, of which only some tables are needed. So parts are
read on demand, and whole files are evicted, least recently used first. A file that is reopened must be the same file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from otel_nfprobe.base.errors import NfprobeError

KEPT_BYTES_MAX = 32 << 20  # of whole files, besides the last one read


class Content:
    """Bytes in memory.

    Args:
        data: all of them.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)
        self.known: dict[str, Any] = {}  # results that others derived from these bytes

    def part(self, offset: int, size_bytes: int) -> bytes:
        """Returns bytes from an offset; fewer at the end of the file."""
        return self._data[offset : offset + size_bytes]

    def whole(self) -> bytes:
        """All bytes."""
        return self._data

    def copy(self) -> Content:
        """Returns all current bytes as an immutable copy. Raises as `FileContent.part`."""
        return self

    @cached_property
    def digest(self) -> str:
        """Returns the hex digest of all bytes at the time of the first request. Raises as `FileContent.part`."""
        return hashlib.blake2b(self.whole(), digest_size=32).hexdigest()

    def open(self) -> int:
        """Returns a descriptor of a file with these bytes, which the caller closes. Raises as `FileContent.part`."""
        descriptor = os.memfd_create("elf", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(self._data)
        return descriptor


class FileContent(Content):
    """A file's bytes.

    Args:
        file: open for reading; it may be closed afterwards.
        path: where else the file is found, when the path that it was opened by no longer exists.
    """

    def __init__(self, file: Any, path: str) -> None:
        super().__init__(b"")
        status = os.fstat(file.fileno())
        self.key = _key(status)
        self.size_bytes = status.st_size
        self._paths = (str(file.name), path)
        self._open_descriptor = -1

    @contextmanager
    def read_from(self, file: Any) -> Iterator[None]:
        """Reads from this open file meanwhile, instead of opening it for each part."""
        self._open_descriptor = file.fileno()
        try:
            yield
        finally:
            self._open_descriptor = -1

    def part(self, offset: int, size_bytes: int) -> bytes:
        """Returns bytes from an offset; fewer at the end of the file.

        Raises:
            NfprobeError: the file was removed or replaced.
        """
        copy = _kept.find(self)
        return self._read(offset, size_bytes) if copy is None else copy.part(offset, size_bytes)

    def whole(self) -> bytes:
        """Returns all bytes. Raises as `part`."""
        last = _kept.last  # the code of one file is read a few bytes at a time
        return last[1]._data if last is not None and last[0] is self else self.copy().whole()

    def copy(self) -> Content:
        """Returns all current bytes as an immutable copy; digested once. Raises as `part`."""
        last = _kept.last
        if last is not None and last[0] is self:
            return last[1]
        copy = _kept.find(self)
        if copy is None:
            copy = Content(self._read(0, self.size_bytes))
            _kept.keep(self, copy)
        _kept.last = self, copy
        return copy

    @cached_property
    def digest(self) -> str:
        """Returns the hex digest of all bytes at the time of the first request. Raises as `part`."""
        return self.copy().digest

    def _read(self, offset: int, size_bytes: int) -> bytes:
        wanted = min(size_bytes, self.size_bytes - offset)
        if offset < 0 or wanted <= 0:
            return b""
        is_open = self._open_descriptor >= 0
        descriptor = self._open_descriptor if is_open else self.open()
        try:
            content = os.pread(descriptor, wanted, offset)
        except OSError:
            content = b""
        finally:
            if not is_open:
                os.close(descriptor)
        if len(content) != wanted:
            raise self._is_gone()
        return content

    def open(self) -> int:
        """Returns a descriptor of the file, which the caller closes. Raises as `part`."""
        for path in self._paths:
            try:
                # Non-blocking: the path may be a pipe.
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue
            if _key(os.fstat(descriptor)) == self.key:
                return descriptor
            os.close(descriptor)
        raise self._is_gone()

    def _is_gone(self) -> NfprobeError:
        return NfprobeError(f"{self._paths[-1]} was changed or removed while it was being read.")


class _Kept:
    """The whole files used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # another thread reads modules that are loaded later
        self._contents: OrderedDict[tuple[int, ...], Content] = OrderedDict()
        self._size_bytes = 0
        self.last: tuple[FileContent, Content] | None = None  # the last one used, found without the lock

    def find(self, content: FileContent) -> Content | None:
        with self._lock:
            if content.key in self._contents:
                self._contents.move_to_end(content.key)
            return self._contents.get(content.key)

    def keep(self, content: FileContent, copy: Content) -> None:
        with self._lock:
            if content.key not in self._contents:
                self._contents[content.key] = copy
                self._size_bytes += copy.size_bytes
            while self._size_bytes > KEPT_BYTES_MAX and len(self._contents) > 1:
                self._size_bytes -= self._contents.popitem(last=False)[1].size_bytes

    def forget(self) -> None:
        with self._lock:
            self._contents.clear()
            self._size_bytes = 0
            self.last = None


_kept = _Kept()


def forget_contents() -> None:
    """Frees the cached bytes of all files: they can be read again."""
    _kept.forget()


def _key(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
