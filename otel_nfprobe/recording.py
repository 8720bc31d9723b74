# SPDX-License-Identifier: Apache-2.0
"""A session on disk: RecordingWriter appends blocks, RecordingReader gives back every whole one.

proto/README.md draws the file. The reader takes the file as hostile input: it allocates no more than the file
is long, ends at the first damaged byte, and says so. Called by cli/attach.py (writer), report.py and
cli/export.py (reader).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from otel_nfprobe import recording_pb2
from otel_nfprobe.errors import NfprobeError, UsageError

MAGIC = b"NFPREC\r\n"
VERSION = 1
RECORDS, CLOCK, THREADS, FUNCTIONS, COUNTERS, END, SWITCHES = range(1, 8)

RECORD_BYTES = 16
ANCHOR_BYTES = 24
SWITCH_BYTES = 32
THREAD_COUNT = 1024
HEADER_BYTES_MAX = 1 << 20
PAYLOAD_BYTES_MAX = 64 << 20
RECORDS_PER_BLOCK = 65536
_PREAMBLE = struct.Struct("<8sII")
_BLOCK = struct.Struct("<IIII")
_SEALED = struct.Struct("<III")
_CRC = struct.Struct("<I")


@dataclass
class RecordingHeader:
    """Which session this is: `resource` are OpenTelemetry resource attributes, `settings` attach options."""

    nfprobe_version: str = ""
    session: str = ""
    pid: int = 0
    executable: str = ""
    host: str = ""
    start_unix_ns: int = 0
    ticks_per_second: float = 0.0
    resource: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ThreadInfo:
    """One thread: its index in the session's thread table, its tid as the target sees it, its name."""

    index: int
    tid: int
    name: str


@dataclass(frozen=True)
class FunctionInfo:
    """One probed function; role is enum nfp_role, module a path, offset and size are bytes in it.

    The last two are what a probed call costs by itself, between its time stamps and in all; 0: not known.
    """

    id: int
    role: int
    module: str
    offset: int
    size: int
    name: str
    name_source: str
    strategy: str
    probe_inside_ticks: float = 0.0
    probe_whole_ticks: float = 0.0


