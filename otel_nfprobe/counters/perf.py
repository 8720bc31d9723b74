# SPDX-License-Identifier: Apache-2.0
"""The kernel's counters: their attributes, and operations on open counters (perfring.py opens them)."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from contextlib import suppress

from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.linux.perfring import USE_CLOCK, open_event

ATTRIBUTE_BYTES = 112
DISABLED, PINNED, EXCLUDE_USER, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1, 1 << 2, 1 << 4, 1 << 5, 1 << 6
TIMES = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING
ENABLE, DISABLE = 0x2400, 0x2401
IDENTIFY = 0x80082407
IOC_GROUP = 1
CAPABILITIES = 40  # offset in the page: cap_user_rdpmc is bit 2
CAP_USER_RDPMC = 1 << 2


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
        flags = USE_CLOCK | EXCLUDE_HYPERVISOR | (DISABLED if disabled and group < 0 else 0)
        flags |= PINNED if group < 0 and not counter.is_software else 0
        flags |= 0 if counter.user else EXCLUDE_USER
        flags |= 0 if counter.kernel else EXCLUDE_KERNEL
        attribute = bytearray(ATTRIBUTE_BYTES)
        struct.pack_into("<IIQ", attribute, 0, event.type, ATTRIBUTE_BYTES, event.config)
        struct.pack_into("<QQ", attribute, 32, TIMES, flags)
        struct.pack_into("<QQ", attribute, 56, event.config1, event.config2)
        struct.pack_into("<i", attribute, 92, time.CLOCK_MONOTONIC_RAW)  # of samples, which may join the group
        return open_event(bytes(attribute), tid, group)

    def enable(self, leader: int) -> None:
        """Starts a group."""
        fcntl.ioctl(leader, ENABLE, IOC_GROUP)

    def disable(self, leader: int) -> None:
        """Stops a group and releases its hardware counters."""
        fcntl.ioctl(leader, DISABLE, IOC_GROUP)

    def read(self, descriptor: int) -> tuple[int, int, int] | None:
        """Returns value, ns enabled, ns running; None for a pinned counter in its error state."""
        data = os.read(descriptor, 24)
        return struct.unpack("<3Q", data) if len(data) == 24 else None  # the error state reads as end of file

    def identify(self, descriptor: int) -> int:
        """Returns the ID that samples carry for it."""
        number: int = struct.unpack("<Q", fcntl.ioctl(descriptor, IDENTIFY, bytes(8)))[0]
        return number

    def may_rdpmc(self, descriptor: int) -> bool:
        """Returns whether programs can read the counter themselves."""
        with mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ) as page:
            (capabilities,) = struct.unpack_from("<Q", page, CAPABILITIES)
            return bool(capabilities & CAP_USER_RDPMC)

    def close(self, descriptor: int) -> None:
        """Closes it."""
        with suppress(OSError):
            os.close(descriptor)
