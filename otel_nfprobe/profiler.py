# SPDX-License-Identifier: Apache-2.0
"""The profiler: has the kernel note where each thread of the target is, so many times a second of its running.

One perf event per thread: the processor's cycle counter with the most precise addresses that it gives (PEBS, IBS), or,
where there is no such counter, the software event cpu-clock. Nothing in the target changes. Each record says whether
its address is exact. Called by drain.py.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.clock import Clock
from otel_nfprobe.columns import Rows
from otel_nfprobe.errors import NfprobeError
from otel_nfprobe.perfring import HEADER, NO_KERNEL, SOFTWARE, map_largest_ring, open_event, take_records
from otel_nfprobe.rawclock import RawClock
from otel_nfprobe.samples import SAMPLE, SampleFlag, no_samples

THREADS_MAX = 256  # each has a file descriptor and a buffer
PAGES = (64, 16, 2)  # of a buffer; users without rights may lock little memory
HARDWARE, CYCLES, CPU_CLOCK = 0, 0, 0
PRECISIONS = (3, 2, 1, 0)
RATE_MAX = "/proc/sys/kernel/perf_event_max_sample_rate"

_ATTRIBUTE_BYTES = 112
_SAMPLE_TYPE = 1 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 8  # address, thread, time, CPU, period
_BY_FREQUENCY, _PRECISE_AT, _USE_CLOCK = 1 << 10, 15, 1 << 25
_RECORD_SAMPLE, _RECORD_LOST = 9, 2
_MODE, _IN_KERNEL, _EXACT = 7, 1, 1 << 14
_LOST_AT = 16  # in its record: how many
_EVENT = np.dtype(
    [
        ("type", "<u4"),
        ("misc", "<u2"),
        ("size", "<u2"),
        ("address", "<u8"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("time_ns", "<u8"),
        ("cpu", "<u4"),
        ("reserved", "<u4"),
        ("period", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Source:
    """What makes the kernel look: `type` and precise_ip of perf_event_attr; `user_only`: not at the kernel's code."""

    type: int
    precision: int
    user_only: bool

    @property
    def name(self) -> str:
        """For people."""
        event = "cycles" if self.type == HARDWARE else "cpu-clock"
        modifiers = ("u" if self.user_only else "") + "p" * self.precision
        return f"{event}:{modifiers}" if modifiers else event


SOURCES = tuple(
    Source(kind, precision, user_only)
    for kind, precisions in ((HARDWARE, PRECISIONS), (SOFTWARE, (0,)))
    for precision in precisions
    for user_only in (False, True)
)

Open = Callable[[Source, int, int], int]


def open_source(source: Source, hertz: int, tid: int) -> int:
    """Opens the event of one thread. Raises OSError."""
    flags = _BY_FREQUENCY | _USE_CLOCK | source.precision << _PRECISE_AT | (NO_KERNEL if source.user_only else 0)
    config = CYCLES if source.type == HARDWARE else CPU_CLOCK
    attribute = bytearray(_ATTRIBUTE_BYTES)
    words = source.type, _ATTRIBUTE_BYTES, config, hertz, _SAMPLE_TYPE, 0, flags
    struct.pack_into("<IIQQQQQ", attribute, 0, *words)
    struct.pack_into("<i", attribute, 92, time.CLOCK_MONOTONIC_RAW)
    return open_event(bytes(attribute), tid)


