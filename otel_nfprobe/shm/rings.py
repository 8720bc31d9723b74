# SPDX-License-Identifier: Apache-2.0
"""The rings of a session, as read by the monitor: a wrapper of native/core/sweep.h."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import RECORD
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.shm.stamps import StampBounds

ROOM_RECORDS = 1 << 16
PART = dtype_of("nfp_sweep_part")


@dataclass(frozen=True)
class Swept:
    """Records drained from some rings; valid until the next step of the iterator that yields it.

    Attributes:
        parts: one row (PART) per ring, no ring twice: thread table index and number of records.
        records: of all parts (RECORD), ring after ring.
    """

    parts: NDArray[Any]
    records: NDArray[Any]

    def by_thread(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yields thread table index and records of each ring."""
        first = 0
        for thread, _, count in self.parts.tolist():
            yield thread, self.records[first : first + count]
            first += count


class Rings:
    """The rings of all threads; in one mapping, because each mapping takes a file descriptor.

    Args:
        descriptor: of the session's memory file.
        offset: of the first ring in it.
        count: number of rings, one per entry of the thread table.
        ring_bytes: size of each.
        table: the thread table (struct nfp_thread_shared *).
        stamps: bounds of valid timestamps.
    """

    def __init__(
        self, descriptor: int, offset: int, count: int, ring_bytes: int, table: Any, stamps: StampBounds
    ) -> None:
        self._memory = mmap.mmap(descriptor, count * ring_bytes, offset=offset)
        self._bytes = ffi.from_buffer("uint8_t[]", self._memory)
        self._states = ffi.new("struct nfp_ring_state[]", count)
        self._sweep = ffi.new("struct nfp_sweep *")
        self._sweep.rings, self._sweep.states = self._bytes, self._states
        self._sweep.table, self._sweep.ring_bytes = table, ring_bytes
        self._stamps = stamps
        self._room = np.empty(ROOM_RECORDS, RECORD)
        self._parts = np.empty(count, PART)
        self._room_pointer = ffi.cast("struct nfp_record *", ffi.from_buffer(self._room))
        self._parts_pointer = ffi.cast("struct nfp_sweep_part *", ffi.from_buffer(self._parts))

    @property
    def torn(self) -> int:
        """Slots that were skipped: reserved, never written."""
        return int(self._sweep.torn)

    def sweep(self, used: int) -> Iterator[Swept]:
        """Drains the first rings, as Session.drain."""
        lib.nfp_sweep_begin(self._sweep, used, time.monotonic_ns())
        yield from self._take()

    def take_last(self, indexes: Sequence[int]) -> Iterator[Swept]:
        """Drains the rings of threads that are gone, each at most once around; slots never written are left out."""
        chosen = ffi.new("uint32_t[]", indexes)
        lib.nfp_sweep_begin_last(self._sweep, chosen, len(indexes), time.monotonic_ns())
        yield from self._take()

    def _take(self) -> Iterator[Swept]:
        sweep = self._sweep
        while sweep.next < sweep.threads:
            count = lib.nfp_sweep_take(sweep, self._room_pointer, ROOM_RECORDS, self._parts_pointer)
            parts = self._parts[:count]
            records = int(parts["count"].sum())
            self._stamps.apply(self._room_pointer, records)
            if count:
                yield Swept(parts, self._room[:records])

    def close(self) -> None:
        """Unmaps the rings."""
        self._sweep.rings = ffi.NULL
        ffi.release(self._bytes)
        self._memory.close()
