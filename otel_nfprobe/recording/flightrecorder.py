# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: keeps the last seconds of a session in memory, and writes them to a file when triggered.

    drain -> FlightWriter -> frames -> FlightSink (a thread): compressed, kept, dropped when they are too old
                                         write_out: kept frames, preceded by all facts, become FILE-1, FILE-2 ...

Memory is bounded by KEPT_BYTES, disk space by --max-size.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from otel_nfprobe.base import recording_pb2
from otel_nfprobe.base.columns import UNKNOWN, Columns, counted_latency_ticks
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.profiling.samples import AddressRange, encode_places
from otel_nfprobe.recording.recording import (
    CLOCK,
    COUNTERS,
    COUNTING,
    FUNCTIONS,
    PLACES,
    THREADS,
    RecordingHeader,
    RecordingWriter,
)
from otel_nfprobe.recording.recordingfile import (
    END,
    Frame,
    FrameQueue,
    RawBlock,
    RecordingFile,
    blocks_of,
    refuse,
    seal,
    write_start,
)
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadTotals, encode_counters, encode_functions

KEPT_BYTES = 64 << 20  # of compressed frames: 16 million records
MAX_BYTES = 1 << 30  # of all files together, unless --max-size is given
ASKED, TRIGGERED = "asked for", "a slow packet"


