# SPDX-License-Identifier: Apache-2.0
"""Perf rings: opens perf events of one thread, and reads what the kernel writes into their buffers.

A buffer is one page of struct perf_event_mmap_page, followed by a ring of records, each with a HEADER. The kernel moves
the head, the reader the tail.
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
USE_CLOCK = 1 << 25  # use_clockid: all events of a group must use the same clock
NO_KERNEL = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv: attribute flags that reduce the required privileges
HEADER = struct.Struct("<IHH")  # struct perf_event_header: type, misc, size

_PERF_EVENT_OPEN = 298  # system call number on x86-64
_CLOEXEC = 8
_DATA_HEAD = 1024  # offsets in the first page of a buffer
_DATA_TAIL = 1032
_libc = ctypes.CDLL(None, use_errno=True)


def max_hertz() -> int:
    """Returns the kernel's current limit; the kernel lowers it when sampling takes too long."""
    try:
        with open(RATE_MAX, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 100_000


def open_event(attributes: bytes, tid: int, group: int = -1) -> int:
    """Opens an event of one thread on whatever CPU it runs.

    Args:
        attributes: struct perf_event_attr.
        tid: in this process's PID namespace.
        group: descriptor of the leader of the group to join; -1: none.

    Returns:
        the descriptor, close-on-exec.

    Raises:
        OSError: the kernel does not permit it; ProcessLookupError: the thread has ended.
    """
    pointer = ctypes.create_string_buffer(attributes, len(attributes))
    descriptor: int = _libc.syscall(_PERF_EVENT_OPEN, pointer, tid, -1, group, ctypes.c_ulong(_CLOEXEC))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def find_ended(descriptors: Iterable[int]) -> list[int]:
    """Returns which of these events belong to ended threads, according to the events themselves."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, 0)
    return [descriptor for descriptor, happened in poll.poll(0) if happened & select.POLLHUP]


def map_ring(descriptor: int, pages: int) -> mmap.mmap:
    """Maps an event's buffer.

    Args:
        descriptor: of the event.
        pages: of the ring, a power of two, excluding the first page.

    Raises:
        OSError: PermissionError if it exceeds this user's limit of locked memory.
    """
    return mmap.mmap(descriptor, (1 + pages) * mmap.PAGESIZE)


def map_largest_ring(descriptor: int, pages: Sequence[int]) -> mmap.mmap:
    """Maps a buffer of the first of these sizes, the largest first, that this user may lock. Raises as map_ring."""
    for size in pages[:-1]:
        try:
            return map_ring(descriptor, size)
        except PermissionError:
            continue
    return map_ring(descriptor, pages[-1])


def take_records(buffer: mmap.mmap) -> bytes:
    """Returns whole records written by the kernel since the last call, and frees their space."""
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
