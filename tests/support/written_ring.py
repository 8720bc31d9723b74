# SPDX-License-Identifier: Apache-2.0
"""A ring as a probe writes it, by the layout of native/abi/ring.h. For tests and benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import RECORD, Rows
from tests.support.synthetic_records import Row

PLACE = 0x40000000  # NFP_RING_PLACE
LAP_BIT = 1 << 31


def find_lows(positions: Any, ring_bytes: int) -> Any:
    """Low halves of the addresses that slots have in the target: nfp_ring_low, of one position or an array of them."""
    return PLACE + (positions & ring_bytes - 1) + LAP_BIT * ((positions & ring_bytes) // ring_bytes)


class WrittenRing:
    """What a probe has written, and the drain's view of it.

    Attributes:
        head: where the next record goes, in bytes.
        position: how far it was drained.
    """

    def __init__(self, ring_bytes: int, position: int = 0) -> None:
        self.ring_bytes, self.head = ring_bytes, position
        self.slots = np.zeros(ring_bytes // RECORD.itemsize, RECORD)
        self.position = ffi.new("uint64_t *", position)
        if position:  # what the lap before left behind
            places = np.arange(position - ring_bytes, position, RECORD.itemsize)
            self.slots["tag"][self._indices(places)] = find_lows(places, ring_bytes)

    def _indices(self, positions: Any) -> Any:
        return positions // RECORD.itemsize % len(self.slots)

    def write(self, records: Rows | list[Row]) -> None:
        """Appends whole records."""
        rows = np.array(records, RECORD)
        places = self.head + RECORD.itemsize * np.arange(len(rows), dtype=np.int64)
        rows["tag"] = rows["tag"].astype(np.int64) + find_lows(places, self.ring_bytes) & 0xFFFFFFFF
        self.slots[self._indices(places)] = rows
        self.head += RECORD.itemsize * len(rows)

    def drain(self, room: Any, skip_hole: bool = False) -> tuple[int, int, int]:
        """Takes what fits into `room` (struct nfp_record[]). Returns records, torn ones, and whether a hole blocks."""
        hole = ffi.new("struct nfp_drain_hole *")
        ring = ffi.from_buffer("uint8_t[]", self.slots)
        count = lib.nfp_drain(ring, self.ring_bytes, self.position, skip_hole, room, len(room), hole)
        return count, hole.torn, hole.blocked
