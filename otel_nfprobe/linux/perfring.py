# SPDX-License-Identifier: Apache-2.0
"""Perf rings: opens perf events of one thread, and reads what the kernel writes into their buffers.

A buffer is one page of struct perf_event_mmap_page, then a ring of records, each with a HEADER. The kernel moves the
head, the reader the tail. Called by preemption.py, profiler.py, hot_code.py and counters/perf.py,
which know their records.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import struct
from collections.abc import Iterable, Sequence

SOFTWARE = 1  # PERF_TYPE_SOFTWARE
RATE_MAX = "/proc/sys/kernel/perf_event_max_sample_rate"
USE_CLOCK = 1 << 25  # use_clockid: the kernel takes into a group only events of one clock
NO_KERNEL = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv: flags of the attributes that need fewer rights
HEADER = struct.Struct("<IHH")  # struct perf_event_header: type, misc, size

_PERF_EVENT_OPEN = 298  # the number of the system call on x86-64
_CLOEXEC = 8
_DATA_HEAD = 1024  # offsets in the first page of a buffer
_DATA_TAIL = 1032
_libc = ctypes.CDLL(None, use_errno=True)


def max_hertz() -> int:
    """What the kernel allows at this moment; it lowers the number by itself when looking takes too long."""
    try:
        with open(RATE_MAX, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 100_000


def open_event(attributes: bytes, tid: int, group: int = -1) -> int:
    """Opens an event of one thread on whatever CPU it runs.

    Args:
        attributes: struct perf_event_attr.
        tid: as the monitor sees it.
        group: descriptor of the leader of the group that it joins; -1: none.

    Returns:
        the descriptor, closed at exec.

    Raises:
        OSError: the kernel does not allow it; ProcessLookupError: the thread has ended.
    """
    pointer = ctypes.create_string_buffer(attributes, len(attributes))
    descriptor: int = _libc.syscall(_PERF_EVENT_OPEN, pointer, tid, -1, group, ctypes.c_ulong(_CLOEXEC))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def find_ended(descriptors: Iterable[int]) -> list[int]:
    """Which of these events are of threads that have ended, as the kernel says of the events themselves."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, 0)
    return [descriptor for descriptor, happened in poll.poll(0) if happened & select.POLLHUP]


def map_ring(descriptor: int, pages: int) -> mmap.mmap:
    """Maps an event's buffer.

    Args:
        descriptor: of the event.
        pages: of the ring, a power of two; the first page comes on top.

    Raises:
        OSError: PermissionError when it is more than this user may lock.
    """
    return mmap.mmap(descriptor, (1 + pages) * mmap.PAGESIZE)


def map_largest_ring(descriptor: int, pages: Sequence[int]) -> mmap.mmap:
    """The same with the first of some sizes, the largest first, that this user may lock. Raises as map_ring."""
    for size in pages[:-1]:
        try:
            return map_ring(descriptor, size)
        except PermissionError:
            continue
    return map_ring(descriptor, pages[-1])


def take_records(buffer: mmap.mmap) -> bytes:
    """Whole records that the kernel wrote since the last time, and makes room for more."""
    head, tail = struct.unpack_from("<QQ", buffer, _DATA_HEAD)
    size = len(buffer) - mmap.PAGESIZE
    if not 0 < head - tail <= size:
        return b""
    first, last = tail % size, head % size
    if first < last:
        records = buffer[mmap.PAGESIZE + first : mmap.PAGESIZE + last]
    else:
        records = buffer[mmap.PAGESIZE + first :] + buffer[mmap.PAGESIZE : mmap.PAGESIZE + last]
    struct.pack_into("<Q", buffer, _DATA_TAIL, head)
    return records
