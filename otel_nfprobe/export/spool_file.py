# SPDX-License-Identifier: Apache-2.0
"""Spool files: the bytes of one session's spool, and which of them are still to be sent.

    SPOOL/SESSION/ledger             the session's counters in a mapped page, see LEDGER: they survive kill -9
    SPOOL/SESSION/00000001.segment   records: RECORD | one ExportTraceServiceRequest
    SPOOL/SESSION/*.damaged          damaged segments, set aside

Positions count spans: a record holds those from `first` on, and everything below the ledger's `done` is complete. So
one aligned store acknowledges a request. A lock on the ledger shows that its session is alive.

The newest segment is rewritten from its start whenever all of it is done, and a completed segment becomes the next one:
while the receiver keeps up, the same few pages are reused, which costs a tenth of fresh ones. So bytes after the last
record of a segment, or in a recycled one, may be from earlier rounds. Positions identify them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

MAGIC = b"NFPSPL01"
RECORD_MAGIC = 0x5250464E  # "NFPR"
LEDGER_BYTES = mmap.PAGESIZE
ENDPOINT_BYTES_MAX = 1024
SEGMENT_BYTES = 16 << 20
SPARES = 2
REQUEST_BYTES_MAX = 64 << 20

LEDGER = np.dtype(
    [
        ("magic", "S8"),
        ("submitted", "<u8"),  # spans produced by the session
        ("appended", "<u8"),  # of these, written into segments
        ("done", "<u8"),  # of those, acknowledged or dropped
        ("unwritten_done", "<u8"),  # spans acknowledged or dropped without being written to a segment
        ("damaged", "<u8"),  # unreadable spans after `done`, counted as dropped
        ("endpoint", f"S{ENDPOINT_BYTES_MAX}"),
    ]
)
RECORD = np.dtype(
    [
        ("magic", "<u4"),
        ("crc", "<u4"),  # of everything after it, including the request
        ("bytes", "<u4"),
        ("spans", "<u4"),
        ("first", "<u8"),
        ("unix_ns", "<u8"),
    ]
)
_CHECKED_FROM = 8  # offset in a record's header


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DamagedError(Exception):
    """The bytes read differ from those written."""


@dataclass(frozen=True)
class RequestLocation:
    """Position of a request in a spool."""

    spool: SpoolSession
    segment: int
    offset: int
    size_bytes: int
    spans: int
    first: int
    unix_ns: int

    @property
    def end(self) -> int:
        """Returns the position after it."""
        return self.first + self.spans

    def read(self) -> bytes:
        """Returns the request's bytes. Raises DamagedError."""
        return self.spool.read(self)


