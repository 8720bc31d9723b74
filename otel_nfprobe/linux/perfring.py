# SPDX-License-Identifier: Apache-2.0
"""Perf rings: opens perf events of one thread, and reads what the kernel writes into their buffers.

A buffer is one page of struct perf_event_mmap_page, then a ring of records, each with a HEADER. The kernel moves the
head, the reader the tail. What the records mean is for the caller.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any

from otel_nfprobe._core import ffi, lib

RATE_MAX = "/proc/sys/kernel/perf_event_max_sample_rate"
NO_KERNEL = lib.NFP_EVENT_EXCLUDE_KERNEL | lib.NFP_EVENT_EXCLUDE_HV  # needs fewer rights
HEADER = struct.Struct("<IHH")  # struct perf_event_header: type, misc, size

_DATA_HEAD = ffi.offsetof("struct perf_event_mmap_page", "data_head")
_DATA_TAIL = ffi.offsetof("struct perf_event_mmap_page", "data_tail")


def max_hertz() -> int:
    """Returns the kernel's current limit; the kernel lowers it when sampling takes too long."""
    try:
        with open(RATE_MAX, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 100_000


def event_attributes(kind: int, config: int, flags: int, **fields: int) -> Any:
    """struct perf_event_attr of an event whose samples have times of CLOCK_MONOTONIC_RAW.

    The kernel takes into a group only events of one clock.

    Args:
        kind: its `type`.
        flags: of enum nfp_event_flag, for its bits.
        fields: others of its fields.
    """
    attributes = ffi.new("struct perf_event_attr *")
    attributes.type, attributes.config, attributes.clockid = kind, config, time.CLOCK_MONOTONIC_RAW
    for name, value in fields.items():
        setattr(attributes, name, value)
    lib.nfp_event_set_flags(attributes, flags | lib.NFP_EVENT_USE_CLOCKID)
    return attributes


def open_event(attributes: Any, tid: int, group: int = -1, cpu: int = -1, condition: str = "") -> int:
    """Opens an event of one thread on whatever CPU it runs, or of one CPU.

    Args:
        attributes: struct perf_event_attr *.
        tid: in this process's PID namespace; -1: all threads.
        cpu: -1: all CPUs.
        group: descriptor of the leader of the group to join; -1: none.
        condition: of the fields of a tracepoint, such as `prev_pid != 0`: others are not hit. An event can have one
            only, once.

    Returns:
        the descriptor, close-on-exec.

    Raises:
        OSError: the kernel does not permit it, or knows no such condition; ProcessLookupError: the thread has ended.
    """
    descriptor = lib.nfp_event_open(attributes, tid, cpu, group)
    if descriptor < 0:
        raise OSError(-descriptor, os.strerror(-descriptor))
    try:
        if condition:
            fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_SET_FILTER, condition.encode() + bytes(1))
    except OSError:
        os.close(descriptor)
        raise
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
