# SPDX-License-Identifier: Apache-2.0
"""What makes the kernel look where a thread is: events, the most precise first."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from otel_nfprobe.linux.perfring import NO_KERNEL, SOFTWARE, USE_CLOCK, open_event
from otel_nfprobe.profiling.samplerecords import READ_FORMAT, READ_VALUES, SAMPLE_TYPE

HARDWARE, CYCLES, CPU_CLOCK = 0, 0, 0
PRECISIONS = (3, 2, 1, 0)

_ATTRIBUTE_BYTES = 112
_BY_FREQUENCY, _PRECISE_AT = 1 << 10, 15


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
    flags = _BY_FREQUENCY | USE_CLOCK | source.precision << _PRECISE_AT | (NO_KERNEL if source.user_only else 0)
    config = CYCLES if source.type == HARDWARE else CPU_CLOCK
    sample_type, read_format = (SAMPLE_TYPE | READ_VALUES, READ_FORMAT) if placing.reads else (SAMPLE_TYPE, 0)
    attribute = bytearray(_ATTRIBUTE_BYTES)
    words = source.type, _ATTRIBUTE_BYTES, config, hertz, sample_type, read_format, flags
    struct.pack_into("<IIQQQQQ", attribute, 0, *words)
    struct.pack_into("<i", attribute, 92, time.CLOCK_MONOTONIC_RAW)
    return open_event(bytes(attribute), placing.tid, placing.leader)
