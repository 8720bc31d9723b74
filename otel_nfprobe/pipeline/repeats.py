# SPDX-License-Identifier: Apache-2.0
"""Repeats: marks packets whose ID or content was seen before. A thin wrapper of native/core/repeats.h.

Equal packets of a flow have equal IDs, and a trace ID made from a content must not join two packets of one NF. Memory
is bounded: packets whose IDs exceed it are marked as unsure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Rows

WINDOW_NS = 10**9
IDS_MAX = 2_000_000  # per window; at most two tables of 32 MiB, with correlation four
FOREVER_NS = 2**64 - 1


class Seen(IntEnum):
    """Whether an ID was seen before."""

    BEFORE = lib.NFP_SEEN_BEFORE
    PERHAPS = lib.NFP_SEEN_PERHAPS


@dataclass(frozen=True)
class RepeatsCounts:
    """Packets in total and by mark; the fields are those of struct nfp_repeats_counts."""

    packets: int
    repeated: int
    unsure: int
    fragments: int
    cut: int
    malformed: int
    inner: int

    def as_summary(self) -> dict[str, int]:
        """Returns the object `ids` of a session's summary."""
        return {
            "repeated": self.repeated,
            "unsure": self.unsure,
            "fragments": self.fragments,
            "truncated": self.cut,
            "malformed": self.malformed,
            "inner": self.inner,
        }


class Repeats:
    """Remembers the IDs of a time window and of the one before it.

    Args:
        window_ns: windows begin at multiples of it, in Unix ns.
        ids_max: remembered per window.
        correlates: whether contents are remembered, too.
    """

    def __init__(self, window_ns: int = WINDOW_NS, ids_max: int = IDS_MAX, *, correlates: bool = False) -> None:
        repeats = lib.nfp_repeats_create(window_ns, ids_max, correlates)
        if repeats == ffi.NULL:
            raise MemoryError("no memory for the ids of packets")
        self._repeats = ffi.gc(repeats, lib.nfp_repeats_destroy)

    @classmethod
    def correlating(cls, window_ns: int) -> Repeats:
        """Returns one for trace IDs made from contents in windows of this length; 0: they are unique."""
        return cls(window_ns or WINDOW_NS, correlates=bool(window_ns))

    def mark(self, packets: Rows, clock: Clock) -> None:
        """Sets PacketFlag.REPEATED and AMBIGUOUS of packets (dtype PACKET) in place, in the order of their receipt."""
        if not len(packets):
            return
        ticks = packets["receive_ticks"]
        if np.all(ticks[1:] >= ticks[:-1]):
            self._mark(packets, clock)
            return
        order = np.argsort(ticks, kind="stable")
        ordered = packets[order]
        self._mark(ordered, clock)
        packets["flags"][order] = ordered["flags"]

    def _mark(self, packets: Rows, clock: Clock) -> None:
        anchors = ffi.from_buffer("struct nfp_anchor[]", clock.anchors)
        rows = ffi.from_buffer("struct nfp_packet[]", packets)
        lib.nfp_repeats_mark(self._repeats, rows, len(packets), anchors, len(clock.anchors))

    def look(self, ids: NDArray[np.uint64], unix_ns: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Returns a value of Seen or 0 for each ID, seen at these times."""
        seen = np.zeros(len(ids), np.uint8)
        looked_up = ffi.from_buffer("uint64_t[]", np.ascontiguousarray(ids, np.uint64))
        times = ffi.from_buffer("uint64_t[]", np.ascontiguousarray(unix_ns, np.uint64))
        lib.nfp_repeats_look(self._repeats, looked_up, times, len(seen), ffi.from_buffer("uint8_t[]", seen))
        return seen

    def counts(self) -> RepeatsCounts:
        """Returns the counts so far."""
        counts: Any = ffi.new("struct nfp_repeats_counts *")
        lib.nfp_repeats_count(self._repeats, counts)
        return RepeatsCounts(**{name: getattr(counts, name) for name in RepeatsCounts.__dataclass_fields__})
