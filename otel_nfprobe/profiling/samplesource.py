# SPDX-License-Identifier: Apache-2.0
"""What makes the kernel look where a thread is: events, the most precise first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from otel_nfprobe._core import lib
from otel_nfprobe.linux.perfring import NO_KERNEL, event_attributes, open_event
from otel_nfprobe.profiling.samplerecords import READ_FORMAT, SAMPLE_TYPE

HARDWARE, SOFTWARE = lib.PERF_TYPE_HARDWARE, lib.PERF_TYPE_SOFTWARE
PRECISIONS = (3, 2, 1, 0)


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


class Placing(NamedTuple):
    """Where a source's event is opened: on a thread, in the group of `leader` (-1: none), with values or without."""

    tid: int
    leader: int = -1
    reads: bool = False


Open = Callable[[Source, int, Placing], int]


def open_source(source: Source, hertz: int, placing: Placing) -> int:
    """Opens the event that samples a thread. Raises OSError."""
    flags = lib.NFP_EVENT_FREQ | (NO_KERNEL if source.user_only else 0)
    config = lib.PERF_COUNT_HW_CPU_CYCLES if source.type == HARDWARE else lib.PERF_COUNT_SW_CPU_CLOCK
    attributes = event_attributes(source.type, config, flags, sample_freq=hertz, sample_type=SAMPLE_TYPE)
    lib.nfp_event_set_precision(attributes, source.precision)
    if placing.reads:
        attributes.sample_type, attributes.read_format = SAMPLE_TYPE | lib.PERF_SAMPLE_READ, READ_FORMAT
    return open_event(attributes, placing.tid, placing.leader)
