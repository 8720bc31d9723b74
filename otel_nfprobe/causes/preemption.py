# SPDX-License-Identifier: Apache-2.0
"""Preemption: records when the scheduler takes threads of the target off their CPUs, at no cost to the probes.

One perf event per thread, the software event `dummy` with `context_switch`: it counts nothing, but the kernel writes a
record into its buffer at each context switch of the thread. It needs no performance counters, so it works in virtual
machines. Nothing runs in the target. Times are those of CLOCK_MONOTONIC_RAW, whose rate relative to the timestamp
counter is constant; they are converted to ticks here.

Read after the rings: everything that a record says happened before it is then known.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, Rows, copy_rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.perfring import NO_KERNEL, event_attributes, find_ended, map_largest_ring, open_event
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.pipeline.context_switches import SWITCH, no_switches

THREADS_MAX = 256  # each has a file descriptor and a buffer
PAGES = (16, 2)  # per buffer, largest first; unprivileged users may lock little memory
PARANOID = "/proc/sys/kernel/perf_event_paranoid"

_SAMPLE_TYPE = lib.PERF_SAMPLE_TID | lib.PERF_SAMPLE_TIME | lib.PERF_SAMPLE_CPU  # 24 bytes behind each record
# NO_KERNEL: nothing is counted, and without it more rights are needed.
_FLAGS = NO_KERNEL | lib.NFP_EVENT_SAMPLE_ID_ALL | lib.NFP_EVENT_CONTEXT_SWITCH

_ROOM_ROWS = 4096  # more records than the largest buffer holds


@dataclass
class _Watched:
    # One thread's event, at index `place` of the events.
    place: int
    descriptor: int
    buffer: mmap.mmap
    memory: Any  # the buffer as a C array

    def close(self) -> None:
        ffi.release(self.memory)
        self.buffer.close()
        os.close(self.descriptor)


class SwitchWatch:
    """Records the context switches of the threads of one target.

    Args:
        clock: of the session; for its rate.
        is_ours: whether a thread ID belongs to the target at this moment.

    Attributes:
        lost: records that were lost to full buffers.
        unwatched: threads beyond THREADS_MAX.
    """

    def __init__(self, clock: Clock, is_ours: Callable[[int], bool]) -> None:
        self._is_ours = is_ours
        self.lost = 0
        self.unwatched = 0
        self._clock = RawClock(clock)
        self._watched: dict[int, _Watched] = {}
        self._events = ffi.new("struct nfp_switch_event[]", THREADS_MAX)
        self._tids = np.zeros(THREADS_MAX, np.int64)  # by event
        self._free = list(range(THREADS_MAX))[::-1]
        self._rows = np.empty(_ROOM_ROWS, SWITCH)

    def watch(self, tid: int) -> None:
        """Starts recording a thread; does nothing for one that is already watched, has ended, or does not belong to the
        target.

        Args:
            tid: in the monitor's PID namespace.

        Raises:
            NfprobeError: the kernel does not permit it.
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
        if not self._is_ours(tid):  # it has ended, and its thread ID was reused by another process
            os.close(descriptor)
            return
        try:
            self._add(tid, descriptor, map_largest_ring(descriptor, PAGES))
        except OSError as error:
            os.close(descriptor)
            raise _refuse(error) from None

    def _add(self, tid: int, descriptor: int, buffer: mmap.mmap) -> None:
        memory, place = ffi.from_buffer("uint8_t[]", buffer), self._free.pop()
        self._watched[tid] = _Watched(place, descriptor, buffer, memory)
        self._tids[place] = tid
        event = self._events[place]
        event.page, event.ring, event.ring_bytes = memory, memory + mmap.PAGESIZE, len(buffer) - mmap.PAGESIZE

    def _remove(self, tid: int) -> None:
        watched = self._watched.pop(tid)
        self._events[watched.place] = ffi.new("struct nfp_switch_event *")[0]
        self._free.append(watched.place)
        watched.close()

    def end_gone(self) -> None:
        """Removes threads that are gone; a new thread that reuses the ID of one is a different thread."""
        ended = set(find_ended([watched.descriptor for watched in self._watched.values()]))
        for tid in [tid for tid, watched in self._watched.items() if watched.descriptor in ended]:
            self._remove(tid)

    def read(self, find_indexes: Callable[[], Mapping[int, int]]) -> Rows:
        """Returns the context switches that ended since the last call.

        Args:
            find_indexes: called if there are any switches: maps thread IDs in the monitor's PID namespace to indexes in
                the thread table; switches of other threads are left out.

        Returns:
            rows of dtype SWITCH, those of one thread in order.
        """
        rows = self._take()
        if not len(rows):
            return no_switches()
        indexes = find_indexes()
        threads, found = np.full(THREADS_MAX, NONE, np.uint32), np.flatnonzero(np.bincount(rows["thread"]))
        threads[found] = [indexes.get(tid, NONE) for tid in self._tids[found].tolist()]
        rows["thread"] = threads[rows["thread"]]
        rows["out_ticks"], rows["in_ticks"] = self._clock.ticks(rows["out_ticks"]), self._clock.ticks(rows["in_ticks"])
        known: Rows = rows[rows["thread"] != NONE]
        return known

    def _take(self) -> Rows:
        """Returns the rows of all events as struct nfp_switch, which has the field layout of SWITCH: times in ns, by
        event.
        """
        next_event, lost, parts = ffi.new("uint32_t *"), ffi.new("uint64_t *"), []
        room = ffi.cast("struct nfp_switch *", ffi.from_buffer(self._rows))
        while next_event[0] < THREADS_MAX:
            count = lib.nfp_switches_take(self._events, THREADS_MAX, next_event, room, len(self._rows), lost)
            parts.append(copy_rows(self._rows[:count]))
        self.lost += int(lost[0])
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def close(self) -> None:
        """Stops recording all threads."""
        for tid in list(self._watched):
            self._remove(tid)


def _open_event(tid: int) -> int:
    kind, config = lib.PERF_TYPE_SOFTWARE, lib.PERF_COUNT_SW_DUMMY
    return open_event(event_attributes(kind, config, _FLAGS, sample_type=_SAMPLE_TYPE), tid)


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
        f"Preemption is not recorded (perf_event_open: {reason}{allowed}): functions may be blamed for it.",
        "nfprobe doctor",
    )
