# SPDX-License-Identifier: Apache-2.0
"""The kernel's counters: their attributes, and operations on open counters (perfring.py opens them)."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import suppress

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.linux.perfring import event_attributes, open_event

TIMES = lib.PERF_FORMAT_TOTAL_TIME_ENABLED | lib.PERF_FORMAT_TOTAL_TIME_RUNNING
CAPABILITIES = ffi.offsetof("struct perf_event_mmap_page", "capabilities")
CAP_USER_READING = 1 << 2


class Kernel:
    """The system calls for counters; tests substitute another one.

    All methods raise OSError with the kernel's error.
    """

    def open(self, counter: Counter, event: Event, tid: int, group: int = -1, disabled: bool = True) -> int:
        """Opens a counter of a thread, as leader of its own group or in the group of another.

        Args:
            counter: specifies the modes in which it counts.
            event: one of its events.
            tid: 0 is the calling thread.
            group: descriptor of the leader, or -1. A leader is pinned: it is never multiplexed, and enters an error
                state if it cannot be scheduled.
        """
        flags = lib.NFP_EVENT_EXCLUDE_HV | (lib.NFP_EVENT_DISABLED if disabled and group < 0 else 0)
        flags |= lib.NFP_EVENT_PINNED if group < 0 and not counter.is_software else 0
        flags |= 0 if counter.user else lib.NFP_EVENT_EXCLUDE_USER
        flags |= 0 if counter.kernel else lib.NFP_EVENT_EXCLUDE_KERNEL
        words = {"read_format": TIMES, "config1": event.config1, "config2": event.config2}
        return open_event(event_attributes(event.type, event.config, flags, **words), tid, group)

    def enable(self, leader: int) -> None:
        """Starts a group."""
        fcntl.ioctl(leader, lib.PERF_EVENT_IOC_ENABLE, lib.PERF_IOC_FLAG_GROUP)

    def disable(self, leader: int) -> None:
        """Stops a group and releases its hardware counters."""
        fcntl.ioctl(leader, lib.PERF_EVENT_IOC_DISABLE, lib.PERF_IOC_FLAG_GROUP)

    def read(self, descriptor: int) -> tuple[int, int, int] | None:
        """Returns value, ns enabled, ns running; None for a pinned counter in its error state."""
        data = os.read(descriptor, 24)
        return struct.unpack("<3Q", data) if len(data) == 24 else None  # the error state reads as end of file

    def identify(self, descriptor: int) -> int:
        """Returns the ID that samples carry for it."""
        number: int = struct.unpack("<Q", fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_ID, bytes(8)))[0]
        return number

    def may_read_directly(self, descriptor: int) -> bool:
        """Returns whether programs can read the counter themselves."""
        with mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ) as page:
            (capabilities,) = struct.unpack_from("<Q", page, CAPABILITIES)
            return bool(capabilities & CAP_USER_READING)

    def close(self, descriptor: int) -> None:
        """Closes it."""
        with suppress(OSError):
            os.close(descriptor)
