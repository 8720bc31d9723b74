# SPDX-License-Identifier: Apache-2.0
"""Preemption: watches the scheduler take threads of the target off their CPUs, at no cost to the probes.

One perf event per thread, the software event `dummy` with `context_switch`: it counts nothing, but the kernel writes
a record into its buffer whenever it switches the thread out or in. It needs no performance counters, so it works in
virtual machines. Nothing runs in the target. Times are those of CLOCK_MONOTONIC_RAW, whose rate against the time
stamp counter is constant, and become ticks here.

Called by drain.py, after the rings: what a record says happened before it is then known.
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
from otel_nfprobe.perfring import (
    HEADER,
    NO_KERNEL,
    SOFTWARE,
    find_ended,
    map_largest_ring,
    open_event,
    take_records,
)
from otel_nfprobe.rawclock import RawClock
from otel_nfprobe.switches import SWITCH, SwitchFlag, no_switches

THREADS_MAX = 256  # each has a file descriptor and a buffer
PAGES = (16, 2)  # of a buffer; users without rights may lock little memory
PARANOID = "/proc/sys/kernel/perf_event_paranoid"

_ATTRIBUTE_BYTES = 112
_DUMMY = 9
_SAMPLE_TYPE = 1 << 1 | 1 << 2 | 1 << 7  # thread, time, CPU: 24 bytes behind each record
# NO_KERNEL: nothing is counted, and without it more rights are needed.
_FLAGS = NO_KERNEL | 1 << 18 | 1 << 25 | 1 << 26  # ..., sample_id_all, use_clockid, context_switch
_RECORD_SWITCH = 14
_OUT, _PREEMPTED = 1 << 13, 1 << 14

_EVENT = np.dtype(
    [
        ("type", "<u4"),
        ("misc", "<u2"),
        ("size", "<u2"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("time_ns", "<u8"),
        ("cpu", "<u4"),
        ("reserved", "<u4"),
    ]
)


@dataclass
class _Watched:
    # One thread's event. `away` is the record of a switch out whose switch in has not come.
    descriptor: int
    buffer: mmap.mmap
    away: NDArray[np.void]
    incomplete: bool = False

    def close(self) -> None:
        self.buffer.close()
        os.close(self.descriptor)


class SwitchWatch:
    """The switches of the threads of one target.

    Args:
        clock: of the session; for its rate.
        is_ours: whether a number is that of a thread of the target at this moment.

    Attributes:
        lost: records that found their buffer full.
        unwatched: threads beyond THREADS_MAX.
    """

    def __init__(self, clock: Clock, is_ours: Callable[[int], bool]) -> None:
        self._is_ours = is_ours
        self.lost = 0
        self.unwatched = 0
        self._clock = RawClock(clock)
        self._watched: dict[int, _Watched] = {}

    def watch(self, tid: int) -> None:
        """Begins with a thread; does nothing for one that is watched, has ended, or is none of the target.

        Args:
            tid: as the monitor sees it.

        Raises:
            NfprobeError: the kernel does not allow it.
        """
        if tid in self._watched:
            return
        if len(self._watched) >= THREADS_MAX:
            self.unwatched += 1
            return
        try:
            descriptor = _open_event(tid)
        except ProcessLookupError:
            return
        except OSError as error:
            raise _refuse(error) from None
        if not self._is_ours(tid):  # it has ended, and another process has its number
            os.close(descriptor)
            return
        try:
            self._watched[tid] = _Watched(descriptor, map_largest_ring(descriptor, PAGES), np.empty(0, _EVENT))
        except OSError as error:
            os.close(descriptor)
            raise _refuse(error) from None

    def end_gone(self) -> None:
        """Ends with the threads that are gone; one that has got the number of such a thread is another one."""
        ended = set(find_ended([watched.descriptor for watched in self._watched.values()]))
        for tid in [tid for tid, watched in self._watched.items() if watched.descriptor in ended]:
            self._watched.pop(tid).close()

    def read(self, find_indexes: Callable[[], Mapping[int, int]]) -> Rows:
        """The switches that ended since the last call.

        Args:
            find_indexes: called where there are any switches: finds the indexes of threads in the thread table, by tid
                as the monitor sees it; others are left out.

        Returns:
            rows of dtype SWITCH, those of one thread in order.
        """
        rows, indexes = [], None
        for tid, watched in self._watched.items():
            records = take_records(watched.buffer)
            if not records:
                continue
            indexes = find_indexes() if indexes is None else indexes
            events, lost = _split(records)
            self.lost += lost
            if lost:
                watched.away, watched.incomplete = watched.away[:0], True
            if len(events) and tid in indexes:
                rows.append(self._pair_up(watched, events, indexes[tid]))
        return np.concatenate(rows) if rows else no_switches()

    def close(self) -> None:
        """Ends with all threads."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()

    def _pair_up(self, watched: _Watched, events: NDArray[np.void], index: int) -> Rows:
        events = np.concatenate((watched.away, events))
        is_out = (events["misc"] & _OUT) != 0
        watched.away = events[-1:].copy() if is_out[-1] else events[:0]
        starts = np.flatnonzero(is_out[:-1] & ~is_out[1:])
        rows = np.zeros(len(starts), SWITCH)
        rows["out_ticks"] = self._clock.ticks(events["time_ns"][starts])
        rows["in_ticks"] = self._clock.ticks(events["time_ns"][starts + 1])
        rows["thread"] = index
        rows["flags"] = np.where(events["misc"][starts] & _PREEMPTED, SwitchFlag.PREEMPTED, 0)
        if watched.incomplete and len(rows):
            rows["flags"][0] |= SwitchFlag.INCOMPLETE
            watched.incomplete = False
        rows["from_cpu"], rows["to_cpu"] = events["cpu"][starts], events["cpu"][starts + 1]
        return rows


def _open_event(tid: int) -> int:
    attribute = bytearray(_ATTRIBUTE_BYTES)
    struct.pack_into("<IIQQQQQ", attribute, 0, SOFTWARE, _ATTRIBUTE_BYTES, _DUMMY, 0, _SAMPLE_TYPE, 0, _FLAGS)
    struct.pack_into("<i", attribute, 92, time.CLOCK_MONOTONIC_RAW)
    return open_event(bytes(attribute), tid)


def _refuse(error: OSError) -> NfprobeError:
    reason = error.strerror or "unknown error"
    allowed = ""
    if error.errno in (errno.EPERM, errno.EACCES):
        try:
            with open(PARANOID, encoding="ascii") as file:
                allowed = f", kernel.perf_event_paranoid is {file.read().strip()}"
        except OSError:
            pass
    return NfprobeError(
        f"Preemptions are not seen (perf_event_open: {reason}{allowed}): functions may be blamed for them.",
        "nfprobe doctor",
    )


def _split(data: bytes) -> tuple[NDArray[np.void], int]:
    """Switches, and how many records the kernel lost."""
    if len(data) % _EVENT.itemsize == 0:
        events = np.frombuffer(data, _EVENT)
        if np.all((events["type"] == _RECORD_SWITCH) & (events["size"] == _EVENT.itemsize)):
            return events, 0
    # Rare: the kernel says that it lost some, or stops a thread's events from flooding.
    kept, lost, at = [], 0, 0
    while at + HEADER.size <= len(data):
        kind, _, size = HEADER.unpack_from(data, at)
        if kind == _RECORD_SWITCH and size == _EVENT.itemsize:
            kept.append(np.frombuffer(data, _EVENT, 1, at))
        elif size >= HEADER.size:
            lost += 1
        else:
            break
        at += size
    return (np.concatenate(kept) if kept else np.empty(0, _EVENT)), lost
