# SPDX-License-Identifier: Apache-2.0
"""Absences: records when threads of the target do not execute their own code, at no cost to the probes.

Each thread has perf events of its own that write into one buffer: the software event `dummy` with `context_switch`, of
which the kernel writes a record at each context switch of the thread, and, where the kernel permits it, tracepoints:
begin and end of interrupts while the thread is the current one, the task that runs next, and updates of its run time.
They need no performance counters, so they work in virtual machines, and they run only while this thread does. Nothing
runs in the target. Times are those of CLOCK_MONOTONIC_RAW, whose rate relative to the timestamp counter is constant;
they are converted to ticks here.

Read after the rings: everything that a record says happened before it is then known.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, Rows, copy_rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.perfring import NO_KERNEL, event_attributes, find_ended, map_largest_ring, open_event
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.linux.tracepoints import Field, Tracepoint, read_tracepoint
from otel_nfprobe.pipeline.absences import ABSENCE, VECTORS, AbsenceKind, no_absences

THREADS_MAX = 256  # each has a file descriptor and a buffer
TRACED_MAX = 32  # threads with tracepoints: each has some 20 file descriptors more
DESCRIPTORS_SHARE = 4  # of the limit of open files, one part of so many is for tracepoints
PAGES = (64, 16, 2)  # per buffer, largest first, the first one with tracepoints only; users may lock little memory
PARANOID = "/proc/sys/kernel/perf_event_paranoid"

_SAMPLE_TYPE = lib.PERF_SAMPLE_TID | lib.PERF_SAMPLE_TIME | lib.PERF_SAMPLE_CPU  # 24 bytes behind each record
# NO_KERNEL: nothing is counted, and without it more rights are needed.
_FLAGS = NO_KERNEL | lib.NFP_EVENT_SAMPLE_ID_ALL | lib.NFP_EVENT_CONTEXT_SWITCH

_ROOM_ROWS = 32768  # more rows than the largest buffer can yield


class _Source(NamedTuple):
    # A tracepoint, and the names of its fields that are read.
    name: str
    role: int
    kind: AbsenceKind
    code: str | int = 0  # a field, or the code itself
    value: str = ""
    text: str = ""  # the field with the name of a task or interrupt


def _sources() -> Iterator[_Source]:
    for code, name in enumerate(VECTORS):
        yield _Source(f"irq_vectors:{name}_entry", lib.NFP_TRACEPOINT_BEGIN, AbsenceKind.VECTOR, code)
        yield _Source(f"irq_vectors:{name}_exit", lib.NFP_TRACEPOINT_END, AbsenceKind.VECTOR, code)
    yield _Source("irq:irq_handler_entry", lib.NFP_TRACEPOINT_BEGIN, AbsenceKind.IRQ, "irq", text="name")
    yield _Source("irq:irq_handler_exit", lib.NFP_TRACEPOINT_END, AbsenceKind.IRQ, "irq")
    yield _Source("irq:softirq_entry", lib.NFP_TRACEPOINT_BEGIN, AbsenceKind.SOFTIRQ, "vec")
    yield _Source("irq:softirq_exit", lib.NFP_TRACEPOINT_END, AbsenceKind.SOFTIRQ, "vec")
    yield _Source("nmi:nmi_handler", lib.NFP_TRACEPOINT_DURATION, AbsenceKind.NMI, value="delta_ns")
    yield _Source("sched:sched_switch", lib.NFP_TRACEPOINT_SWITCH, AbsenceKind.SWITCH, "next_pid", text="next_comm")
    yield _Source("sched:sched_stat_runtime", lib.NFP_TRACEPOINT_RUN_TIME, AbsenceKind.STEAL, "pid", "runtime")


@dataclass
class _Watched:
    # One thread's events, at index `place` of the reader's.
    place: int
    descriptor: int
    buffer: mmap.mmap
    memory: Any  # the buffer as a C array
    tracepoints: list[int] = field(default_factory=list)  # descriptors

    def close(self) -> None:
        for descriptor in self.tracepoints:
            os.close(descriptor)
        ffi.release(self.memory)
        self.buffer.close()
        os.close(self.descriptor)


class AbsenceWatch:
    """Records the absences of the threads of one target.

    Args:
        clock: of the session; for its rate.
        is_ours: whether a thread ID belongs to the target at this moment.

    Attributes:
        lost: records that were lost to full buffers.
        throttled: times that the kernel held samples of a tracepoint back until the next tick.
        unwatched: threads beyond THREADS_MAX.
        unseen: why interrupts, steal time and what ran instead are not recorded; None: they are.
    """

    def __init__(self, clock: Clock, is_ours: Callable[[int], bool]) -> None:
        self._is_ours = is_ours
        self.lost = self.throttled = 0
        self.unwatched = 0
        self.unseen: NfprobeError | None = None
        self._clock = RawClock(clock)
        self._watched: dict[int, _Watched] = {}
        self._events = ffi.new("struct nfp_absence_event[]", THREADS_MAX)
        self._reader = ffi.new("struct nfp_absence_reader *")
        self._reader.events, self._reader.count = self._events, THREADS_MAX
        self._tids = np.zeros(THREADS_MAX, np.int64)  # by event
        self._free = list(range(THREADS_MAX))[::-1]
        self._rows = np.empty(_ROOM_ROWS, ABSENCE)
        self._tracepoint_ids = self._read_tracepoints()

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
            self._add(tid, descriptor, map_largest_ring(descriptor, PAGES if self._may_trace() else PAGES[1:]))
        except OSError as error:
            os.close(descriptor)
            raise _refuse(error) from None
        self._add_tracepoints(tid)

    def _add(self, tid: int, descriptor: int, buffer: mmap.mmap) -> None:
        memory, place = ffi.from_buffer("uint8_t[]", buffer), self._free.pop()
        self._watched[tid] = _Watched(place, descriptor, buffer, memory)
        self._tids[place] = tid
        event = self._events[place]
        event.page, event.ring, event.ring_bytes = memory, memory + mmap.PAGESIZE, len(buffer) - mmap.PAGESIZE

    def _read_tracepoints(self) -> list[int]:
        """Describes the kernel's tracepoints to the reader; returns their IDs."""
        ids: list[int] = []
        try:
            for source in _sources():
                tracepoint = read_tracepoint(source.name)
                if tracepoint is not None:
                    _describe(source, tracepoint, self._reader.tracepoints[len(ids)])
                    ids.append(tracepoint.id)
        except NfprobeError as error:
            sentence = f"Interrupts and steal time are not recorded: {error.sentence}."
            self.unseen = NfprobeError(sentence, error.next_command)
            return []
        self._reader.tracepoint_count = len(ids)
        return ids

    def _may_trace(self) -> bool:
        """Returns whether one more thread may have tracepoints."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(TRACED_MAX, limit // DESCRIPTORS_SHARE // max(1, len(self._tracepoint_ids)))
        return not self.unseen and sum(bool(other.tracepoints) for other in self._watched.values()) < most

    def _add_tracepoints(self, tid: int) -> None:
        if not self._may_trace():
            return
        watched = self._watched[tid]
        try:
            for number in self._tracepoint_ids:
                descriptor = _open_tracepoint(number, tid)
                watched.tracepoints.append(descriptor)
                fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_SET_OUTPUT, watched.descriptor)
                fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ENABLE, 0)
        except ProcessLookupError:
            return
        except OSError as error:
            for descriptor in watched.tracepoints:
                os.close(descriptor)
            watched.tracepoints.clear()
            sentence = f"Interrupts and steal time are not recorded (perf_event_open: {_explain(error)})."
            self.unseen = NfprobeError(sentence, "nfprobe doctor")

    def _remove(self, tid: int) -> None:
        watched = self._watched.pop(tid)
        self._events[watched.place] = ffi.new("struct nfp_absence_event *")[0]
        self._free.append(watched.place)
        watched.close()

    def end_gone(self) -> None:
        """Removes threads that are gone; a new thread that reuses the ID of one is a different thread."""
        ended = set(find_ended([watched.descriptor for watched in self._watched.values()]))
        for tid in [tid for tid, watched in self._watched.items() if watched.descriptor in ended]:
            self._remove(tid)

    def read(self, find_indexes: Callable[[], Mapping[int, int]]) -> Rows:
        """Returns the absences that ended since the last call.

        Args:
            find_indexes: called if there are any: maps thread IDs in the monitor's PID namespace to indexes in the
                thread table; absences of other threads are left out.

        Returns:
            rows of dtype ABSENCE, those of one thread in order of their end.
        """
        rows = self._take()
        if not len(rows):
            return no_absences()
        indexes = find_indexes()
        threads, found = np.full(THREADS_MAX, NONE, np.uint32), np.flatnonzero(np.bincount(rows["thread"]))
        threads[found] = [indexes.get(tid, NONE) for tid in self._tids[found].tolist()]
        rows["thread"] = threads[rows["thread"]]
        rows["out_ticks"], rows["in_ticks"] = self._clock.ticks(rows["out_ticks"]), self._clock.ticks(rows["in_ticks"])
        rows["stolen_ticks"] = self._clock.duration_ticks(rows["stolen_ticks"])
        known: Rows = rows[rows["thread"] != NONE]
        return known

    def _take(self) -> Rows:
        """Returns the rows of all events as struct nfp_absence, which has the layout of ABSENCE: in ns, by event."""
        parts = []
        room = ffi.cast("struct nfp_absence *", ffi.from_buffer(self._rows))
        self._reader.next = 0
        while self._reader.next < THREADS_MAX:
            count = lib.nfp_absences_take(self._reader, room, len(self._rows))
            parts.append(copy_rows(self._rows[:count]))
        self.lost, self.throttled = int(self._reader.lost), int(self._reader.throttled)
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def close(self) -> None:
        """Stops recording all threads."""
        for tid in list(self._watched):
            self._remove(tid)


def _describe(source: _Source, tracepoint: Tracepoint, out: Any) -> None:
    """Fills in struct nfp_tracepoint; a field of another size than expected is not read."""

    def offset(name: str | int, size: int, is_located: bool = False) -> int:
        found: Field | None = tracepoint.fields.get(name) if isinstance(name, str) else None
        is_known = found is not None and (found.size, found.is_located) == (size, is_located)
        return found.offset if found is not None and is_known else lib.NFP_TRACEPOINT_NO_FIELD

    out.id, out.role, out.kind = tracepoint.id, source.role, source.kind
    out.code = source.code if isinstance(source.code, int) else 0
    out.code_at, out.value_at = offset(source.code, 4), offset(source.value, 8)
    out.name_at = offset(source.text, lib.NFP_ABSENCE_NAME_BYTES)
    out.name_location_at = offset(source.text, 4, is_located=True)


def _open_event(tid: int) -> int:
    kind, config = lib.PERF_TYPE_SOFTWARE, lib.PERF_COUNT_SW_DUMMY
    return open_event(event_attributes(kind, config, _FLAGS, sample_type=_SAMPLE_TYPE), tid)


def _open_tracepoint(number: int, tid: int) -> int:
    # Each hit is a sample; enabled when its samples go into the thread's buffer.
    options = {"sample_type": _SAMPLE_TYPE | lib.PERF_SAMPLE_RAW, "sample_period": 1}
    return open_event(event_attributes(lib.PERF_TYPE_TRACEPOINT, number, lib.NFP_EVENT_DISABLED, **options), tid)


def _refuse(error: OSError) -> NfprobeError:
    return NfprobeError(
        f"Preemption is not recorded (perf_event_open: {_explain(error)}): functions may be blamed for it.",
        "nfprobe doctor",
    )


def _explain(error: OSError) -> str:
    reason = error.strerror or "unknown error"
    if error.errno in (errno.EPERM, errno.EACCES):
        try:
            with open(PARANOID, encoding="utf-8") as file:
                return f"{reason}, kernel.perf_event_paranoid is {file.read().strip()}"
        except OSError:
            pass
    return reason