@dataclass(frozen=True)
class ThreadCounters:
    """One entry of the thread table at one moment; `lost` counts records by loss class."""

    index: int
    empty_polls: int = 0
    empty_ticks: int = 0
    batches: int = 0
    received_packets: int = 0
    transmit_calls: int = 0
    transmitted_packets: int = 0
    refused_packets: int = 0
    dropped_packets: int = 0
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Block:
    """One whole block. `payload` is, by type:

    RECORDS: bytes, 16 per record; CLOCK: bytes, 24 per anchor; SWITCHES: bytes, 32 per switch; THREADS, FUNCTIONS,
    COUNTERS: a list of ThreadInfo, FunctionInfo, ThreadCounters; END: the summary, a dict. `thread` is meaningful for
    RECORDS.
    """

    type: int
    thread: int
    payload: Any

    def array(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The payload of a RECORDS, CLOCK or SWITCHES block as a read-only array of dtype."""
        return np.frombuffer(self.payload, dtype=dtype)


class RecordingWriter:
    """Writes one recording, block by block, straight to the file (mode 0600).

    When the disk is full, the call that meets it cuts the file back to the last whole block and raises
    NfprobeError; later calls do nothing, and `failed` is true.

    Raises:
        UsageError: the file cannot be made.
    """

    def __init__(self, path: str | Path, header: RecordingHeader) -> None:
        self.path = str(path)
        self.failed = False
        self.bytes_written = 0
        self._blocks = 0
        self._records = 0
        try:
            # Without O_NONBLOCK a pipe that nobody reads would be waited for.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise _refuse("write", self.path, error, os.path.dirname(self.path) or ".") from None
        if stat.S_ISREG(os.fstat(self._file).st_mode):
            os.fchmod(self._file, 0o600)  # the file may have been there with another mode
        message = recording_pb2.Header(**asdict(header)).SerializeToString()
        start = _PREAMBLE.pack(MAGIC, VERSION, len(message)) + message
        try:
            self._append([start, _CRC.pack(zlib.crc32(start))])
        except NfprobeError:
            self.close()
            raise

    def records(self, thread: int, records: npt.NDArray[Any]) -> None:
        """Appends records, 16 bytes each and oldest first, of the thread with this index."""
        data = np.ascontiguousarray(records).view(np.uint8).data
        step = RECORDS_PER_BLOCK * RECORD_BYTES
        for start in range(0, len(data), step):
            self._block(RECORDS, data[start : start + step], thread)
            self._records += len(data[start : start + step]) // RECORD_BYTES

    def clock(self, anchors: npt.NDArray[Any]) -> None:
        """Appends anchors (24 bytes each: ticks, unix_ns, ns_per_tick_q32) to those written before."""
        if len(anchors):
            self._block(CLOCK, np.ascontiguousarray(anchors).view(np.uint8).data)

    def switches(self, switches: npt.NDArray[Any]) -> None:
        """Appends switches (32 bytes each, switches.py): when threads did not run."""
        if len(switches):
            self._block(SWITCHES, np.ascontiguousarray(switches).view(np.uint8).data)

    def threads(self, threads: Iterable[ThreadInfo]) -> None:
        """Appends threads; the last entry of an index holds. Thread id 0: the thread before has ended."""
        message = recording_pb2.Threads(thread=[recording_pb2.Thread(**asdict(thread)) for thread in threads])
        self._block(THREADS, message.SerializeToString())

    def functions(self, functions: Iterable[FunctionInfo]) -> None:
        """Appends functions; the last entry of an id holds."""
        for group in _groups(list(functions), 10_000):
            message = recording_pb2.Functions(function=[recording_pb2.Function(**asdict(item)) for item in group])
            self._block(FUNCTIONS, message.SerializeToString())

    def counters(self, counters: Iterable[ThreadCounters]) -> None:
        """Appends a snapshot of the thread table."""
        entries = [recording_pb2.ThreadCounters(**asdict(entry)) for entry in counters]
        self._block(COUNTERS, recording_pb2.Counters(thread=entries).SerializeToString())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Writes the END block with the summary object of attach and closes the file."""
        message = recording_pb2.End(
            blocks=self._blocks, records=self._records, summary_json=json.dumps(summary, allow_nan=False)
        )
        try:
            self._block(END, message.SerializeToString())
        finally:
            self.close()

    def close(self) -> None:
        """Closes the file; without finish() before, it reads as cut."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def discard(self) -> None:
        """Closes and removes the file, as nothing was measured. A device or pipe stays."""
        regular = self._file >= 0 and stat.S_ISREG(os.fstat(self._file).st_mode)
        self.close()
        if regular:
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _block(self, kind: int, payload: bytes | memoryview, thread: int = 0) -> None:
        sealed = _SEALED.pack(kind, len(payload), thread)
        crc = zlib.crc32(payload, zlib.crc32(sealed))
        self._append([_BLOCK.pack(kind, len(payload), crc, thread), payload])
        self._blocks += 1

    def _append(self, parts: list[bytes | memoryview]) -> None:
        if self.failed or self._file < 0:
            return
        pending = [memoryview(part) for part in parts if len(part)]
        try:
            while pending:
                written = os.writev(self._file, pending)
                while pending and written >= len(pending[0]):
                    written -= len(pending.pop(0))
                if pending:
                    pending[0] = pending[0][written:]
        except OSError as error:
            self._fail(error)
        self.bytes_written += sum(len(part) for part in parts)

    def _fail(self, error: OSError) -> None:
        self.failed = True
        # A device refuses; what is there stays readable up to the last whole block all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self.bytes_written)
        raise NfprobeError(
            f"The recording {self.path} ends after {self.bytes_written} bytes: {error.strerror}.",
            f"nfprobe report {self.path}",
        ) from None


class RecordingReader:
    """Reads a recording. Iterate blocks() once or more; afterwards `damage`, `complete` and `summary` hold.

    `damage` is one sentence, empty when the file is whole; `complete` says that the END block was read;
    `summary` is its object, empty without one. Memory is bounded by the largest block.

    Raises:
        UsageError: the file cannot be read, is no recording, has another version or a damaged header.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.damage = ""
        self.complete = False
        self.summary: dict[str, Any] = {}
        try:
            with open(self.path, "rb", opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise UsageError(f"{self.path} is not a file.", f"ls -ld {self.path}")
                self.header, self._first = self._read_header(file)
        except OSError as error:
            raise _refuse("read", self.path, error, self.path) from None

    def blocks(self) -> Iterator[Block]:
        """Yields all whole blocks in the order of the file, END included; unknown types are skipped."""
        self.damage, self.complete, self.summary = "", False, {}
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(self._first)
                yield from self._read_blocks(file, size)
        except OSError as error:
            self.damage = f"The recording {self.path} cannot be read to its end: {error.strerror}."

    def _read_header(self, file: BinaryIO) -> tuple[RecordingHeader, int]:
        start = file.read(_PREAMBLE.size)
        if len(start) < _PREAMBLE.size or start[:8] != MAGIC:
            raise UsageError(f"{self.path} is not a recording of nfprobe.", "nfprobe attach --help")
        _, version, length = _PREAMBLE.unpack(start)
        rest = file.read(min(length, HEADER_BYTES_MAX) + _CRC.size)
        message = rest[:length]
        whole = len(rest) == length + _CRC.size
        if whole and _CRC.unpack(rest[length:])[0] == zlib.crc32(message, zlib.crc32(start)):
            if version != VERSION:
                raise UsageError(
                    f"{self.path} has recording version {version}, and this nfprobe reads version {VERSION}."
                )
            try:
                parsed = recording_pb2.Header.FromString(message)
                return _header_of(parsed), _PREAMBLE.size + length + _CRC.size
            except (DecodeError, ValueError):
                pass
        raise UsageError(f"The header of the recording {self.path} is damaged or cut.")

    def _read_blocks(self, file: BinaryIO, size: int) -> Iterator[Block]:
        at = self._first
        while at < size:
            start = file.read(_BLOCK.size)
            if len(start) < _BLOCK.size:
                return self._stop(at, "is cut inside a block")
            kind, length, crc, thread = _BLOCK.unpack(start)
            if length > size - at - _BLOCK.size or length > PAYLOAD_BYTES_MAX:
                return self._stop(at, "is cut inside a block, or the block's length is damaged,")
            payload = file.read(length)
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(_SEALED.pack(kind, length, thread))) != crc:
                return self._stop(at, "is damaged")
            try:
                block = _block_of(kind, thread, payload)
            except (DecodeError, ValueError):
                return self._stop(at, "holds a block that makes no sense")
            at += _BLOCK.size + length
            if block is not None:
                yield block
            if kind == END:
                self.complete = True
                self.summary = block.payload if block is not None else {}
                if at < size:
                    self._stop(at, "goes on behind its end")
                return None
        self._stop(at, "was cut: it has no end block, so its monitor was killed or its disk was full, and it ends")
        return None

    def _stop(self, at: int, what: str) -> None:
        self.damage = f"The recording {self.path} {what} at byte {at}; everything before that was read."


def _refuse(what: str, path: str, error: OSError, look_at: str) -> UsageError:
    return UsageError(f"Cannot {what} the recording {path}: {error.strerror}.", f"ls -ld {look_at}")


# Does not wait for a pipe's other end.
def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _header_of(message: Any) -> RecordingHeader:
    plain = (item.name for item in fields(RecordingHeader) if item.name not in ("resource", "settings"))
    values = {name: getattr(message, name) for name in plain}
    return RecordingHeader(**values, resource=dict(message.resource), settings=dict(message.settings))


def _block_of(kind: int, thread: int, payload: bytes) -> Block | None:
    # None: a type that a later nfprobe wrote. ValueError, DecodeError: the writer was wrong, or hostile.
    value: Any = payload
    if kind == RECORDS:
        _check(len(payload) % RECORD_BYTES == 0 and thread < THREAD_COUNT)
    elif kind == CLOCK:
        _check(len(payload) % ANCHOR_BYTES == 0)
    elif kind == SWITCHES:
        _check(len(payload) % SWITCH_BYTES == 0)
    elif kind == THREADS:
        value = [ThreadInfo(item.index, item.tid, item.name) for item in _items(recording_pb2.Threads, payload)]
    elif kind == FUNCTIONS:
        value = [_function_of(item) for item in recording_pb2.Functions.FromString(payload).function]
    elif kind == COUNTERS:
        value = [_counters_of(item) for item in _items(recording_pb2.Counters, payload)]
    elif kind == END:
        value = json.loads(recording_pb2.End.FromString(payload).summary_json)
        _check(isinstance(value, dict))
    else:
        return None
    return Block(kind, thread, value)


def _items(message: Any, payload: bytes) -> Sequence[Any]:
    items: Sequence[Any] = message.FromString(payload).thread
    _check(all(item.index < THREAD_COUNT for item in items))
    return items


def _function_of(item: Any) -> FunctionInfo:
    return FunctionInfo(
        item.id,
        item.role,
        item.module,
        item.offset,
        item.size,
        item.name,
        item.name_source,
        item.strategy,
        item.probe_inside_ticks,
        item.probe_whole_ticks,
    )


def _counters_of(item: Any) -> ThreadCounters:
    return ThreadCounters(
        item.index,
        item.empty_polls,
        item.empty_ticks,
        item.batches,
        item.received_packets,
        item.transmit_calls,
        item.transmitted_packets,
        item.refused_packets,
        item.dropped_packets,
        tuple(item.lost),
    )


def _check(condition: bool) -> None:
    if not condition:
        raise ValueError


def _groups(items: Sequence[FunctionInfo], size: int) -> Iterator[Sequence[FunctionInfo]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
