# SPDX-License-Identifier: Apache-2.0
"""The drain of one ring: laps and what fills their ends, holes, room."""

from __future__ import annotations

from typing import Any

import numpy as np
from otel_nfprobe._core import ffi, lib
from synthetic_records import entry

from otel_nfprobe.columns import RECORD, THREAD

RING_BYTES = 64 << 10
SLOTS = RING_BYTES // 16
FILL = 17  # record.h


class Ring:
    """A ring as a probe writes it, and the drain's view of it."""

    def __init__(self, position: int = 0) -> None:
        self.slots = np.zeros(SLOTS, RECORD)
        self.position = ffi.new("uint64_t *", position)
        self.head = position
        if position:  # what the lap before left behind
            at = np.arange(position - RING_BYTES, position, 16)
            self.slots["tag"][at // 16 % SLOTS] = [self.low(int(place)) for place in at]

    @staticmethod
    def low(position: int) -> int:
        """Low half of a slot's address in the target, as ring.h has it."""
        return 0x40000000 + position % RING_BYTES + (1 << 31 if position & RING_BYTES else 0)

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.put(*entry(3, self.head // 16, 77))

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.put(0, FILL << 24, 0)

    def put(self, word: int, tag: int, rsp: int) -> None:
        self.slots[self.head // 16 % SLOTS] = (word, tag + self.low(self.head) & 0xFFFFFFFF, rsp)
        self.head += 16

    def skip(self, count: int = 1) -> None:
        self.head += 16 * count

    def drain(self, room: int = 4096, skip_hole: bool = False) -> tuple[list[int], int, int]:
        out = ffi.new("struct nfp_record[]", room)
        hole = ffi.new("struct nfp_drain_hole *")
        ring = ffi.from_buffer("uint8_t[]", self.slots)
        count = lib.nfp_drain(ring, RING_BYTES, self.position, skip_hole, out, room, hole)
        got: Any = np.frombuffer(ffi.buffer(out), RECORD)[:count]
        assert (got["tag"] == 3).all()
        assert (got["rsp"] == 77).all()
        return got["word"].tolist(), hole.torn, hole.blocked


def test_empty_ring_gives_nothing() -> None:
    assert Ring().drain() == ([], 0, 0)
    assert Ring(5 * RING_BYTES + 160).drain(skip_hole=True) == ([], 0, 0)


def test_records_come_in_order_over_many_laps() -> None:
    ring, got = Ring(), []
    for _ in range(12):
        ring.write(1500)
        got += ring.drain()[0]
    assert got == list(range(12 * 1500))
    assert ring.position[0] == ring.head


def test_room_bounds_what_is_taken() -> None:
    ring = Ring(RING_BYTES - 32)
    ring.write(5)
    first = SLOTS - 2
    assert ring.drain(room=3)[0] == [first, first + 1, first + 2]
    assert ring.drain(room=3)[0] == [first + 3, first + 4]
    assert ring.drain(room=3)[0] == []


def test_what_fills_a_lap_is_left_out() -> None:
    ring = Ring(2 * RING_BYTES - 512 * 16)
    ring.write(3)
    ring.fill(509)
    ring.write(2)
    first = 2 * SLOTS - 512
    assert ring.drain() == ([first, first + 1, first + 2, 2 * SLOTS, 2 * SLOTS + 1], 0, 0)
    assert ring.position[0] == ring.head


def test_ring_that_is_filled_all_over_ends() -> None:
    ring = Ring(160)
    ring.fill(SLOTS)
    assert ring.drain() == ([], 0, 0)
    assert ring.position[0] == 160 + RING_BYTES


def test_slot_that_was_not_written_in_the_next_lap_is_not_read_again() -> None:
    ring = Ring()
    ring.write(SLOTS)
    assert len(ring.drain()[0]) == SLOTS
    assert ring.drain() == ([], 0, 0)


def test_hole_stops_and_is_filled_late() -> None:
    ring = Ring()
    ring.write(2)
    ring.skip()
    ring.write(3)
    assert ring.drain() == ([0, 1], 0, 1)
    assert ring.drain() == ([], 0, 1)
    ring.slots[2] = (2, 3 + ring.low(2 * 16), 77)
    assert ring.drain() == ([2, 3, 4, 5], 0, 0)


def test_hole_is_skipped_and_counted() -> None:
    ring = Ring(3 * RING_BYTES - 16)
    ring.skip(2)
    ring.write(2)
    ring.skip(1)
    ring.write(1)
    first = 3 * SLOTS - 1
    assert ring.drain(skip_hole=True) == ([first + 2, first + 3], 2, 1)
    assert ring.drain(skip_hole=True) == ([first + 5], 1, 0)


def test_only_the_hole_that_stood_is_skipped() -> None:
    ring = Ring()
    ring.write(1)
    ring.skip()
    ring.write(1)
    assert ring.drain(skip_hole=True) == ([0], 0, 1)


def test_unwritten_end_is_no_hole() -> None:
    ring = Ring()
    ring.write(4)
    ring.skip(100)
    assert ring.drain(skip_hole=True) == ([0, 1, 2, 3], 0, 0)


def test_publish_sets_tail() -> None:
    thread = np.zeros(1, THREAD)
    lib.nfp_drain_publish(ffi.cast("struct nfp_thread_shared *", thread.ctypes.data), 4242)
    assert thread["tail"][0] == 4242
