# SPDX-License-Identifier: Apache-2.0
"""The sweep over many rings: what each holds, once around at most; holes that nobody will fill; freed entries."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import RECORD, THREAD
from otel_nfprobe.shm.rings import PART
from tests.unit.monitor.test_drain import RING_BYTES, SLOTS, Ring

RINGS = 40
MS = 1_000_000
Taken = tuple[int, list[int]]


class Rings:
    """Rings side by side, and a sweep over them."""

    def __init__(self) -> None:
        self.rings = [Ring() for _ in range(RINGS)]
        memory = np.zeros((RINGS, SLOTS), RECORD)
        for ring, slots in zip(self.rings, memory, strict=True):
            ring.written.slots = slots
        self.memory, self.table = memory, np.zeros(RINGS, THREAD)
        self.states = ffi.new("struct nfp_ring_state[]", RINGS)
        self.sweep = ffi.new("struct nfp_sweep *")
        self.sweep.rings = ffi.from_buffer("uint8_t[]", memory)
        self.sweep.states, self.sweep.ring_bytes = self.states, RING_BYTES
        self.sweep.table = ffi.cast("struct nfp_thread_shared *", self.table.ctypes.data)
        self.now_ns = 1

    def take(self, room: int = 8192, room_each: int | None = None) -> list[Taken]:
        """One whole sweep: rings and their words."""
        lib.nfp_sweep_begin(self.sweep, RINGS, self.now_ns)
        return self._take_all(room, room_each)

    def take_last(self, indexes: list[int], room: int = 8192, room_each: int | None = None) -> list[Taken]:
        """The same of threads that are gone."""
        chosen = ffi.new("uint32_t[]", indexes)
        lib.nfp_sweep_begin_last(self.sweep, chosen, len(indexes), self.now_ns)
        return self._take_all(room, room_each)

    def _take_all(self, room: int, room_each: int | None) -> list[Taken]:
        records, parts, found = np.empty(room, RECORD), np.empty(1024, PART), []
        pointers = ffi.from_buffer("struct nfp_record[]", records), ffi.from_buffer("struct nfp_sweep_part[]", parts)
        while self.sweep.next < self.sweep.threads:
            count, first = lib.nfp_sweep_take(self.sweep, pointers[0], room_each or room, pointers[1]), 0
            for thread, _, size in parts[:count].tolist():
                found.append((thread, records["value"][first : first + size].tolist()))
                first += size
        return found


@pytest.fixture
def rings() -> Rings:
    return Rings()


def test_rings_that_hold_something(rings: Rings) -> None:
    for thread, count in ((0, 3), (17, 1), (RINGS - 1, 2)):
        rings.rings[thread].write(count)
    assert rings.take() == [(0, [0, 1, 2]), (17, [0]), (RINGS - 1, [0, 1])]
    assert rings.take() == []
    assert rings.table["tail"][[0, 1, 17]].tolist() == [48, 0, 16]


def test_more_than_there_is_room_for_comes_in_parts(rings: Rings) -> None:
    rings.rings[3].write(5)
    rings.rings[4].write(1)
    assert rings.take(room_each=2) == [(3, [0, 1]), (3, [2, 3]), (3, [4]), (4, [0])]


def test_a_ring_that_is_written_meanwhile_is_read_once_around(rings: Rings) -> None:
    ring, taken = rings.rings[0], 0
    ring.write(SLOTS)
    rings.rings[1].write(1)
    lib.nfp_sweep_begin(rings.sweep, RINGS, 1)
    records, parts = np.empty(512, RECORD), np.empty(1024, PART)
    pointers = ffi.from_buffer("struct nfp_record[]", records), ffi.from_buffer("struct nfp_sweep_part[]", parts)
    while rings.sweep.next == 0:
        count = lib.nfp_sweep_take(rings.sweep, pointers[0], 512, pointers[1])
        taken += sum(size for thread, _, size in parts[:count].tolist() if thread == 0)
        ring.write(512)
    assert taken == SLOTS
    assert rings.sweep.next == 1


def test_a_hole_is_waited_for_while_its_thread_lives(rings: Rings) -> None:
    ring = rings.rings[0]
    ring.skip(2)
    ring.write(1)
    for _ in range(20):  # idle rings are looked at for holes now and then
        rings.now_ns += MS
        assert rings.take() == []
    rings.now_ns += 60 * MS
    assert rings.take() == [(0, [2])]
    assert rings.sweep.torn == 2


def test_a_long_hole_behind_records_is_found_in_time(rings: Rings) -> None:
    """It is not looked for in each sweep: many slots lie between it and what stands behind it."""
    ring, found = rings.rings[0], []
    for _ in range(40):
        ring.write(3)
        found += rings.take()
    ring.write(1)
    ring.skip(300)
    ring.write(2)
    for _ in range(40):
        rings.now_ns += 10 * MS
        found += rings.take()
    assert [word for _, words in found for word in words] == [*range(121), 421, 422]
    assert rings.sweep.torn == 300


def test_a_hole_of_a_thread_that_is_gone_is_left_out_at_once(rings: Rings) -> None:
    for index in (5, 2):
        ring = rings.rings[index]
        ring.write(1)
        ring.skip()
        ring.write(2)
        ring.skip(3)
        ring.write(1)
    rings.rings[3].write(1)  # its thread lives
    expected = [0, 2, 3, 7]
    assert rings.take_last([5, 2, 5000]) == [(5, expected), (2, expected)]
    assert (rings.take_last([5, 2]), rings.sweep.torn) == ([], 8)
    assert rings.take_last([3], room_each=1) == [(3, [0])]


def test_the_last_of_a_ring_is_taken_once_around(rings: Rings) -> None:
    ring = rings.rings[4]
    ring.write(SLOTS)
    assert rings.take_last([4], room_each=1000) == [
        (4, list(range(first, min(first + 1000, SLOTS)))) for first in range(0, SLOTS, 1000)
    ]


def test_idle_rings_are_looked_at_for_holes_also_between_other_sweeps(rings: Rings) -> None:
    """Every sweep over living threads is followed by one over those that have ended."""
    for index in (0, 1):
        rings.rings[index].skip(2)
        rings.rings[index].write(1)
    found: list[Taken] = []
    for _ in range(40):
        rings.now_ns += 10 * MS
        found += rings.take()
        assert rings.take_last([7]) == []
    assert sorted(found) == [(0, [2]), (1, [2])]


def test_threads_of_this_process_and_of_others() -> None:
    tids = np.array([threading.get_native_id(), 1, 0, 0xFFFFFFFF, 0x3FFFFFFF], np.uint32)
    gone = np.zeros(len(tids), np.uint8)
    lib.nfp_threads_gone(
        os.getpid(), ffi.from_buffer("uint32_t[]", tids), len(tids), ffi.from_buffer("uint8_t[]", gone)
    )
    assert gone.tolist() == [0, 1, 1, 1, 1]


def test_an_entry_is_freed_for_the_next_thread() -> None:
    header, table = ffi.new("struct nfp_session_header *"), np.zeros(1024, THREAD)
    table["state"], table["start_ticks"] = 1, 7
    pointer = ffi.cast("struct nfp_thread_shared *", table.ctypes.data)
    lib.nfp_threads_free(header, pointer, ffi.new("uint32_t[]", [70, 5000, 3]), 3)
    assert list(header.free_threads) == [1 << 3, 1 << 6, *[0] * 14]
    assert (table["state"] == 0).nonzero()[0].tolist() == [3, 70]
    assert table["start_ticks"][[3, 70]].tolist() == [0, 0]
