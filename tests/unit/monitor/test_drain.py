# SPDX-License-Identifier: Apache-2.0
"""The drain of one ring: laps and what fills their ends, holes, room."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import RECORD, THREAD
from tests.support.synthetic_records import entry
from tests.support.written_ring import WrittenRing

RING_BYTES = 64 << 10
SLOTS = RING_BYTES // 16
FILL = 17  # record.h


class Ring:
    """A ring of numbered records, and what the drain finds in it."""

    def __init__(self, position: int = 0) -> None:
        self.written = WrittenRing(RING_BYTES, position)
        self.position = self.written.position

    @property
    def head(self) -> int:
        return self.written.head

    def write(self, count: int = 1) -> None:
        first = self.head // 16
        self.written.write([entry(3, first + number, 77) for number in range(count)])

    def fill(self, count: int) -> None:
        self.written.write([(0, FILL << 24, 0)] * count)

    def skip(self, count: int = 1) -> None:
        self.written.head += 16 * count

    def write_at(self, position: int, word: int) -> None:
        """Fills a hole."""
        head, self.written.head = self.written.head, position
        self.written.write([entry(3, word, 77)])
        self.written.head = head

    def drain(self, room: int = 4096, skip_hole: bool = False) -> tuple[list[int], int, int]:
        out = ffi.new("struct nfp_record[]", room)
        count, torn, blocked = self.written.drain(out, skip_hole)
        got: Any = np.frombuffer(ffi.buffer(out), RECORD)[:count]
        assert (got["tag"] == 3).all()
        assert (got["sp"] == 77).all()
        return got["value"].tolist(), torn, blocked


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
    ring.write_at(2 * 16, 2)
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
