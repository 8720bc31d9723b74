# SPDX-License-Identifier: Apache-2.0
"""Hot code: samples which code the busy threads of a target execute, by the kernel's clock interrupts.

A thousand times a second the kernel samples a running thread's program counter and the top of its stack (perf's
software event `cpu-clock`, which needs no performance counters). Nothing in the target changes and no thread is
stopped. Stack words that point into code are taken for return addresses: stale ones among them name functions that ran
a moment ago.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.processors import HOST
from otel_nfprobe.linux.perfring import HEADER, event_attributes, map_ring, open_event, take_records
from otel_nfprobe.target.target import Target

FREQUENCY_HZ = 997  # not in step with any periodic work
STACK_BYTES = 4096
BUFFER_PAGES = 32
LOOK_S = 0.01
BUSY_LOOK_S = 0.05
THREADS_MAX = 16  # at most; the busiest ones
NS_PER_THREAD_MIN = 1_000_000  # of CPU time in BUSY_LOOK_S: with less it is no dataplane thread


@dataclass(frozen=True, slots=True)
class Sightings:
    """Samples of busy threads.

    Attributes:
        threads: number of sampled threads.
        counters: program counters, one per sample.
        stacks: words of their stacks, code or not.
    """

    threads: int
    counters: NDArray[np.uint64]
    stacks: NDArray[np.uint64]


def see_running(target: Target, seconds: float, is_over: Callable[[], bool]) -> Sightings | None:
    """Samples the busy threads for this time, or until it is over.

    Returns:
        None if this user or kernel does not permit it.
    """
    watches: list[_Watch] = []
    try:
        for tid in _busy_threads(target, is_over):
            with suppress(ProcessLookupError):
                watches.append(_Watch(tid))
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_over():
            time.sleep(LOOK_S)
            for watch in watches:
                watch.take()
    except OSError:
        return None
    finally:
        for watch in watches:
            watch.close()
    counters = [counter for watch in watches for counter in watch.counters]
    stacks = b"".join(stack for watch in watches for stack in watch.stacks)
    return Sightings(len(watches), np.array(counters, np.uint64), np.frombuffer(stacks, np.uint64))


def _busy_threads(target: Target, is_over: Callable[[], bool]) -> list[int]:
    """Returns the threads that used CPU time recently, the busiest first."""
    before = _cpu_times_ns(target)
    until = time.monotonic() + BUSY_LOOK_S
    while time.monotonic() < until and not is_over():
        time.sleep(LOOK_S)
    used = {tid: total - before.get(tid, 0) for tid, total in _cpu_times_ns(target).items()}
    busy = sorted((tid for tid in used if used[tid] >= NS_PER_THREAD_MIN), key=lambda tid: -used[tid])
    return busy[:THREADS_MAX]


def _cpu_times_ns(target: Target) -> dict[int, int]:
    found: dict[int, int] = {}
    for thread in target.threads():
        with suppress(OSError), open(f"/proc/{target.pid}/task/{thread.tid}/schedstat", encoding="ascii") as file:
            found[thread.tid] = int(file.read().split()[0])
    return found


class _Watch:
    """Samples one thread.

    Raises:
        OSError: not permitted, or the thread has ended.
    """

    def __init__(self, tid: int) -> None:
        self.counters: list[int] = []
        self.stacks: list[bytes] = []
        try:
            self._fd = _open_event(tid, 0)
        except PermissionError:  # unprivileged users may sample user mode only
            self._fd = _open_event(tid, lib.NFP_EVENT_EXCLUDE_KERNEL)
        try:
            self._memory = map_ring(self._fd, BUFFER_PAGES)
        except OSError:
            os.close(self._fd)
            raise

    def take(self) -> None:
        """Reads what the kernel has written since the last call."""
        content = take_records(self._memory)
        position = 0
        while position + HEADER.size <= len(content):
            kind, _, size = HEADER.unpack_from(content, position)
            if kind == lib.PERF_RECORD_SAMPLE:
                self._take_sample(content[position + HEADER.size : position + size])
            position += max(size, HEADER.size)

    def _take_sample(self, sample: bytes) -> None:
        """Parses a sample: abi, registers, size of the stack copy, the stack, its valid size."""
        if len(sample) < 32 or not struct.unpack_from("<Q", sample)[0]:  # a kernel thread has no registers
            return
        _, _, counter, room = struct.unpack_from("<4Q", sample)
        self.counters.append(counter)
        if room and len(sample) >= 40 + room:
            (valid,) = struct.unpack_from("<Q", sample, 32 + room)
            self.stacks.append(sample[32 : 32 + min(valid, room) // 8 * 8])

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)


def _open_event(tid: int, flags: int) -> int:
    attributes = event_attributes(
        lib.PERF_TYPE_SOFTWARE,
        lib.PERF_COUNT_SW_CPU_CLOCK,
        lib.NFP_EVENT_FREQ | flags,
        sample_freq=FREQUENCY_HZ,
        sample_type=lib.PERF_SAMPLE_REGS_USER | lib.PERF_SAMPLE_STACK_USER,
        sample_regs_user=HOST.perf_registers,
        sample_stack_user=STACK_BYTES,
    )
    return open_event(attributes, tid)