class SpoolSession:
    """One session's directory. `create` makes a new one, `adopt` takes over that of an ended session.

    Attributes:
        endpoint: the destination of its spans.
        size_bytes: total size of its segments.
    """

    def __init__(self, directory: Path, ledger_file: int) -> None:
        self.directory = directory
        self.size_bytes = 0
        self._ledger_file = ledger_file
        self._map = mmap.mmap(ledger_file, LEDGER_BYTES)
        self._ledger: Any = np.frombuffer(self._map, dtype=LEDGER, count=1)[0:1]
        self._lock = Lock()
        self._files: dict[int, int] = {}  # descriptor of each existing segment
        self._ends: dict[int, int] = {}  # position after its last record
        self._offsets: dict[int, int] = {}  # file offset after its last record
        self._sizes: dict[int, int] = {}  # of the file
        self._damaged: set[int] = set()
        self._spares: list[int] = []
        self._newest = 0

    @classmethod
    def create(cls, directory: Path, endpoint: str) -> SpoolSession:
        """Creates a spool; its directory must not exist. Raises OSError."""
        directory.mkdir(mode=0o700)
        ledger = -1
        try:
            ledger = os.open(directory / "ledger", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # If the disk is full, a store into the mapped page would kill the process.
            os.posix_fallocate(ledger, 0, LEDGER_BYTES)
        except OSError:
            if ledger >= 0:
                os.close(ledger)
            shutil.rmtree(directory, ignore_errors=True)
            raise
        spool = cls(directory, ledger)
        spool._ledger["endpoint"] = endpoint.encode()[: ENDPOINT_BYTES_MAX - 1]
        spool._ledger["magic"] = MAGIC
        return spool

    @classmethod
    def adopt(cls, directory: Path) -> SpoolSession | None:
        """Takes over a directory; None if its session is alive, or it is not a spool of this user. Raises OSError."""
        around = directory.lstat()
        if not stat.S_ISDIR(around.st_mode) or around.st_uid != os.geteuid():
            return None
        try:
            ledger = _lock_ledger(directory)
        except (FileNotFoundError, BlockingIOError):
            return None
        facts = os.fstat(ledger)
        # Another process may have sent and removed it between the two calls.
        if facts.st_nlink == 0 or facts.st_uid != os.geteuid() or facts.st_size < LEDGER_BYTES:
            os.close(ledger)
            return None
        spool = cls(directory, ledger)
        if spool._ledger["magic"][0] != MAGIC:
            spool.close()
            return None
        return spool

    @property
    def endpoint(self) -> str:
        """Returns the destination of its spans."""
        return bytes(self._ledger["endpoint"][0]).decode(errors="replace")

    def count_submitted(self, spans: int) -> None:
        """Counts produced spans."""
        self._ledger["submitted"] += spans

    def count_unwritten(self, spans: int) -> None:
        """Counts acknowledged or dropped spans that are in no segment."""
        self._ledger["unwritten_done"] += spans

    def count_lost(self) -> int:
        """Returns the spans that a killed session had in memory only, and counts them as done, so only once."""
        row = self._ledger[0]
        lost = int(row["submitted"]) - int(row["appended"]) - int(row["unwritten_done"])
        self._ledger["unwritten_done"] += max(0, lost)
        return max(0, lost)

    def count_damaged(self, readable: int) -> int:
        """Returns the written but unreadable spans, given how many `recover` could read. Only once, as `count_lost`."""
        row = self._ledger[0]
        damaged = int(row["appended"]) - int(row["done"]) - int(row["damaged"]) - readable
        self._ledger["damaged"] += max(0, damaged)
        return max(0, damaged)

    def append(self, data: bytes, spans: int) -> RequestLocation:
        """Appends a request. Raises OSError; then nothing was written."""
        with self._lock:
            if self._ledger is None:
                raise OSError(errno.EBADF, "the spool is closed")
            head = np.zeros(1, dtype=RECORD)
            first = int(self._ledger["appended"][0])
            unix_ns = time.time_ns()
            head[0] = (RECORD_MAGIC, 0, len(data), spans, first, unix_ns)
            head["crc"] = zlib.crc32(data, zlib.crc32(head.tobytes()[_CHECKED_FROM:]))
            if self._newest not in self._files or self._offsets[self._newest] >= SEGMENT_BYTES:
                self._open_segment()
            segment = self._newest
            file, offset = self._files[segment], self._offsets[segment]
            try:
                _write_all(file, offset, head.tobytes(), data)
            finally:
                self._measure(segment)
            self._ledger["appended"] = first + spans
            self._offsets[segment] = offset + RECORD.itemsize + len(data)
            self._ends[segment] = first + spans
            return RequestLocation(self, segment, offset, len(data), spans, first, unix_ns)

    def find_growth(self, data: bytes) -> int:
        """Returns by how many bytes `append` would enlarge its files."""
        end = self._offsets.get(self._newest, 0) + RECORD.itemsize + len(data)
        return max(0, end - self._sizes.get(self._newest, 0))

    def read(self, place: RequestLocation) -> bytes:
        """Returns the bytes of a request, verified. Raises DamagedError."""
        file, offset = self._files.get(place.segment, -1), place.offset
        try:
            head = os.pread(file, RECORD.itemsize, offset)
            data = os.pread(file, place.size_bytes, offset + RECORD.itemsize)
        except OSError as error:
            raise DamagedError(f"{self._path(place.segment)}: {error.strerror}") from error
        whole = len(head) == RECORD.itemsize and len(data) == place.size_bytes
        if not whole or zlib.crc32(data, zlib.crc32(head[_CHECKED_FROM:])) != np.frombuffer(head, RECORD, 1)["crc"][0]:
            self._damaged.add(place.segment)
            raise DamagedError(f"{self._path(place.segment)} is damaged")
        return data

    def finish(self, place: RequestLocation) -> None:
        """Marks a request and those before it as acknowledged or dropped. Frees segments that are no longer needed."""
        with self._lock:
            if self._ledger is None:
                return
            skipped = place.first - int(self._ledger["done"][0])
            if skipped > 0:
                self._ledger["damaged"] = max(0, int(self._ledger["damaged"][0]) - skipped)
            self._ledger["done"] = place.end
            for segment in [number for number, end in self._ends.items() if end <= place.end]:
                if segment == self._newest and segment not in self._damaged:
                    self._offsets[segment] = 0
                elif segment not in self._damaged and len(self._spares) < SPARES:
                    self._spares.append(segment)
                    del self._ends[segment]
                else:
                    self._remove(segment)

    def recover(self) -> Iterator[RequestLocation]:
        """Yields the requests that an ended session left, in order. Damaged segments are in `damaged` afterwards."""
        row = self._ledger[0]
        done = position = int(row["done"])
        found: list[tuple[int, list[RequestLocation]]] = []
        for path in sorted(self.directory.glob("*.segment")):
            if not path.stem.isdigit():
                continue
            segment = int(path.stem)
            self._files[segment] = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            self._ends[segment], self._offsets[segment] = done, 0
            self._measure(segment)
            places = list(self._scan(segment, position if found else 0))
            if places:
                self._ends[segment] = position = places[-1].end
                # Its writer may have been killed between writing the record and the ledger.
                self._ledger["appended"] = max(int(row["appended"]), position)
            found.append((segment, places))
        self._find_damage(found, done)
        for _, places in found:
            yield from (place for place in places if place.end > done)

    @property
    def damaged(self) -> list[str]:
        """Returns the segments found to be damaged."""
        return [f"{number:08}.segment" for number in sorted(self._damaged)]

    # Reads consecutive records from `position` on.
    def _scan(self, segment: int, position: int) -> Iterator[RequestLocation]:
        offset = 0
        while (place := self._read_head(segment, offset)) is not None:
            if place.first < position or (offset and place.first != position):
                return
            try:
                self.read(place)
            except DamagedError:
                return
            yield place
            position = place.end
            offset += RECORD.itemsize + place.size_bytes

    # A segment is damaged if the next one does not continue where its last good record ends.
    def _find_damage(self, found: list[tuple[int, list[RequestLocation]]], done: int) -> None:
        self._damaged.clear()
        follows = int(self._ledger["appended"][0])
        for index in range(len(found) - 1, -1, -1):
            segment, places = found[index]
            before = [place.end for _, earlier in found[:index] for place in earlier[-1:]]
            end = places[-1].end if places else max(before, default=done)
            if max(end, done) < follows:
                self._damaged.add(segment)
                follows = end
            if places:
                follows = places[0].first

    def _read_head(self, segment: int, offset: int) -> RequestLocation | None:
        head = os.pread(self._files[segment], RECORD.itemsize, offset)
        if len(head) < RECORD.itemsize:
            return None
        row = np.frombuffer(head, RECORD, 1)[0]
        if row["magic"] != RECORD_MAGIC or row["bytes"] > REQUEST_BYTES_MAX:
            return None
        numbers = (int(row[name]) for name in ("bytes", "spans", "first", "unix_ns"))
        return RequestLocation(self, segment, offset, *numbers)

    def _open_segment(self) -> None:
        number = self._newest + 1
        path = self._path(number)
        if self._spares:
            spare = self._spares.pop()
            self._path(spare).rename(path)
            self._files[number], self._sizes[number] = self._files.pop(spare), self._sizes.pop(spare)
            del self._offsets[spare]
        else:
            self._files[number] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._sizes[number] = 0
        self._offsets[number] = self._ends[number] = 0
        self._newest = number

    def _path(self, segment: int) -> Path:
        return self.directory / f"{segment:08}.segment"

    def _measure(self, segment: int) -> None:
        self._sizes[segment] = os.fstat(self._files[segment]).st_size
        self.size_bytes = sum(self._sizes.values())

    def _remove(self, segment: int) -> None:
        path = self._path(segment)
        with suppress(OSError):
            if segment in self._damaged:
                path.rename(path.with_suffix(".damaged"))
            else:
                path.unlink()
        os.close(self._files.pop(segment))
        del self._sizes[segment], self._offsets[segment]
        self._ends.pop(segment, None)
        self.size_bytes = sum(self._sizes.values())

    def close(self, keep: bool = True) -> None:
        """Closes the directory; without `keep`, or if nothing waits in it, removes it."""
        with self._lock:
            done = int(self._ledger["done"][0])
            for segment in list(self._files):
                if not keep or segment in self._spares or (segment in self._damaged and self._ends[segment] <= done):
                    self._remove(segment)
                else:
                    os.close(self._files.pop(segment))
            if not keep:
                with suppress(OSError):
                    if not any(self.directory.glob("*.damaged")):
                        (self.directory / "ledger").unlink()
                        self.directory.rmdir()
            self._ledger = None
            self._map.close()
            os.close(self._ledger_file)


def is_locked(directory: Path) -> bool:
    """Returns whether the session of a directory appears to be alive."""
    try:
        os.close(_lock_ledger(directory))
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _lock_ledger(directory: Path) -> int:
    """Returns the ledger of a directory, locked. Raises FileNotFoundError; BlockingIOError: its session is alive."""
    ledger = os.open(directory / "ledger", os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(ledger)
        raise
    return ledger


def _write_all(file: int, offset: int, head: bytes, data: bytes) -> None:
    size = len(head) + len(data)
    written = os.pwritev(file, [head, data], offset)
    if written == size:
        return
    rest = memoryview(head + data)[written:]
    while rest:
        written = os.pwrite(file, rest, offset + size - len(rest))
        rest = rest[written:]