def max_hertz() -> int:
    """What the kernel allows at this moment; it lowers the number by itself when looking takes too long."""
    try:
        with open(RATE_MAX, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 100_000


class Profiler:
    """The samples of the threads of one target.

    Args:
        clock: of the session; for its rate.
        hertz: samples in each second that a thread runs.
        open_one: opens the event; tests put another one here.

    Attributes:
        lost: samples that found their buffer full.
        source: what makes the kernel look; None before the first thread.
    """

    def __init__(self, clock: Clock, hertz: int, open_one: Open = open_source) -> None:
        self.lost = 0
        self.taken = 0
        self.source: Source | None = None
        self._clock = RawClock(clock)
        self._hertz = hertz
        self._open_one = open_one
        self._buffers: dict[int, tuple[int, mmap.mmap]] = {}

    def watch(self, tid: int) -> None:
        """Begins with a thread; does nothing for one that is watched, or has ended.

        Args:
            tid: as the monitor sees it.

        Raises:
            NfprobeError: the kernel does not allow it.
        """
        if tid in self._buffers or len(self._buffers) >= THREADS_MAX:
            return
        descriptor = -1
        try:
            descriptor = self._open(tid)
            self._buffers[tid] = descriptor, map_largest_ring(descriptor, PAGES)
        except ProcessLookupError:
            return
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            reason = error.strerror or "unknown error"
            raise NfprobeError(f"There is no profile: perf_event_open says {reason}.", "nfprobe doctor") from None

    def keep(self, tids: set[int]) -> None:
        """Ends with all threads but these."""
        for tid in self._buffers.keys() - tids:
            descriptor, buffer = self._buffers.pop(tid)
            buffer.close()
            os.close(descriptor)

    def read(self, indexes: Mapping[int, int]) -> Rows:
        """What was seen since the last call.

        Args:
            indexes: of threads in the thread table, by tid as the monitor sees it; others are left out.

        Returns:
            rows of dtype SAMPLE, those of one thread in order.
        """
        rows = [no_samples()]
        for tid, (_, buffer) in self._buffers.items():
            events, lost = split_records(take_records(buffer))
            self.lost += lost
            if len(events) and tid in indexes:
                rows.append(self._describe(events, indexes[tid]))
        found = np.concatenate(rows)
        self.taken += len(found)
        return found

    def close(self) -> None:
        """Ends with all threads."""
        self.keep(set())

    def _open(self, tid: int) -> int:
        if self.source is not None:
            return self._open_one(self.source, self._hertz, tid)
        failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        for source in SOURCES:
            try:
                descriptor = self._open_one(source, self._hertz, tid)
            except ProcessLookupError:
                raise
            except OSError as error:
                failure = error
                continue
            self.source = source
            return descriptor
        raise failure

    def _describe(self, events: NDArray[np.void], index: int) -> Rows:
        rows = np.zeros(len(events), SAMPLE)
        rows["ticks"] = self._clock.ticks(events["time_ns"])
        rows["address"], rows["cpu"] = events["address"], events["cpu"]
        rows["thread"] = index
        rows["period"] = np.minimum(events["period"], 0xFFFFFFFF)
        flags = np.where(events["misc"] & _EXACT, SampleFlag.PRECISE, 0)
        flags |= np.where((events["misc"] & _MODE) == _IN_KERNEL, SampleFlag.IN_KERNEL, 0)
        if self.source is not None and self.source.type == HARDWARE:
            flags |= SampleFlag.HARDWARE
        rows["flags"] = flags
        return rows


def split_records(data: bytes) -> tuple[NDArray[np.void], int]:
    """Samples (dtype of their records), and how many the kernel lost. Other records say nothing here."""
    if data and len(data) % _EVENT.itemsize == 0:
        events = np.frombuffer(data, _EVENT)
        if np.all((events["type"] == _RECORD_SAMPLE) & (events["size"] == _EVENT.itemsize)):
            return events, 0
    kept, lost, at = [np.empty(0, _EVENT)], 0, 0
    while at + HEADER.size <= len(data):
        kind, _, size = HEADER.unpack_from(data, at)
        if size < HEADER.size or at + size > len(data):
            break
        if kind == _RECORD_SAMPLE and size == _EVENT.itemsize:
            kept.append(np.frombuffer(data, _EVENT, 1, at))
        elif kind == _RECORD_LOST and size >= _LOST_AT + 8:
            lost += int(struct.unpack_from("<Q", data, at + _LOST_AT)[0])
        at += size
    return np.concatenate(kept), lost
