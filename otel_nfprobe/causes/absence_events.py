# SPDX-License-Identifier: Apache-2.0
"""Absence events: the perf events that tell when a thread does not execute its own code, and what it does instead.

Switches and page faults are events of the thread. Tracepoints can be events of the thread as well, or of a CPU, with
the thread as a condition. None of them counts anything. What they write is read by native/core/absences.h, to which
`describe_tracepoints` says where the fields are.
"""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from otel_nfprobe._core import lib
from otel_nfprobe.base.processors import HOST
from otel_nfprobe.linux.perfring import NO_KERNEL, event_attributes, open_event
from otel_nfprobe.linux.tracepoints import Field, Tracepoint, read_tracepoint
from otel_nfprobe.pipeline.absences import VECTORS, AbsenceKind

FAULTS = {
    lib.NFP_FAULT_BEGIN: lib.PERF_COUNT_SW_PAGE_FAULTS,
    lib.NFP_FAULT_MINOR: lib.PERF_COUNT_SW_PAGE_FAULTS_MIN,
    lib.NFP_FAULT_MAJOR: lib.PERF_COUNT_SW_PAGE_FAULTS_MAJ,
}

_SAMPLE_TYPE = lib.PERF_SAMPLE_TID | lib.PERF_SAMPLE_TIME | lib.PERF_SAMPLE_ID | lib.PERF_SAMPLE_CPU
# NO_KERNEL: nothing is counted, and without it more rights are needed.
_FLAGS = NO_KERNEL | lib.NFP_EVENT_SAMPLE_ID_ALL | lib.NFP_EVENT_CONTEXT_SWITCH
# All that write into one buffer have the same layout. Without PERIOD an update of run time makes as many samples as it
# has ns, until the kernel throttles the event.
_SAMPLE_TYPE_FULL = (
    _SAMPLE_TYPE | lib.PERF_SAMPLE_ADDR | lib.PERF_SAMPLE_PERIOD | lib.PERF_SAMPLE_CALLCHAIN | lib.PERF_SAMPLE_RAW
)
# With PERIOD each hit is a sample, whatever its event's period. READ stands in the same place of a sample.
_SAMPLE_TYPE_SLEEP = (_SAMPLE_TYPE_FULL & ~lib.PERF_SAMPLE_PERIOD) | lib.PERF_SAMPLE_READ | lib.PERF_SAMPLE_REGS_USER
_NO_FRAMES = lib.NFP_EVENT_NO_KERNEL_FRAMES | lib.NFP_EVENT_NO_USER_FRAMES
_GET_ID = struct.Struct("=Q")


class Tells(Enum):
    """What an event tells of a thread."""

    INTERRUPTS = "begin and end of interrupts, but for the network's softirqs"
    NETWORK = "begin and end of the network's softirqs"
    RUN_TIME = "how long it ran"
    NEXT_TASK = "what runs next, when it was preempted"
    SLEEPS = "where it goes to sleep"


class TracedEvent(NamedTuple):
    """A hit of a tracepoint that tells of a thread.

    Attributes:
        number: the tracepoint's ID.
        thread: its field with the thread ID, in the kernel's own PID namespace.
        condition: of other fields; empty: none.
    """

    tells: Tells
    number: int
    thread: str
    condition: str = ""


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


def describe_tracepoints(reader: Any) -> list[TracedEvent]:
    """Tells struct nfp_absence_reader of the kernel's tracepoints. Returns the events to be opened.

    Raises:
        NfprobeError: tracefs cannot be read.
    """
    events: list[TracedEvent] = []
    count = 0
    for source in _sources():
        tracepoint = read_tracepoint(source.name)
        if tracepoint is not None:
            _describe(source, tracepoint, reader.tracepoints[count])
            events += _events_of(source.kind, tracepoint.id)
            count += 1
    reader.tracepoint_count = count
    return events


def _events_of(kind: AbsenceKind, number: int) -> Iterator[TracedEvent]:
    if kind == AbsenceKind.SWITCH:  # TASK_REPORT; above it: preempted
        yield TracedEvent(Tells.NEXT_TASK, number, "prev_pid", "!(prev_state & 255)")
        yield TracedEvent(Tells.SLEEPS, number, "prev_pid", "prev_state & 255")
    elif kind == AbsenceKind.STEAL:
        yield TracedEvent(Tells.RUN_TIME, number, "pid")
    elif kind == AbsenceKind.SOFTIRQ:  # NET_TX, NET_RX (include/linux/interrupt.h)
        yield TracedEvent(Tells.INTERRUPTS, number, "common_pid", "vec != 2 && vec != 3")
        yield TracedEvent(Tells.NETWORK, number, "common_pid", "(vec == 2 || vec == 3)")
    else:
        yield TracedEvent(Tells.INTERRUPTS, number, "common_pid")


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


def open_switches(tid: int) -> int:
    """Opens the event in whose buffer are a thread's switches. Returns its descriptor; raises as open_event."""
    kind, config = lib.PERF_TYPE_SOFTWARE, lib.PERF_COUNT_SW_DUMMY
    return open_event(event_attributes(kind, config, _FLAGS, sample_type=_SAMPLE_TYPE), tid)


def open_faults(which: int, tid: int) -> int:
    """Opens an event of a thread's page faults, disabled. Returns its descriptor; raises as open_event.

    Args:
        which: key of FAULTS.
    """
    options = {"sample_type": _SAMPLE_TYPE_FULL, "sample_period": 1}
    flags = lib.NFP_EVENT_DISABLED | NO_KERNEL | _NO_FRAMES
    return open_event(event_attributes(lib.PERF_TYPE_SOFTWARE, FAULTS[which], flags, **options), tid)


def event_id(descriptor: int) -> int:
    """Returns the ID that samples of an event have."""
    number: int = _GET_ID.unpack(fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ID, bytes(_GET_ID.size)))[0]
    return number


def open_traced(event: TracedEvent, tid: int, cpu: int) -> int:
    """Opens an event of which each hit is a sample, disabled: it is enabled when its samples go into the right buffer.

    Args:
        tid: of the thread that it tells of; on a CPU, as the kernel's own PID namespace has it.
        cpu: the event is this CPU's; -1: the thread's.

    Returns:
        the descriptor.

    Raises:
        OSError: as open_event.
    """
    options, flags = {"sample_type": _SAMPLE_TYPE_FULL, "sample_period": 1}, lib.NFP_EVENT_DISABLED | _NO_FRAMES
    if event.tells == Tells.SLEEPS:  # with the kernel's frames, and the first argument of the system call
        options |= {"sample_type": _SAMPLE_TYPE_SLEEP, "sample_max_stack": lib.NFP_ABSENCE_FRAMES}
        options |= {"sample_regs_user": HOST.perf_argument}
        flags = lib.NFP_EVENT_DISABLED | lib.NFP_EVENT_NO_USER_FRAMES
    attributes = event_attributes(lib.PERF_TYPE_TRACEPOINT, event.number, flags, **options)
    if cpu < 0:
        return open_event(attributes, tid, condition=event.condition)
    conditions = filter(None, (f"{event.thread} == {tid}", event.condition))
    return open_event(attributes, -1, cpu=cpu, condition=" && ".join(conditions))
