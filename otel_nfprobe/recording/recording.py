# SPDX-License-Identifier: Apache-2.0
"""A session on disk: RecordingWriter appends blocks, RecordingReader returns every complete one.

proto/README.md describes the format. The reader treats the file as untrusted: it stops at the first damaged byte, and
reports it. This module defines what blocks mean; recordingfile.py reads and writes them.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from otel_nfprobe.base import recording_pb2
from otel_nfprobe.base.columns import Columns
from otel_nfprobe.base.numbernames import NumberNames, decode_names, encode_names
from otel_nfprobe.counters.sets import CounterSet
from otel_nfprobe.profiling.samples import (
    AddressRange,
    SampleCounts,
    decode_counts,
    decode_places,
    encode_counts,
    encode_places,
)
from otel_nfprobe.recording.recordingfile import (
    END,
    FRAME_BYTES,
    Damage,
    Frame,
    FrameQueue,
    RawBlock,
    RecordingFile,
    RecordingSink,
    damaged_header,
    read_blocks,
    read_start,
    write_start,
)
from otel_nfprobe.recording.sessionfacts import (
    FUNCTIONS_PER_BLOCK,
    THREAD_COUNT,
    FunctionInfo,
    ThreadInfo,
    ThreadTotals,
    decode_counters,
    decode_counting,
    decode_functions,
    decode_threads,
    encode_counters,
    encode_counting,
    encode_functions,
    encode_threads,
)

RECORDS, CLOCK, THREADS, FUNCTIONS, COUNTERS, ABSENCES = 1, 2, 3, 4, 5, 7  # END is 6, INDEX 8
TAKE, SUBMIT, PART = 9, 10, 13
SAMPLES, PLACES, COUNTING, SAMPLE_COUNTS, NAMES, QUEUE_DROPS = 11, 12, 14, 15, 16, 17

RECORD_BYTES = 16
ANCHOR_BYTES = 24
ABSENCE_BYTES, SAMPLE_BYTES, QUEUE_DROP_BYTES = 160, 32, 96
RECORDS_PER_BLOCK = 65536
SAMPLES_PER_BLOCK = 8192
FRAME_S = 0.1
_LOST = struct.Struct("<QII")  # a record of kind LOST (record.h): how many, function and kind, class
_LOST_TAG, _LOST_CALL = 5 << 24, 0


@dataclass
class RecordingHeader:
    """The identity of a session: `resource` are OpenTelemetry resource attributes, `settings` attach options.

    Ticks of recordings with the same `boot_id` are of one clock; empty: unknown.
    """

    nfprobe_version: str = ""
    session: str = ""
    pid: int = 0
    executable: str = ""
    host: str = ""
    start_unix_ns: int = 0
    ticks_per_second: float = 0.0
    resource: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    boot_id: str = ""


@dataclass(frozen=True)
class Block:
    """One complete block. `payload`, by type:

    RECORDS: bytes, 16 per record; CLOCK: bytes, 24 per anchor; ABSENCES: bytes, 160 per row; SAMPLES: bytes, 32 per
    row; QUEUE_DROPS: bytes, 96 per row;
    THREADS, FUNCTIONS, COUNTERS, PLACES: a list of ThreadInfo, FunctionInfo, ThreadTotals, AddressRange; COUNTING: a
    CounterSet; NAMES: NumberNames; SAMPLE_COUNTS: a SampleCounts, of the SAMPLES before it; END: the summary, a dict.
    `thread` is meaningful for RECORDS; for TAKE it is 1 at the end of the session.
    """

    type: int
    thread: int
    payload: Any

    def array(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns the payload of a block that holds rows or records as a read-only array of dtype."""
        return np.frombuffer(self.payload, dtype=dtype)


