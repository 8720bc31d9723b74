# SPDX-License-Identifier: Apache-2.0
"""The sweep over many rings: what each holds, once around at most; holes that nobody will fill; freed entries."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from otel_nfprobe._core import ffi, lib
from test_drain import RING_BYTES, SLOTS, Ring

from otel_nfprobe.columns import RECORD, THREAD
from otel_nfprobe.rings import PART

RINGS = 40
MS = 1_000_000


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

    def take(self, room: int = 8192, room_each: int | None = None) -> list[tuple[int, list[int]]]:
        """One whole sweep: rings and their words."""
        lib.nfp_sweep_begin(self.sweep, RINGS, self.now_ns)
        records, parts, found = np.empty(room, RECORD), np.empty(1024, PART), []
        pointers = ffi.from_buffer("struct nfp_record[]", records), ffi.from_buffer("struct nfp_sweep_part[]", parts)
        while self.sweep.next < self.sweep.threads:
            count, first = lib.nfp_sweep_take(self.sweep, pointers[0], room_each or room, pointers[1]), 0
            for thread, _, size in parts[:count].tolist():
                found.append((thread, records["word"][first : first + size].tolist()))
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


def test_a_hole_of_a_thread_that_is_gone_is_left_out_at_once(rings: Rings) -> None:
    ring, records = rings.rings[5], np.empty(64, RECORD)
    ring.write(1)
    ring.skip()
    ring.write(2)
    pointer = ffi.from_buffer("struct nfp_record[]", records)
    counts = [lib.nfp_sweep_one(rings.sweep, 5, 1, pointer, 64) for _ in range(3)]
    assert (counts, rings.sweep.torn) == ([1, 2, 0], 1)


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
    lib.nfp_thread_free(header, pointer, 70)
    lib.nfp_thread_free(header, pointer, 5000)
    assert list(header.free_threads) == [0, 1 << 6, *[0] * 14]
    assert (table["state"] == 0).nonzero()[0].tolist() == [70]
    assert table["start_ticks"][70] == 0
