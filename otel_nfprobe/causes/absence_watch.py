# SPDX-License-Identifier: Apache-2.0
"""Absences: records when threads of the target do not execute their own code, at no cost to the probes.

Each thread has perf events of its own: the software event `dummy` with `context_switch`, of which the kernel writes a
record at each context switch of the thread, and, where the kernel permits it, tracepoints of the task that runs next
and of where it sleeps; these write into one buffer. Into a second one go page faults and tracepoints of which there may
be more than can be read in time: begin and end of interrupts while the thread is the current one, and updates of its
run time. Which task ran longest meanwhile, and who woke it, is known from events of its CPU
(cpu_watch.py). They need no performance counters, so they work in virtual machines, and they run only while this thread
does. Nothing runs in the target. Times are those of CLOCK_MONOTONIC_RAW, whose rate relative to the timestamp counter
is constant; they are converted to ticks here.

Read after the rings: everything that a record says happened before it is then known.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, Rows, copy_rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.base.processors import HOST
from otel_nfprobe.causes.absence_texts import AbsenceTexts
from otel_nfprobe.causes.cpu_watch import CpuWatch
from otel_nfprobe.causes.firmware import FirmwareWatch
from otel_nfprobe.linux.kernelplaces import kernel_places
from otel_nfprobe.linux.perfring import (
    NO_KERNEL,
    close_events,
    event_attributes,
    find_ended,
    map_largest_ring,
    open_event,
    set_filter,
)
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.linux.tracepoints import Field, Tracepoint, read_tracepoint
from otel_nfprobe.pipeline.absences import ABSENCE, VECTORS, AbsenceKind, no_absences

THREADS_MAX = 256  # each has a file descriptor and a buffer
TRACED_MAX = 32  # threads with tracepoints: each has some 30 file descriptors more
DESCRIPTORS_SHARE = 4  # of the limit of open files, one part of so many is for tracepoints
PAGES = (64, 16, 2)  # per buffer, largest first, the first one with tracepoints only; users may lock little memory
SLEEPS_MAX = 500  # per second, of a thread: of more sleeps some have no place, as each costs some microseconds
# Per second, of a thread: of more of these none is recorded for a while. Softirqs of the network run so often where a
# thread's own system calls send or receive: they are what it does, and two samples of each would cost it about 2 %.
FAULTS_MAX, SOFTIRQS_MAX = 2000, 2000
# Likewise: the kernel takes a thread's events off the CPU when it goes to sleep, and puts them on again when it wakes,
# 0.2 us each. A thread that sleeps so often is hardly ever interrupted while it works.
SLEEPS_INTERRUPTED = 1000
OFF_S = 10.0
PARANOID = "/proc/sys/kernel/perf_event_paranoid"

_SAMPLE_TYPE = lib.PERF_SAMPLE_TID | lib.PERF_SAMPLE_TIME | lib.PERF_SAMPLE_ID | lib.PERF_SAMPLE_CPU
# NO_KERNEL: nothing is counted, and without it more rights are needed.
_FLAGS = NO_KERNEL | lib.NFP_EVENT_SAMPLE_ID_ALL | lib.NFP_EVENT_CONTEXT_SWITCH
# All that write into one buffer have the same layout. Without PERIOD an update of run time makes as many samples as it
# has ns, until the kernel throttles the event.
_SAMPLE_TYPE_FULL = (
    _SAMPLE_TYPE | lib.PERF_SAMPLE_ADDR | lib.PERF_SAMPLE_PERIOD | lib.PERF_SAMPLE_CALLCHAIN | lib.PERF_SAMPLE_RAW
)
_NO_FRAMES = lib.NFP_EVENT_NO_KERNEL_FRAMES | lib.NFP_EVENT_NO_USER_FRAMES

_PREEMPTED, _ASLEEP = "!(prev_state & 255)", "prev_state & 255"  # TASK_REPORT; above it: preempted
_NO_NETWORK, _NO_FILTER = "vec != 2 && vec != 3", "0"  # NET_TX and NET_RX (include/linux/interrupt.h)
INTERRUPTS = (AbsenceKind.VECTOR, AbsenceKind.IRQ, AbsenceKind.SOFTIRQ, AbsenceKind.NMI)
_FAULTS = {
    lib.NFP_FAULT_BEGIN: lib.PERF_COUNT_SW_PAGE_FAULTS,
    lib.NFP_FAULT_MINOR: lib.PERF_COUNT_SW_PAGE_FAULTS_MIN,
    lib.NFP_FAULT_MAJOR: lib.PERF_COUNT_SW_PAGE_FAULTS_MAJ,
}
_GET_ID = struct.Struct("=Q")

_RAW = dtype_of("nfp_absence")
_ROOM_ROWS = 32768  # more rows than the largest buffer can yield
_SLEEPS = 4096  # whose places are told, in one look
_NOWHERE = 0xFFFFFFFF  # of `last_cpu`: it was not seen


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
class _Pause:
    # Of events that come, or cost, too much.
    until: float = 0.0

    def decide(self, is_too_much: bool, now: float) -> bool | None:
        """Returns whether to leave them out from now on; None: as before."""
        is_new = is_too_much != (self.until > 0.0)
        if is_too_much:
            self.until = now + OFF_S
        elif self.until and self.until < now:
            self.until = 0.0
        else:
            return None
        return is_too_much if is_new else None


@dataclass
class _Watched:
    # One thread's events, at index `place` of the reader's.
    place: int
    descriptor: int
    buffer: mmap.mmap
    memory: Any  # the buffer as a C array
    tracepoints: list[int] = field(default_factory=list)  # descriptors
    faults: list[int] = field(default_factory=list)  # of page faults: begin, minor, major
    more: mmap.mmap | None = None  # the second buffer; None: all go into the first
    more_memory: Any = None
    sleeps: int = -1  # descriptor of the tracepoint that tells where it sleeps
    softirqs: list[int] = field(default_factory=list)  # those of the tracepoints that tell softirqs
    interrupts: list[int] = field(default_factory=list)  # likewise, interrupts and softirqs
    counted: tuple[int, int, int] = (0, 0, 0)  # page faults, sleeps, softirqs of the network until the last look
    without_faults: _Pause = field(default_factory=_Pause)
    without_network: _Pause = field(default_factory=_Pause)
    without_interrupts: _Pause = field(default_factory=_Pause)

    def enable(self, descriptor: int) -> None:
        """Starts an event of which there may be too many to be read in time."""
        if self.more is None:
            _enable_into(descriptor, self.descriptor)
        elif descriptor == self.faults[0]:  # the second buffer is its own
            fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ENABLE, 0)
        else:
            _enable_into(descriptor, self.faults[0])

    def drop_tracepoints(self) -> list[int]:
        """Forgets them and their buffer. Returns the descriptors, to be closed."""
        descriptors = [*self.tracepoints, *self.faults]
        self.sleeps = -1
        self.tracepoints.clear()
        self.softirqs.clear()
        self.interrupts.clear()
        self.faults.clear()
        self.without_faults, self.without_network, self.without_interrupts = _Pause(), _Pause(), _Pause()
        if self.more is not None:
            ffi.release(self.more_memory)
            self.more.close()
            self.more = self.more_memory = None
        return descriptors

    def drop(self) -> list[int]:
        """Forgets everything. Returns the descriptors, to be closed."""
        descriptors = [*self.drop_tracepoints(), self.descriptor]
        ffi.release(self.memory)
        self.buffer.close()
        return descriptors


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
        self.cpus = CpuWatch()
        self.firmware = FirmwareWatch()
        self._places = kernel_places()
        self._texts = AbsenceTexts(self._places)
        self._working: frozenset[int] = frozenset()
        self._told: set[str] = set()
        self._clock = RawClock(clock)
        self._watched: dict[int, _Watched] = {}
        self._events = ffi.new("struct nfp_absence_event[]", THREADS_MAX)
        self._reader = ffi.new("struct nfp_absence_reader *")
        self._reader.events, self._reader.count = self._events, THREADS_MAX
        self._tids = np.zeros(THREADS_MAX, np.int64)  # by event
        self._free = list(range(THREADS_MAX))[::-1]
        self._rows = np.empty(_ROOM_ROWS, _RAW)
        self._sleeps = ffi.new("struct nfp_sleep[]", _SLEEPS)
        self._reader.sleeps, self._reader.sleep_room = self._sleeps, _SLEEPS
        self._limited_at = time.monotonic()
        self._switch_id = 0
        self._softirq_ids: list[int] = []
        self._interrupt_ids: list[int] = []
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

    def wait_for_names(self) -> None:
        """Waits for the kernel's symbols, if call chains are recorded; before recording is enabled."""
        if any(watched.sleeps >= 0 for watched in self._watched.values()):
            self._places.wait()

    def _add(self, tid: int, descriptor: int, buffer: mmap.mmap) -> None:
        memory, place = ffi.from_buffer("uint8_t[]", buffer), self._free.pop()
        self._watched[tid] = _Watched(place, descriptor, buffer, memory)
        self._tids[place] = tid
        event = self._events[place]
        event.last_cpu = _NOWHERE
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
                    if source.role == lib.NFP_TRACEPOINT_SWITCH:
                        self._switch_id = tracepoint.id
                    if source.kind == AbsenceKind.SOFTIRQ:
                        self._softirq_ids.append(tracepoint.id)
                    if source.kind in INTERRUPTS:
                        self._interrupt_ids.append(tracepoint.id)
        except NfprobeError as error:
            sentence = f"Interrupts and steal time are not recorded: {error.sentence}."
            self.unseen = NfprobeError(sentence, error.next_command)
            return []
        self._reader.tracepoint_count = len(ids)
        return ids

    def _may_trace(self) -> bool:
        """Returns whether one more thread may have tracepoints."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        each = len(self._tracepoint_ids) + 1 + len(_FAULTS)
        most = min(TRACED_MAX, limit // DESCRIPTORS_SHARE // each)
        return sum(bool(other.faults) for other in self._watched.values()) < most

    def _add_tracepoints(self, tid: int) -> None:
        if not self._may_trace():
            return
        watched = self._watched[tid]
        try:
            self._open_faults(tid, watched)
            if not self.unseen:
                self._open_tracepoints(tid, watched)
        except ProcessLookupError:
            return
        except OSError as error:
            self._close_tracepoints(watched)
            sentence = f"Interrupts and steal time are not recorded (perf_event_open: {_explain(error)})."
            self.unseen = NfprobeError(sentence, "nfprobe doctor")

    def _open_faults(self, tid: int, watched: _Watched) -> None:
        ids = self._events[watched.place].fault_ids
        for which, config in _FAULTS.items():
            options = {"sample_type": _SAMPLE_TYPE_FULL, "sample_period": 1}
            flags = lib.NFP_EVENT_DISABLED | NO_KERNEL | _NO_FRAMES
            descriptor = open_event(event_attributes(lib.PERF_TYPE_SOFTWARE, config, flags, **options), tid)
            watched.faults.append(descriptor)
            if len(watched.faults) == 1:
                self._map_more(watched)
            id_ = fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ID, bytes(_GET_ID.size))
            ids[which] = _GET_ID.unpack(id_)[0]
            watched.enable(descriptor)

    def _map_more(self, watched: _Watched) -> None:
        """Gives a thread its second buffer, if this user may lock as much memory."""
        try:
            watched.more = map_largest_ring(watched.faults[0], PAGES)
        except OSError:
            return
        watched.more_memory = ffi.from_buffer("uint8_t[]", watched.more)
        event, memory = self._events[watched.place], watched.more_memory
        event.more_page, event.more_ring = memory, memory + mmap.PAGESIZE
        event.more_bytes = len(watched.more) - mmap.PAGESIZE

    def _close_tracepoints(self, watched: _Watched) -> None:
        event = self._events[watched.place]
        event.more_page, event.more_ring, event.more_bytes, event.depth = ffi.NULL, ffi.NULL, 0, 0
        close_events(watched.drop_tracepoints())

    def _open_tracepoints(self, tid: int, watched: _Watched) -> None:
        for number in self._tracepoint_ids:
            descriptor = _open_tracepoint(number, tid)
            watched.tracepoints.append(descriptor)
            if number == self._switch_id:
                set_filter(descriptor, _PREEMPTED)
                _enable_into(descriptor, watched.descriptor)
                continue
            if number in self._softirq_ids:
                watched.softirqs.append(descriptor)
            if number in self._interrupt_ids:
                watched.interrupts.append(descriptor)
            watched.enable(descriptor)
        if self._switch_id:
            self._places.prepare()
            descriptor = _open_sleeps(self._switch_id, tid)
            watched.tracepoints.append(descriptor)
            watched.sleeps = descriptor
            set_filter(descriptor, _ASLEEP)
            _enable_into(descriptor, watched.descriptor)

    def follow_work(self, tids: Collection[int]) -> None:
        """Says which threads have work: these get tracepoints before others, and their CPUs are watched.

        Args:
            tids: as for `watch`; others than watched ones do not matter.
        """
        self._working = frozenset(tids) & self._watched.keys()
        for tid in sorted(self._working):
            if self._watched[tid].faults:
                continue
            if not self._may_trace():
                idle = next((other for other in self._watched if self._has_idle_tracepoints(other)), None)
                if idle is None:
                    return
                self._close_tracepoints(self._watched[idle])
            self._add_tracepoints(tid)

    def _has_idle_tracepoints(self, tid: int) -> bool:
        return bool(self._watched[tid].faults) and tid not in self._working

    def _limit_samples(self) -> None:
        """Leaves out what comes too often: minor page faults, softirqs of the network, and some of the sleeps; and the
        interrupts of threads that sleep too often.
        """
        now = time.monotonic()
        elapsed_s, self._limited_at = max(now - self._limited_at, 0.1), now
        for watched in self._watched.values():
            event = self._events[watched.place]
            before, watched.counted = watched.counted, (event.faults, event.sleeps, event.network_softirqs)
            faults, sleeps, softirqs = (
                (new - old) % (1 << 32) / elapsed_s for old, new in zip(before, watched.counted, strict=True)
            )
            if watched.sleeps >= 0:
                period = struct.pack("=Q", max(1, round(sleeps / SLEEPS_MAX)))
                fcntl.ioctl(watched.sleeps, lib.PERF_EVENT_IOC_PERIOD, period)
            if (left_out := watched.without_faults.decide(faults > FAULTS_MAX, now)) is not None:
                _switch(watched.faults[:2], left_out)
            if (left_out := watched.without_network.decide(softirqs > SOFTIRQS_MAX, now)) is not None:
                _filter(watched.softirqs, _NO_NETWORK if left_out else _NO_FILTER)
            if (left_out := watched.without_interrupts.decide(sleeps > SLEEPS_INTERRUPTED, now)) is not None:
                _switch(watched.interrupts, left_out)

    def take_notices(self) -> list[str]:
        """Returns sentences that were not returned before: what cannot be recorded."""
        found = [self.unseen] if self.unseen is not None else []
        refusal = self.cpus.refusal
        if refusal is not None and self.unseen is None:
            reason = _explain(refusal) if isinstance(refusal, OSError) else refusal.sentence
            sentence = f"Of tasks that run instead of a thread the first one is recorded, not the longest: {reason}."
            found.append(NfprobeError(sentence, "nfprobe doctor"))
        if self._places.is_hidden and self._switch_id:
            sentence = "In which system calls threads sleep is not recorded: /proc/kallsyms hides addresses."
            found.append(NfprobeError(sentence, "nfprobe doctor"))
        if self.lost or self.throttled or self.cpus.lost:
            sentence = "The kernel lost records of what kept threads from running: some causes may be wrong."
            found.append(NfprobeError(sentence, "nfprobe doctor"))
        if any(watched.without_interrupts.until for watched in self._watched.values()):
            most = f"{SLEEPS_INTERRUPTED:,}"
            sentence = f"Interrupts of threads that sleep more than {most} times a second are not recorded."
            found.append(NfprobeError(sentence, "nfprobe doctor"))
        for cpu in self.cpus.crowded:
            sentence = f"CPU {cpu} switches between tasks so often that the first one is recorded, not the longest."
            found.append(NfprobeError(sentence, "nfprobe doctor"))
        fresh = [error.sentence for error in found if error.sentence not in self._told]
        self._told.update(fresh)
        return fresh

    def _remove(self, tids: Collection[int]) -> None:
        descriptors: list[int] = []
        for tid in tids:
            watched = self._watched.pop(tid)
            self._events[watched.place] = ffi.new("struct nfp_absence_event *")[0]
            self._free.append(watched.place)
            descriptors += watched.drop()
        if descriptors:
            close_events(descriptors)

    def end_gone(self) -> None:
        """Removes threads that are gone; a new thread that reuses the ID of one is a different thread."""
        self._limit_samples()
        ended = set(find_ended([watched.descriptor for watched in self._watched.values()]))
        self._remove([tid for tid, watched in self._watched.items() if watched.descriptor in ended])

    def read(self, find_indexes: Callable[[], Mapping[int, int]]) -> Rows:
        """Returns the absences that ended since the last call.

        Args:
            find_indexes: called if there are any: maps thread IDs in the monitor's PID namespace to indexes in the
                thread table; absences of other threads are left out.

        Returns:
            rows of dtype ABSENCE, those of one thread in order of their end.
        """
        places = [self._watched[tid].place for tid in self._working if tid in self._watched]
        cpus = {place: cpu for place in places if (cpu := int(self._events[place].last_cpu)) != _NOWHERE}
        self.cpus.follow(cpus.values())
        rows = np.concatenate((self._take(), self.firmware.read(cpus)))
        if not len(rows):
            return no_absences()
        indexes = find_indexes()
        threads, found = np.full(THREADS_MAX, NONE, np.uint32), np.flatnonzero(np.bincount(rows["thread"]))
        threads[found] = [indexes.get(tid, NONE) for tid in self._tids[found].tolist()]
        rows["thread"] = threads[rows["thread"]]
        rows["out_ticks"], rows["in_ticks"] = self._clock.ticks(rows["out_ticks"]), self._clock.ticks(rows["in_ticks"])
        rows["part_ticks"] = self._clock.duration_ticks(rows["part_ticks"])
        rows["woken_ticks"] = np.where(rows["woken_ticks"], self._clock.ticks(rows["woken_ticks"]), 0)
        known: Rows = rows[rows["thread"] != NONE]
        return known

    def _take(self) -> Rows:
        """Returns the rows of all events: times in ns, the event for the thread."""
        parts = []
        room = ffi.cast("struct nfp_absence *", ffi.from_buffer(self._rows))
        self._reader.next = 0
        while self._reader.next < THREADS_MAX:
            count = lib.nfp_absences_take(self._reader, room, len(self._rows))
            if not count:
                continue
            rows = copy_rows(self._rows[:count])
            found, where = np.unique(rows["event"], return_inverse=True)
            tids = np.array([self._events[place].global_tid for place in found.tolist()], np.uint32)
            self.cpus.explain(rows, tids[where])
            self._texts.fill(rows, self._tids[rows["event"]], self._sleeps)
            parts.append(rows.view(ABSENCE))
        self.lost, self.throttled = int(self._reader.lost), int(self._reader.throttled)
        return np.concatenate(parts) if parts else no_absences()

    def close(self) -> None:
        """Stops recording all threads."""
        self.cpus.close()
        self.firmware.close()
        self._remove(list(self._watched))


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
    options = {"sample_type": _SAMPLE_TYPE_FULL, "sample_period": 1}
    flags = lib.NFP_EVENT_DISABLED | _NO_FRAMES
    return open_event(event_attributes(lib.PERF_TYPE_TRACEPOINT, number, flags, **options), tid)


def _open_sleeps(number: int, tid: int) -> int:
    """As _open_tracepoint, of switches, with the kernel's frames and the first argument of the system call."""
    options = {"sample_type": _SAMPLE_TYPE_FULL | lib.PERF_SAMPLE_REGS_USER, "sample_period": 1}
    options |= {"sample_regs_user": HOST.perf_argument, "sample_max_stack": lib.NFP_ABSENCE_FRAMES}
    flags = lib.NFP_EVENT_DISABLED | lib.NFP_EVENT_NO_USER_FRAMES
    return open_event(event_attributes(lib.PERF_TYPE_TRACEPOINT, number, flags, **options), tid)


def _enable_into(descriptor: int, buffer: int) -> None:
    fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_SET_OUTPUT, buffer)
    fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ENABLE, 0)


def _switch(descriptors: Collection[int], is_off: bool) -> None:
    for descriptor in descriptors:
        fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_DISABLE if is_off else lib.PERF_EVENT_IOC_ENABLE, 0)


def _filter(descriptors: Collection[int], text: str) -> None:
    for descriptor in descriptors:
        set_filter(descriptor, text)


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