class RecordingWriter:
    """Writes one recording (mode 0600). Never waits for the disk: a thread writes the frames (RecordingSink).

    A frame is closed at a MiB or after FRAME_S, which limits what is lost if the monitor is killed. If the disk is
    full, the file ends after its last complete frame and the next call raises NfprobeError; later calls do nothing, and
    `failed` is true.

    Args:
        path: of the file.
        header: of the session.
        max_bytes: limit of the file's length; 0: none.

    Attributes:
        left_out: records dropped because the disk was too slow.

    Raises:
        UsageError: the file cannot be created.
    """

    def __init__(self, path: str | Path, header: RecordingHeader, max_bytes: int = 0) -> None:
        self.path = str(path)
        self.failed = False
        self.left_out = 0
        self._blocks = 0
        self._records = 0
        self._frame = Frame(bytearray())
        self._opened_at = 0.0
        self._lost: dict[int, int] = {}  # by thread: records dropped since the last written one
        self._closed = False
        self._sink = self._open_sink(recording_pb2.Header(**asdict(header)).SerializeToString(), max_bytes)

    def _open_sink(self, header: bytes, max_bytes: int) -> FrameQueue:
        return RecordingSink(RecordingFile(self.path, write_start(header)), max_bytes)

    @property
    def bytes_written(self) -> int:
        """Returns the length of the file."""
        return self._sink.bytes_written

    @property
    def reached_max(self) -> bool:
        """Returns whether the file ended because it reached its limit."""
        return self._sink.reached_max

    def records(self, thread: int, records: npt.NDArray[Any]) -> None:
        """Appends records, 16 bytes each, oldest first, of the thread with this index."""
        data = np.ascontiguousarray(records).view(np.uint8).data
        if self._sink.is_full and len(data):
            self._lost[thread] = self._lost.get(thread, 0) + len(data) // RECORD_BYTES
            self.left_out += len(data) // RECORD_BYTES
            return
        if thread in self._lost:
            self._put_records(thread, _LOST.pack(self._lost.pop(thread), _LOST_TAG, _LOST_CALL))
        step = RECORDS_PER_BLOCK * RECORD_BYTES
        for start in range(0, len(data), step):
            self._put_records(thread, data[start : start + step])

    def take(self, columns: Columns, is_over: bool = False, is_part: bool = False) -> None:
        """Notes that the session drained these columns at this point; `is_over`: at its end.

        Args:
            is_part: in the middle of a round.
        """
        if not self._sink.is_full:
            self._block(PART if is_part else TAKE, b"", int(is_over))

    def submit(self) -> None:
        """Notes that the session submitted the packets selected so far."""
        if not self._sink.is_full:
            self._block(SUBMIT, b"")

    def clock(self, anchors: npt.NDArray[Any]) -> None:
        """Appends anchors (24 bytes each: ticks, unix_ns, ns_per_tick_q32)."""
        if len(anchors):
            self._block(CLOCK, np.ascontiguousarray(anchors).view(np.uint8).data)

    def absences(self, absences: npt.NDArray[Any]) -> None:
        """Appends absences (160 bytes each, absences.py): when threads did not run their own code."""
        if len(absences) and not self._sink.is_full:
            self._block(ABSENCES, np.ascontiguousarray(absences).view(np.uint8).data)

    def queue_drops(self, drops: npt.NDArray[Any]) -> None:
        """Appends what queues dropped (96 bytes each, queue_drops.py)."""
        if len(drops) and not self._sink.is_full:
            self._block(QUEUE_DROPS, np.ascontiguousarray(drops).view(np.uint8).data)

    def samples(self, samples: npt.NDArray[Any], counted: SampleCounts | None = None) -> None:
        """Appends samples (32 bytes each, samples.py) and their counter increases."""
        if self._sink.is_full:
            return
        for start in range(0, len(samples), SAMPLES_PER_BLOCK):
            part = slice(start, start + SAMPLES_PER_BLOCK)
            self._block(SAMPLES, np.ascontiguousarray(samples[part]).view(np.uint8).data)
            if counted is not None and counted.names:
                self._block(SAMPLE_COUNTS, encode_counts(counted._replace(counts=counted.counts[:, part])))

    def places(self, places: Sequence[AddressRange]) -> None:
        """Appends the names of sampled addresses."""
        for start in range(0, len(places), FUNCTIONS_PER_BLOCK):
            self._block(PLACES, encode_places(places[start : start + FUNCTIONS_PER_BLOCK]))

    def threads(self, threads: Iterable[ThreadInfo]) -> None:
        """Appends threads; the last entry of an index is valid. Thread ID 0: the previous thread has ended."""
        self._block(THREADS, encode_threads(threads))

    def functions(self, functions: Iterable[FunctionInfo]) -> None:
        """Appends functions; the last entry of an ID is valid."""
        for payload in encode_functions(functions):
            self._block(FUNCTIONS, payload)

    def names(self, names: NumberNames) -> None:
        """Appends the names of numbers in records; the last entry of a number is valid."""
        self._block(NAMES, encode_names(names))

    def counters(self, counters: Iterable[ThreadTotals]) -> None:
        """Appends a snapshot of the thread table."""
        if not self._sink.is_full:
            self._block(COUNTERS, encode_counters(counters))

    def counting(self, counted: CounterSet) -> None:
        """Notes that subsequent readings are of another counter set."""
        self._block(COUNTING, encode_counting(counted))

    def flush(self) -> None:
        """Waits until everything appended is in the file."""
        self._close_frame()
        self._sink.flush()
        self._check()

    def complete(self) -> None:
        """Called when the session has appended everything: waits until it is in the file."""
        self.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Writes the END block with the summary object of attach and closes the file."""
        if self._closed:
            return
        self._closed = True
        for thread, count in self._lost.items():
            self._put_records(thread, _LOST.pack(count, _LOST_TAG, _LOST_CALL))
        self._close_frame()
        message = recording_pb2.End(
            blocks=self._blocks, records=self._records, summary_json=json.dumps(summary, allow_nan=False)
        )
        self._sink.finish([RawBlock(END, 0, message.SerializeToString())])
        self._check()

    def close(self) -> None:
        """Closes the file; without finish() before, it reads as truncated."""
        if not self._closed:
            self._closed = True
            self._close_frame()
            self._sink.close()

    def discard(self) -> None:
        """Closes and removes the file if nothing was measured. A device or pipe stays."""
        if not self._closed:
            self._closed = True
            self._sink.discard()

    def _put_records(self, thread: int, data: bytes | memoryview) -> None:
        count = len(data) // RECORD_BYTES
        self._records += count
        self._block(RECORDS, data, thread, count)

    def _block(self, kind: int, payload: bytes | memoryview, thread: int = 0, records: int = 0) -> None:
        self._check()
        if self.failed:
            return
        now = time.monotonic()
        if not self._frame.data:
            self._opened_at = now
        elif len(self._frame.data) + len(payload) > FRAME_BYTES or now >= self._opened_at + FRAME_S:
            self._close_frame()
            self._opened_at = now
        self._frame.add(kind, thread, payload)
        self._frame.records += records
        self._blocks += 1

    def _close_frame(self) -> None:
        if self._frame.data:
            self._sink.submit(self._frame)
            self._frame = Frame(bytearray())

    def _check(self) -> None:
        if self._sink.error is not None and not self.failed:
            self.failed = True
            raise self._sink.error


class RecordingReader:
    """Reads a recording. `damage`, `complete` and `summary` are valid after an iteration of blocks().

    `damage` is one sentence, empty if the file is complete; `complete` says that the END block was read;
    `summary` is its object, empty without one. Memory is bounded by the largest frame.

    Raises:
        UsageError: the file cannot be read, is not a recording, has another version or a damaged header.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.damage = ""
        self.complete = False
        self.summary: dict[str, Any] = {}
        self._start = read_start(self.path)
        try:
            self.header = _header_of(recording_pb2.Header.FromString(self._start.message))
        except (DecodeError, ValueError):
            raise damaged_header(self.path) from None

    def blocks(self, leave_out: Collection[int] = ()) -> Iterator[Block]:
        """Yields all complete blocks in the order of the file, including END; unknown types are skipped.

        Args:
            leave_out: types of blocks to skip; damage in frames that contain only these is not detected.
        """
        self.damage, self.complete, self.summary = "", False, {}
        mask = sum(1 << kind for kind in leave_out)
        try:
            for raw in read_blocks(self.path, self._start, mask):
                if raw.kind in leave_out:
                    continue
                try:
                    block = _block_of(raw)
                except (DecodeError, ValueError, RecursionError):
                    self.damage = self._describe("holds a block that makes no sense", "")
                    return
                if block is None:
                    continue
                if block.type == END:
                    self.complete, self.summary = True, block.payload
                yield block
        except Damage as damage:
            self.damage = self._describe(damage.what, f" at byte {damage.at}")
        except OSError as error:
            self.damage = f"The recording {self.path} cannot be read to its end: {error.strerror}."

    def _describe(self, what: str, place: str) -> str:
        return f"The recording {self.path} {what}{place}; everything before that was read."


