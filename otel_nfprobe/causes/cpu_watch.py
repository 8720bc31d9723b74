# SPDX-License-Identifier: Apache-2.0
"""CPU watch: which tasks ran on the CPUs of the target's threads, and who woke them.

A thread's own events say when it was away, and what came first, not what ran longest. So each CPU on which threads with
work run has events of its own: sched_switch there, and sched_waking of tasks that are woken onto these CPUs, on all
CPUs (a waker runs anywhere). They need the right to see whole CPUs, and are kept few: the end of idle time is no
sample, and a CPU that switches between tasks too often is given up.

What stands in the buffers is joined with rows of dtype ABSENCE in the C core (native/core/cpu_tasks.h).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.closing import close_events
from otel_nfprobe.linux.perfring import event_attributes, map_largest_ring, open_event
from otel_nfprobe.linux.tracepoints import read_tracepoint

CPUS_MAX = 64  # that threads with work run on, and that wakers are looked for on
PAGES = (64, 16, 4)  # of a buffer
SWITCHES_MAX = 5000  # per second on one CPU: each costs about a microsecond there
GIVEN_UP_S = 10.0  # until a CPU with more is looked at again
KEPT_S = 10.0  # that a CPU is watched after the last thread left it

_SAMPLE_TYPE = (
    lib.PERF_SAMPLE_TID
    | lib.PERF_SAMPLE_TIME
    | lib.PERF_SAMPLE_ADDR
    | lib.PERF_SAMPLE_ID
    | lib.PERF_SAMPLE_CPU
    | lib.PERF_SAMPLE_PERIOD
    | lib.PERF_SAMPLE_CALLCHAIN
    | lib.PERF_SAMPLE_RAW
)
_FLAGS = lib.NFP_EVENT_DISABLED | lib.NFP_EVENT_NO_KERNEL_FRAMES | lib.NFP_EVENT_NO_USER_FRAMES
_BUSY = "prev_pid != 0"  # else each wake-up of a thread that is alone on its CPU would be two samples


@dataclass
class _Cpu:
    # The events of one CPU, at index `place` of the reader's.
    place: int
    buffer: mmap.mmap
    memory: Any  # the buffer as a C array
    runs: Any  # memory of the reader; None: only wakings are read here
    descriptors: list[int] = field(default_factory=list)

    def drop(self) -> list[int]:
        """Forgets its buffer. Returns its descriptors, to be closed."""
        ffi.release(self.memory)
        self.buffer.close()
        return self.descriptors


class CpuWatch:
    """Records the tasks on some CPUs.

    Attributes:
        refusal: why nothing is recorded; None: it is.
        lost: records that were lost to full buffers.
        crowded: CPUs that switch between tasks too often.
    """

    def __init__(self) -> None:
        self.refusal: OSError | NfprobeError | None = None
        self.crowded: dict[int, float] = {}  # and until when they are given up
        self._cpus: dict[int, _Cpu] = {}
        self._followed: frozenset[int] = frozenset()
        self._seen: dict[int, float] = {}  # when a thread with work was on a CPU last
        self._events = ffi.new("struct nfp_cpu_event[]", 2 * CPUS_MAX)
        self._reader = ffi.new("struct nfp_cpu_reader *")
        self._reader.events, self._reader.count = self._events, 2 * CPUS_MAX
        self._free = list(range(2 * CPUS_MAX))[::-1]
        self._counted: dict[int, int] = {}
        self._counted_at = time.monotonic()
        self._describe()

    @property
    def followed(self) -> frozenset[int]:
        """CPUs whose tasks are recorded at present."""
        return self._followed

    @property
    def lost(self) -> int:
        return int(self._reader.lost)

    def _describe(self) -> None:
        """Tells the reader where the fields of the tracepoints are."""
        layout = self._reader.layout
        try:
            switch, waking = read_tracepoint("sched:sched_switch"), read_tracepoint("sched:sched_waking")
            if switch is None or waking is None:
                raise NfprobeError("this kernel has no sched_switch", "nfprobe doctor")
            layout.switch_id, layout.waking_id = switch.id, waking.id
            layout.previous_at, layout.next_at = switch.fields["prev_pid"].offset, switch.fields["next_pid"].offset
            layout.next_name_at, layout.woken_at = switch.fields["next_comm"].offset, waking.fields["pid"].offset
        except NfprobeError as error:
            self.refusal = error
        except KeyError:
            self.refusal = NfprobeError("sched_switch has other fields", "nfprobe doctor")

    def follow(self, cpus: Iterable[int]) -> None:
        """Records these CPUs, and for a while those of earlier calls."""
        now = time.monotonic()
        self._seen = {cpu: at for cpu, at in self._seen.items() if at > now - KEPT_S} | dict.fromkeys(cpus, now)
        wanted = frozenset(sorted(cpu for cpu in self._seen if self.crowded.get(cpu, 0.0) < now)[:CPUS_MAX])
        if self.refusal is not None or wanted == self._followed:
            return
        self.close()
        self._followed = wanted
        try:
            for cpu in sorted(wanted):
                self._open(cpu, wanted)
            if wanted:
                for cpu in sorted(_online_cpus() - wanted)[:CPUS_MAX]:
                    with suppress(OSError):  # it may be going offline
                        self._open(cpu, wanted)
        except OSError as error:
            self.close()
            self.refusal = error

    def _open(self, cpu: int, wanted: frozenset[int]) -> None:
        targets = " || ".join(f"target_cpu == {number}" for number in sorted(wanted))
        events = [(self._reader.layout.waking_id, targets)]
        if cpu in wanted:
            events.insert(0, (self._reader.layout.switch_id, _BUSY))
        descriptors: list[int] = []
        try:
            for number, condition in events:
                descriptors.append(_open_tracepoint(number, cpu, condition))
            buffer = map_largest_ring(descriptors[0], PAGES if cpu in wanted else PAGES[1:])
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        memory, place = ffi.from_buffer("uint8_t[]", buffer), self._free.pop()
        runs = ffi.new("struct nfp_cpu_run[]", lib.NFP_CPU_RUNS) if cpu in wanted else None
        self._cpus[cpu] = _Cpu(place, buffer, memory, runs, descriptors)
        self._events[place] = ffi.new("struct nfp_cpu_event *")[0]
        event = self._events[place]
        event.cpu, event.runs = cpu, runs or ffi.NULL
        event.page, event.ring, event.ring_bytes = memory, memory + mmap.PAGESIZE, len(buffer) - mmap.PAGESIZE
        for descriptor in descriptors[1:]:
            fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_SET_OUTPUT, descriptors[0])
        for descriptor in descriptors:
            fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ENABLE, 0)

    def explain(self, rows: Rows, tids: np.ndarray) -> None:
        """Names in rows of context switches the task that ran longest meanwhile, and in them all who woke whom.

        Args:
            rows: struct nfp_absence, changed in place; read since every one of them began.
            tids: of the thread of each, in the kernel's own PID namespace.
        """
        lib.nfp_cpus_read(self._reader)
        self._note_crowded()
        chosen = np.flatnonzero((tids != 0) & np.isin(rows["kind"], _EXPLAINED) & _is_worth(rows))
        if not len(chosen):
            return
        first = ffi.cast("struct nfp_absence *", ffi.from_buffer(rows))
        for place, tid in zip(chosen.tolist(), tids[chosen].tolist(), strict=True):
            lib.nfp_cpus_explain(self._reader, tid, first + place)

    def _note_crowded(self) -> None:
        now = time.monotonic()
        if now - self._counted_at < 1.0:
            return
        counts = {cpu: int(self._events[opened.place].switches) for cpu, opened in self._cpus.items()}
        for cpu, count in counts.items():
            if count - self._counted.get(cpu, 0) > SWITCHES_MAX * (now - self._counted_at):
                self.crowded[cpu] = now + GIVEN_UP_S
        self._counted, self._counted_at = counts, now

    def close(self) -> None:
        """Stops recording."""
        descriptors: list[int] = []
        for opened in self._cpus.values():
            self._events[opened.place].page = ffi.NULL
            self._free.append(opened.place)
            descriptors += opened.drop()
        if descriptors:
            close_events(descriptors)
        self._cpus.clear()
        self._counted.clear()
        self._followed = frozenset()


_EXPLAINED = (lib.NFP_ABSENCE_SWITCH, lib.NFP_ABSENCE_FAULT, lib.NFP_ABSENCE_CALL, lib.NFP_ABSENCE_WAIT)


def _is_worth(rows: Rows) -> np.ndarray:
    """Who woke a thread is told only where it is known in what it slept: that is a sample of them."""
    worth: np.ndarray = ((rows["flags"] & lib.NFP_ABSENCE_PREEMPTED) != 0) | (rows["sleep"] != 0)
    return worth


def _online_cpus() -> frozenset[int]:
    try:
        with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
            ranges = [part.split("-") for part in file.read().strip().split(",")]
        return frozenset(cpu for part in ranges for cpu in range(int(part[0]), int(part[-1]) + 1))
    except (OSError, ValueError):
        return frozenset()


def _open_tracepoint(number: int, cpu: int, condition: str) -> int:
    options = {"sample_type": _SAMPLE_TYPE, "sample_period": 1}
    attributes = event_attributes(lib.PERF_TYPE_TRACEPOINT, number, _FLAGS, **options)
    return open_event(attributes, -1, cpu=cpu, condition=condition)