class FlightSink(FrameQueue):
    """A FrameQueue that keeps compressed frames for some seconds; `write_out` writes them to a file.

    Args:
        path: FILE.nfp becomes FILE-1.nfp, FILE-2.nfp ...
        start: the bytes that precede the first frame of each file.
        seconds: how long frames are kept.
        max_bytes: limit of all files together; data beyond it is not written.
    """

    def __init__(self, path: str, start: bytes, seconds: float, max_bytes: int) -> None:
        folder = os.path.dirname(path) or "."
        if not os.access(folder, os.W_OK | os.X_OK):
            error = OSError(0, "no such folder, or it is not writable")
            raise refuse("write", path, error, folder)
        self.files: list[str] = []
        self._max_bytes = max_bytes
        self._path = Path(path)
        self._start = start
        self._seconds = seconds
        self._total_bytes = 0
        self._kept: deque[tuple[float, bytes, Frame]] = deque()
        self._kept_bytes = 0
        self._requests: dict[int, tuple[list[RawBlock], str]] = {}  # by ID of the frame that they follow
        self._threads: dict[int, Any] = {}  # as named before the first kept frame
        self._counting = b""  # the counter set before it, if it was changed
        super().__init__()

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing is kept."""
        return not self._kept

    @property
    def bytes_written(self) -> int:
        return self._total_bytes

    def write_out(self, last: Frame, facts: list[RawBlock], reason: str) -> None:
        """Writes the kept frames up to and including the frame `last` to a file, and drops them."""
        self._requests[id(last)] = (facts, reason)
        self.submit(last)

    def _take(self, frame: Frame) -> None:
        if self.error is not None:
            return
        if frame.data:
            self._keep(frame)
        request = self._requests.pop(id(frame), None)
        if request is not None and self._kept:
            try:
                self._write_file(*request)
            except NfprobeError as error:
                self.error = error

    def _keep(self, frame: Frame) -> None:
        now = time.monotonic()
        sealed = seal(frame.data, self._compressor)
        note = Frame(bytearray(), frame.records, frame.types)
        if frame.types & (1 << THREADS | 1 << COUNTING):  # needed after the frame itself is dropped
            note.data += frame.data
        self._kept.append((now, sealed, note))
        self._kept_bytes += len(sealed)
        while self._kept[0][0] < now - self._seconds or self._kept_bytes > KEPT_BYTES:
            _, gone, note = self._kept.popleft()
            self._kept_bytes -= len(gone)
            self._learn(note)

    def _learn(self, note: Frame) -> None:
        for block in blocks_of(bytes(note.data)):
            if block.kind == THREADS:
                threads = recording_pb2.Threads.FromString(bytes(block.payload)).thread
                self._threads.update({thread.index: thread for thread in threads if thread.tid})
            elif block.kind == COUNTING:
                self._counting = bytes(block.payload)

    def _write_file(self, facts: list[RawBlock], reason: str) -> None:
        threads = recording_pb2.Threads(thread=list(self._threads.values())).SerializeToString()
        first = Frame(bytearray())
        counting = [RawBlock(COUNTING, 0, self._counting)] if self._counting else []
        for block in [RawBlock(THREADS, 0, threads), *counting, *facts]:
            first.add(*block)
        sealed = seal(first.data, self._compressor)
        if self._total_bytes + len(self._start) + len(sealed) + self._kept_bytes + (64 << 10) > self._max_bytes:
            self.reached_max = True
            return
        path = self._path.with_name(f"{self._path.stem}-{len(self.files) + 1}{self._path.suffix}")
        file = RecordingFile(str(path), self._start)
        self.files.append(file.path)
        try:
            file.append(sealed, first)
            while self._kept:
                _, data, note = self._kept.popleft()
                self._kept_bytes -= len(data)
                file.append(data, note)
                self._learn(note)
            flight = {"flight": {"reason": reason, "number": len(self.files), "seconds": self._seconds}}
            end = recording_pb2.End(summary_json=json.dumps(flight))
            file.finish([RawBlock(END, 0, end.SerializeToString())])
        finally:
            file.close()
            self._total_bytes += file.bytes_written


class FlightWriter(RecordingWriter):
    """A RecordingWriter that writes to disk only when triggered.

    Args:
        path: FILE.nfp becomes FILE-1.nfp, FILE-2.nfp ...
        header: of the session.
        seconds: what is kept.
        trigger_ticks: a packet with a higher latency triggers a file; 0: off.
        max_bytes: of all files together.
    """

    def __init__(
        self, path: str, header: RecordingHeader, seconds: float, trigger_ticks: int = 0, max_bytes: int = MAX_BYTES
    ) -> None:
        self._seconds = seconds
        self._trigger_ticks = trigger_ticks
        self._reason = ""
        self._due_at = 0.0
        self._functions: dict[int, FunctionInfo] = {}
        self._anchors: deque[npt.NDArray[Any]] = deque(maxlen=int(seconds) + 3)  # one per second
        self._counters = b""
        self._places: list[AddressRange] = []
        super().__init__(path, header, max_bytes)

    def _open_sink(self, header: bytes, max_bytes: int) -> FlightSink:
        self._flight = FlightSink(self.path, write_start(header), self._seconds, max_bytes)
        return self._flight

    @property
    def files(self) -> list[str]:
        """Returns the files written."""
        return list(self._flight.files)

    def ask(self) -> None:
        """Requests a file of the kept frames; may be called from a signal handler."""
        self._reason, self._due_at = ASKED, 0.0

    def functions(self, functions: Iterable[FunctionInfo]) -> None:
        """As in RecordingWriter; written at the start of each file."""
        self._functions.update({function.id: function for function in functions})

    def clock(self, anchors: npt.NDArray[Any]) -> None:
        """As in RecordingWriter; written at the start of each file."""
        self._anchors.extend(anchors[row : row + 1].copy() for row in range(len(anchors)))

    def places(self, places: Sequence[AddressRange]) -> None:
        """As in RecordingWriter; the known ones are written at the start of each file."""
        self._places += places

    def counters(self, counters: Iterable[ThreadTotals]) -> None:
        """As in RecordingWriter; the latest are written at the start of each file."""
        self._counters = encode_counters(counters)
        self._write_if_due()

    def take(self, columns: Columns, is_over: bool = False, is_part: bool = False) -> None:
        """As in RecordingWriter; checks for slow packets."""
        super().take(columns, is_over, is_part)
        if self._trigger_ticks and len(columns.packets) and not self._reason:
            latency = np.where(columns.packets["disposition"] == UNKNOWN, 0, counted_latency_ticks(columns))
            if latency.max() > self._trigger_ticks:
                self._reason = TRIGGERED
        self._write_if_due()

    def complete(self) -> None:
        """Writes requested files."""
        self._due_at = 0.0
        self._write_if_due()
        super().complete()

    def _write_if_due(self) -> None:
        # Repeated triggers write a file per half of the period, so that nothing is missing between files.
        if not self._reason or time.monotonic() < self._due_at or self.failed:
            return
        if not self._frame.data and self._flight.is_empty:
            return  # requested before any data arrived
        facts = [RawBlock(FUNCTIONS, 0, part) for part in encode_functions(self._functions.values())]
        if self._anchors:
            facts.append(RawBlock(CLOCK, 0, np.concatenate(list(self._anchors)).tobytes()))
        facts.append(RawBlock(COUNTERS, 0, self._counters))
        if self._places:
            facts.append(RawBlock(PLACES, 0, encode_places(self._places)))
        self._flight.write_out(self._frame, facts, self._reason)
        self._frame, self._reason = Frame(bytearray()), ""
        self._due_at = time.monotonic() + self._seconds / 2