def _header_of(message: Any) -> RecordingHeader:
    plain = (item.name for item in fields(RecordingHeader) if item.name not in ("resource", "settings"))
    values = {name: getattr(message, name) for name in plain}
    return RecordingHeader(**values, resource=dict(message.resource), settings=dict(message.settings))


def _block_of(raw: RawBlock) -> Block | None:
    # None: a type written by a later nfprobe. ValueError, DecodeError: the writer was faulty or malicious.
    kind, thread, view = raw
    if kind == RECORDS:  # not copied: it is used only while its frame exists
        _check(len(view) % RECORD_BYTES == 0 and thread < THREAD_COUNT)
        return Block(kind, thread, view)
    payload = bytes(view)
    if kind in _ROW_BYTES:
        _check(len(payload) % _ROW_BYTES[kind] == 0)
    elif kind not in _DECODERS and kind not in (TAKE, SUBMIT, PART):
        return None
    value: Any = _DECODERS[kind](payload) if kind in _DECODERS else payload
    return Block(kind, thread, value)


def _decode_end(payload: bytes) -> Any:
    summary = json.loads(recording_pb2.End.FromString(payload).summary_json)
    _check(isinstance(summary, dict))
    return summary


_ROW_BYTES = {CLOCK: ANCHOR_BYTES, ABSENCES: ABSENCE_BYTES, SAMPLES: SAMPLE_BYTES, QUEUE_DROPS: QUEUE_DROP_BYTES}
_DECODERS: dict[int, Callable[[bytes], Any]] = {
    PLACES: decode_places,
    SAMPLE_COUNTS: decode_counts,
    NAMES: decode_names,
    THREADS: decode_threads,
    FUNCTIONS: decode_functions,
    COUNTERS: decode_counters,
    COUNTING: decode_counting,
    END: _decode_end,
}


def _check(condition: bool) -> None:
    if not condition:
        raise ValueError
