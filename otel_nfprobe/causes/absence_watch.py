# SPDX-License-Identifier: Apache-2.0
"""Absences: records when threads of the target do not execute their own code, at no cost to the probes.

Each thread has perf events of its own: the software event `dummy` with `context_switch`, of which the kernel writes a
record at each context switch of the thread, and page faults. Tracepoints tell what runs next, where the thread sleeps,
its run time, and begin and end of interrupts. As the kernel takes each event of a thread off the CPU when the thread
goes to sleep, and puts it on again when it wakes (0.5 us), these are events of the CPUs that the thread may run on, if
these are few. Switches have a buffer of their own, since of the others there may be more than can be read in time.
Which task ran longest meanwhile, and who woke it, is known from further events of its CPU (cpu_watch.py). None of them
needs performance counters, so they work in virtual machines. Nothing runs in the target. Times are those of
CLOCK_MONOTONIC_RAW, whose rate relative to the timestamp counter is constant; they are converted to ticks here.

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
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, Rows, copy_rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.causes.absence_events import (
    FAULTS,
    Tells,
    TracedEvent,
    describe_tracepoints,
    event_id,
    open_faults,
    open_switches,
    open_traced,
)
from otel_nfprobe.causes.absence_texts import AbsenceTexts
from otel_nfprobe.causes.cpu_watch import CpuWatch
from otel_nfprobe.causes.firmware import FirmwareWatch
from otel_nfprobe.linux.closing import close_events
from otel_nfprobe.linux.kernelplaces import kernel_places
from otel_nfprobe.linux.perfring import find_ended, map_largest_ring
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.pipeline.absences import ABSENCE, no_absences

THREADS_MAX = 256  # each has a file descriptor and a buffer
TRACED_MAX = 32  # threads with tracepoints: each has some 30 file descriptors more
DESCRIPTORS_SHARE = 4  # of the limit of open files, one part of so many is for tracepoints
CPUS_EACH = lib.NFP_ABSENCE_BUFFERS - 2  # that a thread may run on to have tracepoints of CPUs
SHARERS_MAX = 8  # such threads on one CPU: each hit there is compared with each of them
PAGES = (64, 16, 2)  # per buffer, largest first, the first one with tracepoints only; users may lock little memory
_CPU_PAGES = {1: PAGES, 2: (32, 16, 2), 3: (16, 2), 4: (16, 2)}  # likewise, by how many CPUs a thread may run on
SLEEPS_MAX = 500  # per second, of a thread: of more sleeps some have no place, as each costs some microseconds
# Per second, of a thread: of more of these none is recorded for a while. Softirqs of the network run so often where a
# thread's own system calls send or receive: they are what it does, and two samples of each would cost it about 2 %.
FAULTS_MAX, SOFTIRQS_MAX = 2000, 2000
# Likewise, where interrupts are recorded by events of the thread. One that sleeps so often is hardly ever interrupted
# while it works.
SLEEPS_INTERRUPTED = 1000
OFF_S = 10.0
PARANOID = "/proc/sys/kernel/perf_event_paranoid"

_FIRST_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO (include/linux/proc_ns.h): there thread IDs are the kernel's own
_RAW = dtype_of("nfp_absence")
_ROOM_ROWS = 40960  # more rows than the largest buffers of one thread can yield
_SLEEPS = 4096  # whose places are told, in one look
_NOWHERE = 0xFFFFFFFF  # of `last_cpu`: it was not seen


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


class _Buffer(NamedTuple):
    buffer: mmap.mmap
    memory: Any  # the buffer as a C array


@dataclass
class _Watched:
    # One thread's events, at index `place` of the reader's.
    place: int
    descriptor: int
    buffers: list[_Buffer] = field(default_factory=list)  # of switches, of what may be too much, of each CPU
    affinity: frozenset[int] = frozenset()  # when its tracepoints were opened
    cpus: frozenset[int] = frozenset()  # whose events tell of it, by tracepoints; none: events of its own do
    faults: list[int] = field(default_factory=list)  # descriptors, of page faults: begin, minor, major
    tracepoints: dict[Tells, list[int]] = field(default_factory=dict)  # descriptors
    counted: tuple[int, int, int] = (0, 0, 0)  # page faults, sleeps, softirqs of the network until the last look
    without_faults: _Pause = field(default_factory=_Pause)
    without_network: _Pause = field(default_factory=_Pause)
    without_interrupts: _Pause = field(default_factory=_Pause)

    @property
    def many(self) -> int:
        """Descriptor of the event in whose buffer is what there may be too much of to be read in time."""
        return self.faults[0] if len(self.buffers) > 1 else self.descriptor

    @property
    def descriptors(self) -> list[int]:
        """Those of all that tells more than switches."""
        return [*(descriptor for events in self.tracepoints.values() for descriptor in events), *self.faults]

    def drop_tracepoints(self) -> list[int]:
        """Forgets what tells more than switches, and its buffers. Returns the descriptors, to be closed."""
        descriptors = self.descriptors
        self.tracepoints, self.faults, self.cpus = {}, [], frozenset()
        self.without_faults, self.without_network, self.without_interrupts = _Pause(), _Pause(), _Pause()
        self._release(1)
        return descriptors

    def drop(self) -> list[int]:
        """Forgets everything. Returns the descriptors, to be closed."""
        descriptors = [*self.drop_tracepoints(), self.descriptor]
        self._release(0)
        return descriptors

    def _release(self, first: int) -> None:
        for buffer, memory in self.buffers[first:]:
            ffi.release(memory)
            buffer.close()
        del self.buffers[first:]


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
        self._knows_global_tids = _is_first_namespace()
        self._traced = self._read_tracepoints()

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
            descriptor = open_switches(tid)
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
        if any(Tells.SLEEPS in watched.tracepoints for watched in self._watched.values()):
            self._places.wait()

    def _add(self, tid: int, descriptor: int, buffer: mmap.mmap) -> None:
        place = self._free.pop()
        watched = self._watched[tid] = _Watched(place, descriptor)
        self._tids[place] = tid
        self._events[place].last_cpu = _NOWHERE
        self._add_buffer(watched, buffer)

    def _add_buffer(self, watched: _Watched, buffer: mmap.mmap) -> None:
        memory = ffi.from_buffer("uint8_t[]", buffer)
        entry = self._events[watched.place].buffers[len(watched.buffers)]
        entry.page, entry.ring, entry.ring_bytes = memory, memory + mmap.PAGESIZE, len(buffer) - mmap.PAGESIZE
        watched.buffers.append(_Buffer(buffer, memory))

    def _read_tracepoints(self) -> list[TracedEvent]:
        """Describes the kernel's tracepoints to the reader; returns the events of each thread that hit them."""
        try:
            return describe_tracepoints(self._reader)
        except NfprobeError as error:
            sentence = f"Interrupts and steal time are not recorded: {error.sentence}."
            self.unseen = NfprobeError(sentence, error.next_command)
            return []

    def _may_trace(self, cpus: int = 1) -> bool:
        """Returns whether one more thread may have tracepoints, on so many CPUs."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        traced = [watched for watched in self._watched.values() if watched.faults]
        used = sum(len(watched.descriptors) for watched in traced) + len(FAULTS) + cpus * len(self._traced)
        return len(traced) < TRACED_MAX and used <= limit // DESCRIPTORS_SHARE

    def _choose_cpus(self, watched: _Watched) -> frozenset[int]:
        """Returns the CPUs whose events are to tell of a thread; none: events of its own are to."""
        cpus = watched.affinity
        if not self._knows_global_tids or len(watched.buffers) < 2 or not 0 < len(cpus) <= CPUS_EACH:
            return frozenset()
        others = [other.cpus for other in self._watched.values()]
        is_crowded = any(sum(cpu in other for other in others) >= SHARERS_MAX for cpu in cpus)
        return frozenset() if is_crowded or not self._may_trace(len(cpus)) else cpus

    def _add_tracepoints(self, tid: int) -> None:
        if not self._may_trace():
            return
        watched = self._watched[tid]
        watched.affinity = _affinity(tid)
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
        for which in FAULTS:
            descriptor = open_faults(which, tid)
            watched.faults.append(descriptor)
            if len(watched.faults) == 1:
                with suppress(OSError):  # this user may lock no more memory
                    self._add_buffer(watched, map_largest_ring(descriptor, PAGES))
            ids[which] = event_id(descriptor)
            _enable_into(descriptor, watched.many)

    def _close_tracepoints(self, watched: _Watched) -> None:
        self._events[watched.place].depth = 0
        descriptors = watched.drop_tracepoints()
        self._forget_buffers(watched)
        close_events(descriptors)

    def _forget_buffers(self, watched: _Watched) -> None:
        """Tells the reader of buffers that are no more."""
        for place in range(len(watched.buffers), lib.NFP_ABSENCE_BUFFERS):
            entry = self._events[watched.place].buffers[place]
            entry.page, entry.ring, entry.ring_bytes = ffi.NULL, ffi.NULL, 0

    def _open_tracepoints(self, tid: int, watched: _Watched) -> None:
        self._places.prepare()
        watched.cpus = self._choose_cpus(watched)
        try:
            for cpu in sorted(watched.cpus):
                self._open_traced(tid, watched, cpu)
        except OSError:  # it went offline, or this user may lock no more memory
            self._close_tracepoints(watched)
            self._open_faults(tid, watched)
        if not watched.cpus:
            self._open_traced(tid, watched)

    def _open_traced(self, tid: int, watched: _Watched, cpu: int = -1) -> None:
        first = -1
        for event in self._traced:
            descriptor = open_traced(event, tid, cpu)
            watched.tracepoints.setdefault(event.tells, []).append(descriptor)
            if cpu < 0:
                is_few = event.tells in (Tells.NEXT_TASK, Tells.SLEEPS)
                _enable_into(descriptor, watched.descriptor if is_few else watched.many)
                continue
            if first < 0:
                first = descriptor
                self._add_buffer(watched, map_largest_ring(descriptor, _CPU_PAGES[len(watched.cpus)]))
            _enable_into(descriptor, first)

    def _follow_affinity(self) -> None:
        """Has events of the CPUs that a thread may now run on; of one thread, should there be more that were moved."""
        for tid, watched in self._watched.items():
            if watched.tracepoints and (affinity := _affinity(tid)) != watched.affinity and affinity:
                self._close_tracepoints(watched)
                self._add_tracepoints(tid)
                return

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
            period = struct.pack("=Q", max(1, round(sleeps / SLEEPS_MAX)))
            for descriptor in watched.tracepoints.get(Tells.SLEEPS, ()):
                fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_PERIOD, period)
            if (left_out := watched.without_faults.decide(faults > FAULTS_MAX, now)) is not None:
                _switch(watched.faults[:2], left_out)
            without_network, without_interrupts = watched.without_network, watched.without_interrupts
            changed = without_network.decide(softirqs > SOFTIRQS_MAX, now) is not None
            changed |= without_interrupts.decide(sleeps > SLEEPS_INTERRUPTED and not watched.cpus, now) is not None
            if changed:
                is_off = without_interrupts.until > 0
                _switch(watched.tracepoints.get(Tells.INTERRUPTS, ()), is_off)
                _switch(watched.tracepoints.get(Tells.NETWORK, ()), is_off or without_network.until > 0)

    def take_notices(self) -> list[str]:
        """Returns sentences that were not returned before: what cannot be recorded."""
        found = [self.unseen] if self.unseen is not None else []
        refusal = self.cpus.refusal
        if refusal is not None and self.unseen is None:
            reason = _explain(refusal) if isinstance(refusal, OSError) else refusal.sentence
            sentence = f"Of tasks that run instead of a thread the first one is recorded, not the longest: {reason}."
            found.append(NfprobeError(sentence, "nfprobe doctor"))
        if self._places.is_hidden and any(event.tells == Tells.SLEEPS for event in self._traced):
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
        self._follow_affinity()
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


def _enable_into(descriptor: int, buffer: int) -> None:
    if descriptor != buffer:
        fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_SET_OUTPUT, buffer)
    fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ENABLE, 0)


def _switch(descriptors: Collection[int], is_off: bool) -> None:
    for descriptor in descriptors:
        fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_DISABLE if is_off else lib.PERF_EVENT_IOC_ENABLE, 0)


def _affinity(tid: int) -> frozenset[int]:
    """Returns the CPUs that a thread may run on; none: it has ended."""
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError:
        return frozenset()


def _is_first_namespace() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


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
